"""LanguageModel: tokenizer and HMM together, text in and text out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import torch
from jaxtyping import Int
from torch import Tensor

from vlhmm.arguments import as_device, check_count, check_generator, check_text, is_integer
from vlhmm.control.automaton import Automaton
from vlhmm.control.constraints import Constraint
from vlhmm.control.controlled import ControlledHMM
from vlhmm.control.generate import Choice
from vlhmm.control.time_limit import TIME_LIMIT
from vlhmm.data import Tokenizer, Tokens
from vlhmm.evaluate import Evaluation, HMMScorer, evaluate
from vlhmm.hmm import HMM
from vlhmm.inference.errors import ImpossibleTextError
from vlhmm.inference.predict import likeliest_tokens, without_token
from vlhmm.inference.sampling import StateWords, require_drawn
from vlhmm.models import Model
from vlhmm.precision import float32_products
from vlhmm.tables import Belief
from vlhmm.text.answers import BestPath, BestText, Explanation, Infilling, NamedState, Score, TokenPosterior, TokenScore
from vlhmm.text.explain import explain
from vlhmm.text.infilling import infill_text
from vlhmm.text.pieces import MAX_GAP_TOKENS, Gap, encode_pieces, split_at_gaps
from vlhmm.text.stream import TextStream
from vlhmm.text.word_gaps import MAX_WORD_TOKENS, WordGaps, infill_words, word_gaps
from vlhmm.training.checkpoint import MODEL, FolderError, load_model, save_model


class LanguageModel:
    """A tokenizer and an HMM over its tokens: text in, text out.

    A text begins as a line does in training: after an EOS if the model carries its states over EOS, else from the start
    distribution. The examples load "demo-model", the folder that the example of `vlhmm.train` writes.

    Args:
        model: The trained model.
        tokenizer: The tokenizer of its training text.
        about: How the model was made; it is saved with the model.

    Attributes:
        model: The trained model.
        tokenizer: The tokenizer.
        about: How the model was made.

    Raises:
        ValueError: Tokenizer and model have vocabularies of different size.

    Example:
        >>> lm = vlhmm.load("demo-model")
        >>> lm.hmm
        HMM(48 states in 6 groups, 12 words, torch.float32, cpu)
        >>> lm.next_tokens("the cat sees a", top=2)[0][0]
        'bird'
    """

    def __init__(self, model: Model, tokenizer: Tokenizer, about: Mapping[str, Any] | None = None) -> None:
        if tokenizer.vocab_size != model.support.num_words:
            raise ValueError(
                f"the tokenizer has {tokenizer.vocab_size} tokens, but the model has {model.support.num_words}: "
                "use the tokenizer that the model was trained with"
            )
        self.model = model
        self.tokenizer = tokenizer
        self.about = dict(about or {})
        self._folder: Path | None = None

    @cached_property
    def hmm(self) -> HMM:
        """The HMM of the model, computed once; after further training make a new LanguageModel."""
        try:
            with torch.no_grad(), float32_products("highest", self.model.group_of_word.device):
                return HMM(self.model.tables().detach())
        except ValueError as error:
            if self._folder is None:
                raise
            raise FolderError(f"{self._folder / MODEL} holds no HMM: {error}") from None

    @property
    def folder(self) -> Path | None:
        """The folder that it was loaded from; None: it was not."""
        return self._folder

    @cached_property
    def _state_words(self) -> StateWords:
        return StateWords(self.hmm.tables)

    def save(self, folder: str | Path, *, dtype: torch.dtype | None = None) -> None:
        """Write model, tokenizer and `about` to a folder, which `vlhmm.load` reads.

        Args:
            folder: The folder. It is made if it does not exist; a model that it holds is replaced.
            dtype: torch.bfloat16 halves the file, and rounds the weights to 8 bits of mantissa; None: the weights as they are.

        Raises:
            ValueError: `dtype` is another one.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> lm.save("copy")
            >>> vlhmm.load("copy").score("the cat") == lm.score("the cat")
            True
        """
        if dtype not in (None, torch.bfloat16):
            raise ValueError(
                f"dtype is {dtype}, but must be torch.bfloat16 or None, which keeps the weights as they are"
            )
        weights = self.model.state_dict()
        if dtype is not None:
            # Tables of integers, and numbers that the support is read from, stay.
            weights = {
                name: tensor.to(dtype) if tensor.dtype == torch.float32 else tensor for name, tensor in weights.items()
            }
        save_model(Path(folder), self.model, self.tokenizer, self.about, weights)

    def perplexity(self, tokens: Tokens) -> float:
        """Compute exp(-log p(x) / number of tokens) of a text, as one exact stream.

        Args:
            tokens: The text as token ids.

        Returns:
            The perplexity per token, EOS included.

        Raises:
            ValueError: The text is empty, or has tokens outside the vocabulary.

        Example:
            >>> from vlhmm.data import Tokens
            >>> lm = vlhmm.load("demo-model")
            >>> ids = [*lm.tokenizer.encode("the dog sees a bird"), lm.tokenizer.eos_id]
            >>> round(lm.perplexity(Tokens.from_documents([ids], lm.tokenizer.vocab_size)), 1)
            1.5
        """
        return self.evaluate(tokens).perplexity

    def evaluate(self, tokens: Tokens, streams: int = 1) -> Evaluation:
        """Compute perplexities of a text, and say what was counted.

        Args:
            tokens: The text as token ids.
            streams: Parts that are scored side by side. More than one is faster and approximate: each part but the first begins with
                128 tokens that are not scored.

        Returns:
            Perplexity, log-probability and counts.

        Raises:
            ValueError: The text is empty, or has tokens outside the vocabulary.

        Example:
            >>> from vlhmm.data import Tokens
            >>> lm = vlhmm.load("demo-model")
            >>> ids = [*lm.tokenizer.encode("the dog sees a bird"), lm.tokenizer.eos_id]
            >>> result = lm.evaluate(Tokens.from_documents([ids], lm.tokenizer.vocab_size))
            >>> print(result.num_tokens, "tokens:", result.protocol)
            6 tokens: every token scored, EOS and unknown words included; states drawn from the start distribution after token 1; one exact stream from one cold start
        """
        return evaluate(HMMScorer(self.hmm.tables), tokens, self.tokenizer, streams=streams)

    def score(self, text: str, *, eos: bool = False) -> Score:
        """Compute log p(token | all tokens before) of each token of a text.

        Args:
            text: The text.
            eos: Score the EOS after the text too.

        Returns:
            The tokens with their log-probabilities, their sum and the perplexity.

        Raises:
            ValueError: The text has no tokens.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> score = lm.score("the dog sees a bird", eos=True)
            >>> score.tokens[2].token, round(score.tokens[2].log_prob, 1)
            ('sees', -0.4)
            >>> round(score.log_prob, 1), round(score.perplexity, 1)
            (-2.4, 1.5)
        """
        ids = self._encode(text, eos)
        with torch.no_grad():
            log_probs = self.hmm.token_log_probs(ids, belief=self._opening)
        names = [self.tokenizer.token(token) for token in ids[0].tolist()]
        return Score([TokenScore(name, value) for name, value in zip(names, log_probs[0].tolist(), strict=True)])

    def next_tokens(self, text: str = "", top: int = 10, *, unk: bool = False) -> list[tuple[str, float]]:
        """Return the most likely next tokens after `text`.

        Args:
            text: The text so far.
            top: Number of tokens.
            unk: Return the unknown token too; without it, probabilities are p(token | text, the token is not unknown).

        Returns:
            Tokens with their probabilities, most likely first.

        Raises:
            ValueError: `top` is below 1.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> [(token, round(prob, 1)) for token, prob in lm.next_tokens("the cat sees a", top=2)]
            [('bird', 0.6), ('fish', 0.4)]
        """
        check_count("top", top)
        probs, tokens = likeliest_tokens(self.hmm.next_token_probs(self._belief_after(text)), top, self._never(unk))
        return [
            (self.tokenizer.token(token), prob)
            for prob, token in zip(probs[0].tolist(), tokens[0].tolist(), strict=True)
        ]

    def posterior(self, text: str, top: int = 3) -> list[TokenPosterior]:
        """Compute the most likely states of each token, given the whole text.

        Args:
            text: The text.
            top: Number of states of each token.

        Returns:
            Each token with its states, their probabilities and the entropy of p(state | text).

        Raises:
            ValueError: The text has no tokens.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> for token in lm.posterior("the cat sees a bird", top=1):
            ...     state, prob = token.states[0]
            ...     print(token.token, [word for word, _ in state.words[:2]])
            the ['the']
            cat ['cat', 'dog']
            sees ['sees', 'hears']
            a ['a']
            bird ['bird', 'fish']
        """
        check_count("top", top)
        ids = self._encode(text)
        posterior = self.hmm.posterior(ids, belief=self._opening)
        probs = posterior.probs[0]
        best = probs.topk(min(top, probs.shape[1]), dim=1)
        states = posterior.states[0].gather(1, best.indices)
        entropy = -torch.special.xlogy(probs, probs).sum(1)
        return [
            TokenPosterior(
                self.tokenizer.token(token),
                [(self.name_state(state), prob) for state, prob in zip(row, row_probs, strict=True)],
                nats,
            )
            for token, row, row_probs, nats in zip(
                ids[0].tolist(), states.tolist(), best.values.tolist(), entropy.tolist(), strict=True
            )
        ]

    @overload
    def viterbi(self, text: str, k: None = None) -> BestPath: ...

    @overload
    def viterbi(self, text: str, k: int) -> list[BestPath]: ...

    def viterbi(self, text: str, k: int | None = None) -> BestPath | list[BestPath]:
        """Find the most likely state path of a text, or the k most likely ones.

        Args:
            text: The text.
            k: Number of paths; None: the best one alone, not in a list.

        Returns:
            The best path, or with `k` a list of paths, best first; fewer than `k` where the text has fewer.

        Raises:
            ImpossibleTextError: The text has probability zero.
            ValueError: The text has no tokens, or `k` is not between 1 and 100.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> path = lm.viterbi("the cat sees a bird")
            >>> path.tokens, len(path.states)
            (['the', 'cat', 'sees', 'a', 'bird'], 5)
            >>> first, second = lm.viterbi("the cat sees a bird", k=2)
            >>> first.states == path.states, second.log_prob < first.log_prob
            (True, True)
        """
        ids = self._encode(text)
        found = self.hmm.viterbi(ids, k=1 if k is None else k, belief=self._opening)
        tokens = [self.tokenizer.token(token) for token in ids[0].tolist()]
        paths = [
            BestPath(tokens, [self.name_state(state) for state in path], log_prob)
            for path, log_prob in zip(found.states[0].tolist(), found.log_prob[0].tolist(), strict=True)
            if log_prob > -math.inf
        ]
        return paths[0] if k is None else paths

    def explain(self, text: str, top: int = 3, neighbours: int = 1) -> Explanation:
        """Compute surprisal, likely states and their neighbours for each token, given the whole text.

        Args:
            text: The text.
            top: Number of states of each token.
            neighbours: Number of states before and after each of these.

        Returns:
            The explanation of each token, and the entropy of the state path.

        Raises:
            ImpossibleTextError: The text has probability zero.
            ValueError: The text has no tokens, or a number is below 1.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> explanation = lm.explain("the cat sees a bird", top=1)
            >>> [(token.token, round(token.surprisal, 1)) for token in explanation.tokens]
            [('the', 0.0), ('cat', 0.4), ('sees', 0.4), ('a', 0.0), ('bird', 0.5)]
        """
        check_count("top", top)
        check_count("neighbours", neighbours)
        ids = self._encode(text)
        return explain(self.hmm, ids, self._opening, top, neighbours, self.tokenizer.token, self.name_state)

    def stream(self) -> TextStream:
        """Start a text that is fed piece by piece.

        For many texts at once use `lm.hmm.stream(num, belief=lm.opening)`, which reads token ids.

        Returns:
            The stream.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> stream = lm.stream()
            >>> [score.token for score in stream.feed("the cat ")]
            ['the', 'cat']
            >>> stream.next_tokens(1)[0][0]
            'sees'
        """
        return TextStream(self.hmm.stream(belief=self._opening), self.tokenizer)

    def infill(
        self,
        text: str,
        *,
        num: int = 5,
        top: int = 5,
        gap: tuple[int, int] | None = None,
        max_gap_tokens: int = MAX_WORD_TOKENS,
        eos: bool = False,
        exclude: Sequence[str] = (),
        unk: bool = False,
        generator: torch.Generator | None = None,
    ) -> Infilling:
        """Compute what may stand in the gaps of `text`, given the rest of it.

        `___` is a missing word. Where tokens are parts of words it is a word of one to `max_gap_tokens` tokens, without white space
        inside, and probabilities are those of words: sums over all tokens that spell them. `___{2}` is a gap of two tokens, `___{1,4}`
        one of one to four; where their number is open, all numbers have the same prior probability. EOS is never filled in.

        Args:
            text: The text with its gaps.
            num: Number of samples.
            top: Number of tokens that are returned for each position, or of words for each gap.
            gap: Smallest and largest number of tokens of a gap `___`; None: a word.
            max_gap_tokens: Largest number of tokens of a word, where tokens are parts of words.
            eos: The text ends after its last word.
            exclude: Tokens that are never filled in.
            unk: Fill in the unknown token too.
            generator: Random numbers of the samples; None: the global generator of PyTorch.

        Returns:
            Probabilities of lengths and tokens, the best filling and `num` samples.

        Raises:
            ImpossibleTextError: The text has probability zero whatever is filled in.
            ValueError: There is no gap, a gap cannot be read, or the gaps have more than 1,000 combinations of lengths.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> filled = lm.infill("the ___ hears a bird in ___ garden", eos=True, num=0)
            >>> filled.best.text
            'the cat hears a bird in the garden'
            >>> [token for token, prob in filled.gaps[0].tokens[0][:2]]
            ['cat', 'dog']
        """
        check_text("text", text)
        check_count("num", num, at_least=0)
        check_count("top", top)
        check_generator(generator, self.hmm.tables.device)
        check_count("max_gap_tokens", max_gap_tokens)
        if max_gap_tokens > MAX_GAP_TOKENS:
            raise ValueError(f"max_gap_tokens is {max_gap_tokens}, but {MAX_GAP_TOKENS} is the limit: take fewer")
        if gap is None:
            default = Gap(1, 1) if self.tokenizer.word_level else None
        elif isinstance(gap, Sequence) and len(gap) == 2 and all(is_integer(bound) for bound in gap):
            default = Gap(*gap)
        else:
            raise ValueError(
                f"gap is {gap!r}, but two numbers of tokens are needed, the smaller first: (1, 4); None stands for a word"
            )
        if isinstance(exclude, str):
            raise ValueError(f"exclude is the text {exclude!r}, but a sequence of tokens is needed: [{exclude!r}]")
        left_out = [self.tokenizer.token_id(token) for token in exclude]
        if None in left_out:
            raise ValueError(
                f"exclude has {exclude[left_out.index(None)]!r}, which is none of the {self.tokenizer.vocab_size} tokens"
            )
        pieces, gaps = split_at_gaps(text, default)
        ids = encode_pieces(self.tokenizer, pieces)
        if eos and self.tokenizer.eos_id is not None:
            ids[-1].append(self.tokenizer.eos_id)
        never = [token for token in (*left_out, self.tokenizer.eos_id, self._never(unk)) if token is not None]
        tokens_asked = [one for one in gaps if one is not None]
        if len(tokens_asked) == len(gaps):
            return infill_text(self.hmm, self.tokenizer, self._opening, ids, tokens_asked, never, num, top, generator)
        words = word_gaps(self.tokenizer, pieces, gaps, max_gap_tokens)
        transition = self._controlled.transition
        found = WordGaps(self.hmm, self.tokenizer, self._opening, ids, words, never, transition)
        return infill_words(found, num, top, generator)

    def name_state(self, state: int, top: int = 5) -> NamedState:
        """Return a state with the words that it emits most.

        Args:
            state: Number of the state.
            top: Number of words.

        Returns:
            The state, its block and its words with p(word | state).

        Raises:
            ValueError: There is no such state.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> state = lm.viterbi("the cat sees a bird").states[2].state
            >>> [word for word, prob in lm.name_state(state, top=2).words]
            ['sees', 'hears']
        """
        check_count("top", top)
        if not is_integer(state) or not 0 <= state < self.hmm.num_states:
            raise ValueError(f"state is {state}, but must be between 0 and {self.hmm.num_states - 1}")
        words, log_probs = self._state_words.of(torch.tensor([state], device=self.hmm.tables.device))
        best = log_probs[0].topk(min(top, log_probs.shape[1]))
        names = [self.tokenizer.token(token) for token in words[0, best.indices].tolist()]
        probs = best.values.exp().tolist()
        block = state // self.hmm.tables.support.states_per_word
        return NamedState(state, block, [(name, prob) for name, prob in zip(names, probs, strict=True) if prob > 0])

    def generate(
        self,
        prompt: str = "",
        *,
        max_tokens: int = 50,
        num: int = 1,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        constraint: Constraint | Automaton | None = None,
        unk: bool = False,
        generator: torch.Generator | None = None,
        time_limit: float | None = TIME_LIMIT,
    ) -> list[str]:
        """Draw continuations of `prompt`, each up to EOS or `max_tokens` new tokens.

        With a constraint and temperature 1, they are exact samples of p(continuation | prompt, constraint). The constraint holds at
        any temperature, and with `top_k` or `top_p` too. It is on the new tokens, not on the prompt.

        The unknown token is not drawn. Without a constraint each token is drawn from p(token | text so far, the token is not
        unknown), as `next_tokens` gives it. A constraint is met together with that: p(continuation | prompt, constraint, no token is
        unknown).

        Args:
            prompt: Where the text begins.
            max_tokens: New tokens, at most.
            num: Number of texts.
            temperature: Log-probabilities are divided by it.
            top_k: Draw among the `top_k` most likely next tokens; None: among all.
            top_p: Draw among the fewest most likely next tokens whose total probability reaches `top_p`; None: among all.
            constraint: What the new tokens must satisfy; None: nothing.
            unk: Draw the unknown token too.
            generator: Random numbers; None: the global generator of PyTorch.
            time_limit: Seconds of processor time that compiling the constraint may take; None: any time.

        Returns:
            The texts, prompt included.

        Raises:
            ImpossibleConstraintError: No continuation satisfies the constraint.
            ImpossibleTextError: The prompt has probability zero.
            ValueError: A number is out of range.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> lm.generate("the dog", top_k=1)  # the most likely next token each time
            ['the dog sees a bird']
            >>> texts = lm.generate(num=20, constraint=vlhmm.contains("garden"), generator=torch.Generator().manual_seed(0))
            >>> all("garden" in text for text in texts)
            True
        """
        check_text("prompt", prompt)
        check_count("max_tokens", max_tokens)
        check_count("num", num)
        check_generator(generator, self.hmm.tables.device)
        choice, never = Choice(temperature, top_k, top_p), self._never(unk)
        belief = self._possible_belief_after(prompt)
        if constraint is None:
            drawn = self._sample(num, max_tokens, belief, choice, generator, never)
        else:
            drawn = self._controlled.sample(
                constraint, num, max_tokens, belief, choice, generator, never=never, time_limit=time_limit
            )
        return [self._continued(prompt, row) for row in drawn]

    def _sample(
        self,
        num: int,
        max_tokens: int,
        belief: Belief | None,
        choice: Choice,
        generator: torch.Generator | None,
        never: int | None,
    ) -> list[list[int]]:
        tables, eos = self.hmm.tables, self.tokenizer.eos_id
        # Copies of the probabilities of all words, which top_p sorts; the belief; the transition tiles of one step, at most
        # one a text; the tokens in a list.
        words = (6 if choice.top_p is None else 12) * tables.num_words
        support = tables.support
        states = 6 * (support.num_states + support.states_per_word)
        size = tables.log_emission.element_size()
        per_text = (words + states) * size + 16 * max_tokens
        tiles = 0 if support.num_groups == 1 else min(num, support.num_groups**2)
        what = f"{num:,} texts of up to {max_tokens:,} tokens over {tables.num_words:,} words"
        require_drawn(num, per_text, what, tables.device, fixed=3 * tiles * support.states_per_word**2 * size)
        if belief is not None:
            belief = Belief(belief.token.expand(num), belief.log_probs.expand(num, -1))
        texts: list[list[int]] = [[] for _ in range(num)]
        going = torch.arange(num, device=tables.device)
        for left in range(max_tokens, 0, -1):
            log_probs = without_token(self.hmm.next_token_probs(belief), never).expand(len(going), -1).log()
            # Noise for every text, ended or not: what a text becomes does not depend on where the others end.
            noise = log_probs.new_empty(num, tables.num_words).exponential_(generator=generator)
            token = (choice.log_weights(log_probs) - noise[going].log()).argmax(-1)
            drawn: list[int] = token.tolist()
            for row, one in zip(going.tolist(), drawn, strict=True):
                texts[row].append(one)
            goes_on = [place for place, one in enumerate(drawn) if one != eos]
            if not goes_on or left == 1:
                break
            if len(goes_on) < len(drawn):
                going, token = going[goes_on], token[goes_on]
                belief = None if belief is None else belief.of(goes_on)
            belief = self.hmm.filter(token[:, None], belief=belief).belief
        return texts

    def best_text(
        self,
        prompt: str = "",
        *,
        max_tokens: int = 50,
        constraint: Constraint | Automaton | None = None,
        unk: bool = False,
        time_limit: float | None = TIME_LIMIT,
    ) -> BestText:
        """Find the continuation x of `prompt` with the largest p(x, z), maximised over its states z too.

        Args:
            prompt: Where the text begins.
            max_tokens: New tokens, at most; a text ends at EOS or there.
            constraint: What the new tokens must satisfy; None: nothing.
            unk: Let the unknown token be in the text too.
            time_limit: Seconds of processor time that compiling the constraint may take; None: any time.

        Returns:
            The text, prompt included, and its log p(x, z).

        Raises:
            ImpossibleConstraintError: No continuation satisfies the constraint.
            ImpossibleTextError: The prompt has probability zero.
            ValueError: `max_tokens` is below 1.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> lm.best_text("the dog", max_tokens=10, constraint=vlhmm.contains("garden")).text
            'the dog sees a bird in the garden'
        """
        check_text("prompt", prompt)
        check_count("max_tokens", max_tokens)
        belief = self._possible_belief_after(prompt)
        never = self._never(unk)
        best = self._controlled.best(constraint, max_tokens, belief, never=never, time_limit=time_limit)
        return BestText(self._continued(prompt, best.tokens), best.log_prob)

    def constraint_probability(
        self,
        prefix: str,
        constraint: Constraint | Automaton,
        length: int,
        *,
        until_eos: bool = False,
        time_limit: float | None = TIME_LIMIT,
    ) -> float:
        """Compute P(the next `length` tokens after `prefix` satisfy the constraint).

        Args:
            prefix: The text before.
            constraint: The constraint, on the tokens after `prefix`.
            length: Number of tokens.
            until_eos: Compute P(EOS comes within `length` tokens, and the tokens before it satisfy the constraint) instead. Without
                it EOS is none of the tokens.
            time_limit: Seconds of processor time that compiling the constraint may take; None: any time.

        Returns:
            The probability.

        Raises:
            ImpossibleTextError: `prefix` has probability zero.
            ValueError: `length` is below 1, or `until_eos` while the tokenizer has no EOS.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> round(lm.constraint_probability("the cat sees", vlhmm.contains("fish"), length=2), 1)
            0.4
        """
        check_text("prefix", prefix)
        check_count("length", length)
        belief = self._possible_belief_after(prefix)
        return self._controlled.probability(constraint, length, belief, until_eos=until_eos, time_limit=time_limit)

    def constraint_path(
        self, text: str, constraint: Constraint | Automaton, *, time_limit: float | None = TIME_LIMIT
    ) -> list[float]:
        """Compute P(a text satisfies the constraint | its first t tokens) for each t.

        The text has as many tokens as `text`. A text with EOS among its tokens does not satisfy a constraint.

        Args:
            text: The text that is followed, T tokens.
            constraint: The constraint, on the whole text.
            time_limit: Seconds of processor time that compiling the constraint may take; None: any time.

        Returns:
            T + 1 probabilities, for t = 0, 1, ..., T. The last one is 1 if `text` satisfies the constraint, else 0.

        Raises:
            ImpossibleTextError: `text` has probability zero.
            ValueError: The text has no tokens.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> path = lm.constraint_path("the cat sees a bird", vlhmm.contains("bird"))
            >>> [round(prob, 1) for prob in path]
            [0.6, 0.6, 0.6, 0.6, 0.6, 1.0]
        """
        tokens = self._encode(text)[0].tolist()
        self._possible_belief_after(text)
        return self._controlled.along(constraint, tokens, self._opening, time_limit=time_limit)

    @cached_property
    def _controlled(self) -> ControlledHMM:
        return ControlledHMM(self.hmm, self.tokenizer)

    def _never(self, unk: bool) -> int | None:
        """The token that is not drawn, unless `unk` asks for it."""
        return None if unk else self.tokenizer.undrawn_id

    def _possible_belief_after(self, prompt: str) -> Belief | None:
        belief = self._belief_after(prompt)
        if belief is not None and bool(belief.log_probs.isinf().all()):
            raise ImpossibleTextError(
                f"the model gives {prompt!r} probability zero, so nothing follows it: begin with another text"
            )
        return belief

    def _continued(self, prompt: str, ids: list[int]) -> str:
        prompt_ids = self.tokenizer.encode(prompt) if prompt else []
        return self.tokenizer.decode(prompt_ids + self._until_eos(ids))

    def _until_eos(self, ids: list[int]) -> list[int]:
        eos = self.tokenizer.eos_id
        return ids[: ids.index(eos)] if eos is not None and eos in ids else ids

    @property
    def opening(self) -> Belief | None:
        """The belief before the first token of a text; None: the text begins from the start distribution."""
        return self._opening

    @cached_property
    def _opening(self) -> Belief | None:
        """What is believed before the first token of a text."""
        eos = self.tokenizer.eos_id
        if eos is None or self.hmm.tables.reset_token is not None:
            return None
        return self.hmm.filter([[eos]]).belief

    def _belief_after(self, text: str) -> Belief | None:
        check_text("text", text)
        if not text:
            return self._opening
        return self.hmm.filter(self._encode(text), belief=self._opening).belief

    def _encode(self, text: str, eos: bool = False) -> Int[Tensor, "1 T"]:
        ids = self.tokenizer.encode(text)
        if eos and self.tokenizer.eos_id is not None:
            ids = [*ids, self.tokenizer.eos_id]
        if not ids:
            raise ValueError("the text has 0 tokens, but at least 1 is needed")
        return torch.tensor([ids])


def load(folder: str | Path, device: torch.device | str = "cpu", *, verify: bool | None = None) -> LanguageModel:
    """Load the language model that `LanguageModel.save` or a training run wrote.

    Args:
        folder: The folder.
        device: Where the model is placed.
        verify: Compare the files with their checksums; None: unless the environment variable `VLHMM_VERIFY` is 0.

    Returns:
        The language model.

    Raises:
        ValueError: The folder holds no model, not all of it, or one of another format version.

    Example:
        >>> lm = vlhmm.load("demo-model")  # the folder that the example of `vlhmm.train` writes
        >>> lm.tokenizer.vocab_size, lm.hmm.num_states
        (12, 48)
    """
    saved = load_model(folder, as_device(device) or "cpu", verify=verify)
    lm = LanguageModel(saved.model, saved.tokenizer, saved.config["about"])
    lm._folder = Path(folder)
    return lm
