"""LanguageModel: tokenizer and HMM together, text in and text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import torch

from vlhmm.arguments import as_device, as_generator, check_count, is_integer, older_seed
from vlhmm.control.automaton import Automaton
from vlhmm.control.constraints import Constraint
from vlhmm.control.controlled import ControlledHMM
from vlhmm.control.time_limit import TIME_LIMIT
from vlhmm.data import Tokenizer, Tokens
from vlhmm.evaluate import Evaluation, HMMScorer, evaluate
from vlhmm.hmm import HMM, hmm_of_normalized
from vlhmm.hub import fetched_folder
from vlhmm.hub.pushable import Pushable
from vlhmm.inference.errors import ImpossibleTextError
from vlhmm.inference.past import Past
from vlhmm.inference.predict import belief_at
from vlhmm.models import Model
from vlhmm.models.from_tables import model_from_tables
from vlhmm.precision import float32_products
from vlhmm.tables import Belief, Tables
from vlhmm.text.answers import BestPath, Explanation, Infilling, NamedState, Score, TokenPosterior
from vlhmm.text.batching import Texts, one_by_one, one_or_all
from vlhmm.text.constrained import ConstrainedTexts
from vlhmm.text.generation import draw_texts, generators_of, wanted_texts
from vlhmm.text.infilling import infill_text
from vlhmm.text.pieces import MAX_GAP_TOKENS, Gap, encode_pieces, split_at_gaps
from vlhmm.text.queries import TextQueries
from vlhmm.text.stream import TextStream
from vlhmm.text.word_gaps import MAX_WORD_TOKENS, WordGaps, infill_words, word_gaps
from vlhmm.training.checkpoint import MODEL, FolderError, check_replaceable, load_model, save_model

UNKNOWN_TOKENS = 2
"""Before the EOS after which a text begins. With one fewer, states that are never visited still count; more change little."""


class LanguageModel(Pushable, ConstrainedTexts):
    """A tokenizer and an HMM over its tokens: text in, text out.

    A text begins as a line does in training: after an EOS if the model carries its states over EOS, with tokens before it that
    are not known, else from the start distribution. Methods that take a text take a list of texts too, answer with a list, and read many texts in one forward
    pass. The examples load "demo-model", the folder that the example of `vlhmm.train` writes.

    Args:
        model: The trained model, or an HMM, as in `from_hmm`.
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

    def __init__(self, model: Model | HMM, tokenizer: Tokenizer, about: Mapping[str, Any] | None = None) -> None:
        _check_parts(model, tokenizer)
        if isinstance(model, HMM):
            model = model_from_tables(model.tables)
        num_words = model.support.num_words
        if tokenizer.vocab_size != num_words:
            raise ValueError(
                f"the tokenizer has {tokenizer.vocab_size} tokens, but the model has {num_words}: "
                "use the tokenizer that the model was trained with"
            )
        self.model = model
        self.tokenizer = tokenizer
        self.about = dict(about or {})
        self._folder: Path | None = None

    @classmethod
    def from_hmm(cls, hmm: HMM, tokenizer: Tokenizer, about: Mapping[str, Any] | None = None) -> LanguageModel:
        """Make a language model of an HMM over the ids of a tokenizer.

        Args:
            hmm: The HMM. Its probabilities become the free logits of a scalar model, so that it can be saved and trained on;
                that takes a table (Z, Z), in float32.
            tokenizer: The tokenizer of the ids.
            about: How the HMM was made; it is saved with the model.

        Returns:
            The language model.

        Raises:
            ValueError: HMM and tokenizer have vocabularies of different size, or the table does not fit in memory.

        Example:
            >>> from vlhmm.data import word_tokenizer
            >>> tokenizer = word_tokenizer(["heads", "tails"], unk=False)  # and <eos>
            >>> hmm = vlhmm.HMM.from_probabilities([1, 0], [[0.9, 0.1], [0.5, 0.5]], [[0.8, 0.1, 0.1], [0.2, 0.7, 0.1]])
            >>> lm = vlhmm.LanguageModel.from_hmm(hmm.with_reset_token(tokenizer.eos_id), tokenizer)
            >>> lm.score("heads tails heads").tokens[0].token
            'heads'
        """
        return cls(hmm, tokenizer, about)

    def __repr__(self) -> str:
        tokenizer, support = self.tokenizer, self.model.support
        tokens = "words" if tokenizer.word_level else "pieces of words"
        blocks = f" in {support.num_groups:,} blocks" if support.num_groups > 1 else ""
        return (
            f"LanguageModel({support.num_states:,} states{blocks}, {tokenizer.vocab_size:,} tokens ({tokens}), "
            f"{self.model.num_parameters:,} parameters, {self.model.group_of_word.device})"
        )

    @cached_property
    def hmm(self) -> HMM:
        """The HMM of the model, computed once; after further training make a new LanguageModel."""
        try:
            with torch.no_grad(), float32_products("highest", self.model.group_of_word.device):
                return hmm_of_normalized(self.model.tables().detach())
        except ValueError as error:
            if self._folder is None:
                raise
            raise FolderError(f"{self._folder / MODEL} holds no HMM: {error}") from None

    @property
    def folder(self) -> Path | None:
        """The folder that it was loaded from; None: it was not."""
        return self._folder

    @cached_property
    def _queries(self) -> TextQueries:
        return TextQueries(self.hmm, self.tokenizer, self._opening)

    def save(self, folder: str | Path, *, dtype: torch.dtype | None = None) -> None:
        """Write model, tokenizer and `about` to a folder, which `vlhmm.load` reads.

        Args:
            folder: The folder. It is made if it does not exist; a model that it holds is replaced.
            dtype: torch.bfloat16 halves the file, and rounds the weights to 8 bits of mantissa; None: the weights as they are.

        Raises:
            ValueError: `dtype` is another one, or the folder is a file, or holds another program's model.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> lm.save("copy")
            >>> vlhmm.load("copy").score("the cat") == lm.score("the cat")
            True
        """
        check_replaceable(Path(folder))
        save_model(Path(folder), self.model, self.tokenizer, self.about, self._weights(dtype))

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        device: torch.device | str = "cpu",
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        token: str | bool | None = None,
    ) -> LanguageModel:
        """Load a language model from a folder, or from the Hugging Face hub.

        Arguments have the names of `huggingface_hub.ModelHubMixin`. With the environment variable `HF_HUB_OFFLINE=1`, and with
        `local_files_only`, only what was downloaded before is read.

        Args:
            pretrained_model_name_or_path: A model folder, or OWNER/NAME on the hub. A folder of that name is preferred.
            device: Where the model is placed.
            revision: Branch, tag or commit of the repository; None: its main branch.
            cache_dir: Where downloads are kept; None: the cache of huggingface_hub.
            force_download: Download again what is there already.
            local_files_only: Download nothing.
            token: Access token of the hub; None: that of `hf auth login`.

        Returns:
            The language model.

        Raises:
            ImportError: A name of the hub is given, and huggingface_hub is missing: `pip install 'vlhmm[hub]'`.
            ValueError: There is no such folder or repository, or it holds no model.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> lm.save_pretrained("for-others")
            >>> vlhmm.LanguageModel.from_pretrained("for-others").score("the cat") == lm.score("the cat")
            True
        """
        folder = fetched_folder(
            pretrained_model_name_or_path,
            revision=revision,
            cache_dir=cache_dir,
            force_download=force_download,
            local_files_only=local_files_only,
            token=token,
        )
        return load(folder, device)

    def to(self, device: torch.device | str) -> LanguageModel:
        """Move the model to another device, as `torch.nn.Module.to` does: in place.

        Args:
            device: The new device.

        Returns:
            This language model.

        Raises:
            ValueError: This machine has no such device.

        Example:
            >>> lm = vlhmm.load("demo-model").to("cpu")
            >>> lm.hmm.tables.device
            device(type='cpu')
        """
        self.model.to(as_device(device))
        # They hold tensors on the old device.
        for name in ("hmm", "_opening", "_queries", "_controlled"):
            self.__dict__.pop(name, None)
        return self

    @overload
    def perplexity(self, tokens: str | Tokens, *, eos: bool = False) -> float: ...

    @overload
    def perplexity(self, tokens: Texts, *, eos: bool = False) -> list[float]: ...

    def perplexity(self, tokens: str | Texts | Tokens, *, eos: bool = False) -> float | list[float]:
        """Compute exp(-log p(x) / number of tokens) of a text.

        A `str` is read as `score` reads it, each of a list separately. `Tokens` are one exact stream from one cold start, with
        the EOS tokens that they hold, as corpora are evaluated.

        Args:
            tokens: The text, a list of texts, or a corpus as token ids.
            eos: Count the EOS after each text too; `Tokens` hold theirs already.

        Returns:
            The perplexity per token, or a list of them.

        Raises:
            ValueError: A text is empty, has tokens outside the vocabulary, or `eos` is asked for with `Tokens`.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> round(lm.perplexity("the dog sees a bird", eos=True), 1)
            1.5
            >>> first, second = lm.perplexity(["the dog sees a bird", "the dog"])
            >>> from vlhmm.data import Tokens
            >>> ids = [*lm.tokenizer.encode("the dog sees a bird"), lm.tokenizer.eos_id]
            >>> round(lm.perplexity(Tokens.from_documents([ids], lm.tokenizer.vocab_size)), 1)
            1.5
        """
        if isinstance(tokens, Tokens):
            if eos:
                raise ValueError("eos=True is for texts: tokens are counted as they are, with the EOS tokens they hold")
            return self.evaluate(tokens).perplexity
        if isinstance(tokens, str):
            return self.score(tokens, eos=eos).perplexity
        return [score.perplexity for score in self.score(tokens, eos=eos)]

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

    @overload
    def score(self, text: str, *, eos: bool = False) -> Score: ...

    @overload
    def score(self, text: Texts, *, eos: bool = False) -> list[Score]: ...

    def score(self, text: str | Texts, *, eos: bool = False) -> Score | list[Score]:
        """Compute log p(token | all tokens before) of each token of a text.

        Args:
            text: The text, or a list of texts.
            eos: Score the EOS after the text too.

        Returns:
            The tokens with their log-probabilities, their sum and the perplexity; for a list of texts a list.

        Raises:
            ValueError: The text has no tokens.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> score = lm.score("the dog sees a bird", eos=True)
            >>> score.tokens[2].token, round(score.tokens[2].log_prob, 1)
            ('sees', -0.4)
            >>> round(score.log_prob, 1), round(score.perplexity, 1)
            (-2.4, 1.5)
            >>> [round(score.log_prob, 1) for score in lm.score(["the dog sees a bird", "the cat"])]
            [-1.9, -0.4]
        """
        return one_or_all("text", text, lambda texts: self._queries.scores(self._queries.encode(texts, eos=eos)))

    @overload
    def next_tokens(self, text: str = "", top: int = 10, *, unk: bool = False) -> list[tuple[str, float]]: ...

    @overload
    def next_tokens(self, text: Texts, top: int = 10, *, unk: bool = False) -> list[list[tuple[str, float]]]: ...

    def next_tokens(
        self, text: str | Texts = "", top: int = 10, *, unk: bool = False
    ) -> list[tuple[str, float]] | list[list[tuple[str, float]]]:
        """Return the most likely next tokens after `text`.

        Args:
            text: The text so far, or a list of texts.
            top: Number of tokens.
            unk: Return the unknown token too; without it, probabilities are p(token | text, the token is not unknown).

        Returns:
            Tokens with their probabilities, most likely first; for a list of texts a list.

        Raises:
            ValueError: `top` is below 1.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> [(token, round(prob, 1)) for token, prob in lm.next_tokens("the cat sees a", top=2)]
            [('bird', 0.6), ('fish', 0.4)]
        """
        check_count("top", top)
        never = self._never(unk)
        return one_or_all("text", text, lambda texts: self._queries.next_tokens(texts, top, never))

    @overload
    def posterior(self, text: str, top: int = 3) -> list[TokenPosterior]: ...

    @overload
    def posterior(self, text: Texts, top: int = 3) -> list[list[TokenPosterior]]: ...

    def posterior(self, text: str | Texts, top: int = 3) -> list[TokenPosterior] | list[list[TokenPosterior]]:
        """Compute the most likely states of each token, given the whole text.

        Args:
            text: The text, or a list of texts.
            top: Number of states of each token.

        Returns:
            Each token with its states, their probabilities and the entropy of p(state | text); for a list of texts a list.

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
        return one_or_all("text", text, lambda texts: self._queries.posteriors(self._queries.encode(texts), top))

    @overload
    def viterbi(self, text: str, k: None = None) -> BestPath: ...

    @overload
    def viterbi(self, text: str, k: int) -> list[BestPath]: ...

    @overload
    def viterbi(self, text: Texts, k: None = None) -> list[BestPath]: ...

    @overload
    def viterbi(self, text: Texts, k: int) -> list[list[BestPath]]: ...

    def viterbi(self, text: str | Texts, k: int | None = None) -> BestPath | list[BestPath] | list[list[BestPath]]:
        """Find the most likely state path of a text, or the k most likely ones.

        Args:
            text: The text, or a list of texts.
            k: Number of paths; None: the best one alone, not in a list.

        Returns:
            The best path, or with `k` a list of paths, best first; fewer than `k` where the text has fewer. For a list of texts a list.

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

        def paths(texts: list[str]) -> list[list[BestPath]]:
            return self._queries.best_paths(self._queries.encode(texts), 1 if k is None else k)

        def best(texts: list[str]) -> list[BestPath]:
            return [ranked[0] for ranked in paths(texts)]

        if k is None:
            only: BestPath | list[BestPath] = one_or_all("text", text, best)
            return only
        found: list[BestPath] | list[list[BestPath]] = one_or_all("text", text, paths)
        return found

    @overload
    def explain(self, text: str, top: int = 3, neighbours: int = 1) -> Explanation: ...

    @overload
    def explain(self, text: Texts, top: int = 3, neighbours: int = 1) -> list[Explanation]: ...

    def explain(self, text: str | Texts, top: int = 3, neighbours: int = 1) -> Explanation | list[Explanation]:
        """Compute surprisal, likely states and their neighbours for each token, given the whole text.

        Args:
            text: The text, or a list of texts.
            top: Number of states of each token.
            neighbours: Number of states before and after each of these.

        Returns:
            The explanation of each token, and the entropy of the state path; for a list of texts a list.

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
        return one_or_all(
            "text", text, lambda texts: self._queries.explanations(self._queries.encode(texts), top, neighbours)
        )

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

    @overload
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
        seed: int | torch.Generator | None = None,
        generator: torch.Generator | None = None,
    ) -> Infilling: ...

    @overload
    def infill(
        self,
        text: Texts,
        *,
        num: int = 5,
        top: int = 5,
        gap: tuple[int, int] | None = None,
        max_gap_tokens: int = MAX_WORD_TOKENS,
        eos: bool = False,
        exclude: Sequence[str] = (),
        unk: bool = False,
        seed: int | torch.Generator | None = None,
        generator: torch.Generator | None = None,
    ) -> list[Infilling]: ...

    def infill(
        self,
        text: str | Texts,
        *,
        num: int = 5,
        top: int = 5,
        gap: tuple[int, int] | None = None,
        max_gap_tokens: int = MAX_WORD_TOKENS,
        eos: bool = False,
        exclude: Sequence[str] = (),
        unk: bool = False,
        seed: int | torch.Generator | None = None,
        generator: torch.Generator | None = None,
    ) -> Infilling | list[Infilling]:
        """Compute what may stand in the gaps of `text`, given the rest of it.

        `___` is a missing word. Where tokens are parts of words it is a word of one to `max_gap_tokens` tokens, without white space
        inside, and probabilities are those of words: sums over all tokens that spell them. `___{2}` is a gap of two tokens, `___{1,4}`
        one of one to four; where their number is open, all numbers have the same prior probability. EOS is never filled in.

        Args:
            text: The text with its gaps, or a list of such texts.
            num: Number of samples.
            top: Number of tokens that are returned for each position, or of words for each gap.
            gap: Smallest and largest number of tokens of a gap `___`; None: a word.
            max_gap_tokens: Largest number of tokens of a word, where tokens are parts of words.
            eos: The text ends after its last word.
            exclude: Tokens that are never filled in.
            unk: Fill in the unknown token too.
            seed: Of the samples: a number, or a `torch.Generator`; None: the global generator of PyTorch.
            generator: The older name of `seed`.

        Returns:
            Probabilities of lengths and tokens, the best filling and `num` samples; for a list of texts a list.

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
        check_count("num", num, at_least=0)
        check_count("top", top)
        draws = as_generator(seed, generator, self.hmm.tables.device)
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
        never = [token for token in (*left_out, self.tokenizer.eos_id, self._never(unk)) if token is not None]

        def filled(one: str) -> Infilling:
            pieces, gaps = split_at_gaps(one, default)
            ids = encode_pieces(self.tokenizer, pieces)
            if eos and self.tokenizer.eos_id is not None:
                ids[-1].append(self.tokenizer.eos_id)
            tokens_asked = [one for one in gaps if one is not None]
            if len(tokens_asked) == len(gaps):
                return infill_text(self.hmm, self.tokenizer, self._opening, ids, tokens_asked, never, num, top, draws)
            words = word_gaps(self.tokenizer, pieces, gaps, max_gap_tokens)
            transition = self._controlled.transition
            found = WordGaps(self.hmm, self.tokenizer, self._opening, ids, words, never, transition)
            return infill_words(found, num, top, draws)

        return one_or_all("text", text, lambda texts: one_by_one(texts, filled))

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
        return self._queries.named([int(state)], top)[int(state)]

    @overload
    def generate(
        self,
        prompt: str = "",
        *,
        max_tokens: int | None = None,
        num: int | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        constraint: Constraint | Automaton | None = None,
        unk: bool = False,
        seed: int | torch.Generator | Sequence[int | torch.Generator] | None = None,
        time_limit: float | None = TIME_LIMIT,
        max_new_tokens: int | None = None,
        num_return_sequences: int | None = None,
        do_sample: bool | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
    ) -> list[str]: ...

    @overload
    def generate(
        self,
        prompt: Texts,
        *,
        max_tokens: int | None = None,
        num: int | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        constraint: Constraint | Automaton | None = None,
        unk: bool = False,
        seed: int | torch.Generator | Sequence[int | torch.Generator] | None = None,
        time_limit: float | None = TIME_LIMIT,
        max_new_tokens: int | None = None,
        num_return_sequences: int | None = None,
        do_sample: bool | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
    ) -> list[list[str]]: ...

    def generate(
        self,
        prompt: str | Texts = "",
        *,
        max_tokens: int | None = None,
        num: int | None = None,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        constraint: Constraint | Automaton | None = None,
        unk: bool = False,
        seed: int | torch.Generator | Sequence[int | torch.Generator] | None = None,
        time_limit: float | None = TIME_LIMIT,
        max_new_tokens: int | None = None,
        num_return_sequences: int | None = None,
        do_sample: bool | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
    ) -> list[str] | list[list[str]]:
        """Draw continuations of `prompt`, each up to EOS or `max_tokens` new tokens.

        With a constraint and temperature 1, they are exact samples of p(continuation | prompt, constraint). The constraint holds at
        any temperature, and with `top_k` or `top_p` too. It is on the new tokens, not on the prompt.

        The unknown token is not drawn. Without a constraint each token is drawn from p(token | text so far, the token is not
        unknown), as `next_tokens` gives it. A constraint is met together with that: p(continuation | prompt, constraint, no token is
        unknown).

        Args:
            prompt: Where the text begins, or a list of such prompts.
            max_tokens: New tokens, at most; None: 50.
            num: Number of texts for each prompt; None: 1.
            temperature: Log-probabilities are divided by it.
            top_k: Draw among the `top_k` most likely next tokens; None: among all.
            top_p: Draw among the fewest most likely next tokens whose total probability reaches `top_p`; None: among all.
            constraint: What the new tokens must satisfy; None: nothing.
            unk: Draw the unknown token too.
            seed: A number, or a `torch.Generator`; a list has one for each prompt, with which a prompt gets the texts that it would
                get alone. None: the global generator of PyTorch.
            time_limit: Seconds of CPU time that compiling the constraint may take; None: any time.
            max_new_tokens: Another name of `max_tokens`, as in transformers.
            num_return_sequences: Another name of `num`, as in transformers.
            do_sample: False: take the most likely next token each time, as `top_k=1` does. True or None: draw.
            generator: The older name of `seed`.

        Returns:
            The texts, prompt included; for a list of prompts a list of them for each.

        Raises:
            ImpossibleConstraintError: No continuation satisfies the constraint.
            ImpossibleTextError: The prompt has probability zero.
            ValueError: A number is out of range, or two arguments contradict each other.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> lm.generate("the dog", do_sample=False)  # the most likely next token each time
            ['the dog sees a bird']
            >>> lm.generate(["the dog", "the cat hears"], top_k=1, max_tokens=1)
            [['the dog sees'], ['the cat hears a']]
            >>> texts = lm.generate(num=20, constraint=vlhmm.contains("garden"), seed=0)
            >>> all("garden" in text for text in texts)
            True
        """
        seed = older_seed(seed, generator)
        wanted = wanted_texts(
            max_tokens=max_tokens,
            num=num,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            max_new_tokens=max_new_tokens,
            num_return_sequences=num_return_sequences,
            do_sample=do_sample,
        )

        def answer(prompts: list[str]) -> list[list[str]]:
            generators = generators_of(seed, len(prompts), self.hmm.tables.device)
            past, never = self._possible_past(prompts), self._never(unk)
            if constraint is None:
                drawn = draw_texts(self.hmm, past, wanted, generators, self.tokenizer.eos_id, never)
            else:
                drawn = self._controlled.sample(
                    constraint,
                    wanted.num,
                    wanted.max_tokens,
                    past,
                    wanted.choice,
                    generators,
                    never=never,
                    time_limit=time_limit,
                )
            texts = self._continued([prompt for prompt in prompts for _ in range(wanted.num)], drawn)
            return [texts[first : first + wanted.num] for first in range(0, len(texts), wanted.num)]

        return one_or_all("prompt", prompt, answer)

    @cached_property
    def _controlled(self) -> ControlledHMM:
        return ControlledHMM(self.hmm, self.tokenizer)

    def _never(self, unk: bool) -> int | None:
        """The token that is not drawn, unless `unk` asks for it."""
        return None if unk else self.tokenizer.undrawn_id

    def _possible_past(self, prompts: list[str]) -> Past:
        past = self._queries.past(prompts)
        impossible = past.begun & past.belief.log_probs.isinf().all(1)
        if bool(impossible.any()):
            prompt = prompts[int(impossible.nonzero()[0, 0])]
            raise ImpossibleTextError(
                f"the model gives {prompt!r} probability zero, so nothing follows it: begin with another text"
            )
        return past

    def _continued(self, prompts: Sequence[str], ids: Sequence[list[int]]) -> list[str]:
        """Each prompt with the tokens after it, up to EOS."""
        before = self.tokenizer.encode_batch(prompts)
        return [self.tokenizer.decode(prompt + self._until_eos(new)) for prompt, new in zip(before, ids, strict=True)]

    def _until_eos(self, ids: list[int]) -> list[int]:
        eos = self.tokenizer.eos_id
        return ids[: ids.index(eos)] if eos is not None and eos in ids else ids

    @property
    def opening(self) -> Belief | None:
        """The belief before the first token of a text; None: the text begins from the start distribution."""
        return self._opening

    @cached_property
    def _opening(self) -> Belief | None:
        """The belief before the first token of a text."""
        eos = self.tokenizer.eos_id
        if eos is None or self.hmm.tables.reset_token is not None:
            return None
        # Directly from the start distribution an EOS would say little: training begins each epoch in the middle of texts, so
        # EOS states that running text never visits are as likely there as the others.
        return belief_at(self.hmm.tables, eos, UNKNOWN_TOKENS)


def _check_parts(model: Any, tokenizer: Any) -> None:
    if isinstance(model, str | Path):
        raise ValueError(
            f"model is {str(model)!r}, but a Model or HMM is needed: a folder is loaded by vlhmm.load({str(model)!r})"
        )
    if isinstance(model, Tables):
        raise ValueError("model is a Tables record, but a Model or HMM is needed: give vlhmm.HMM(tables)")
    if not isinstance(model, Model | HMM):
        raise ValueError(f"model is a {type(model).__name__}, but a Model or HMM is needed")
    if not isinstance(tokenizer, Tokenizer):
        raise ValueError(
            f"tokenizer is a {type(tokenizer).__name__}, but a vlhmm.Tokenizer is needed: vlhmm.Tokenizer.load reads a tokenizer.json"
        )


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
