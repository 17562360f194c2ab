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
from vlhmm.checkpoint import load_model, save_model
from vlhmm.control.automaton import Automaton
from vlhmm.control.constraints import Constraint
from vlhmm.control.controlled import ControlledHMM
from vlhmm.control.generate import Choice
from vlhmm.data import Tokenizer, Tokens
from vlhmm.evaluate import Evaluation, HMMScorer, evaluate
from vlhmm.hmm import HMM
from vlhmm.inference.errors import ImpossibleTextError
from vlhmm.inference.sampling import StateWords, require_drawn
from vlhmm.models import Model
from vlhmm.precision import float32_products
from vlhmm.tables import Belief
from vlhmm.text.answers import BestPath, BestText, Explanation, Infilling, NamedState, Score, TokenPosterior, TokenScore
from vlhmm.text.explain import explain
from vlhmm.text.infilling import infill_text
from vlhmm.text.pieces import Gap, encode_pieces, split_at_gaps
from vlhmm.text.stream import TextStream


class LanguageModel:
    """A tokenizer and an HMM over its tokens.

    Text begins after an EOS where the model's states are carried over EOS (and the tokenizer has one), else from the start
    distribution: in both cases as a new line begins in training.
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

    @cached_property
    def hmm(self) -> HMM:
        """The model's tables, made once. After further training make a new LanguageModel."""
        with torch.no_grad(), float32_products("highest", self.model.group_of_word.device):
            return HMM(self.model.tables().detach())

    @cached_property
    def _state_words(self) -> StateWords:
        return StateWords(self.hmm.tables)

    def save(self, folder: str | Path) -> None:
        save_model(Path(folder), self.model, self.tokenizer, self.about)

    def perplexity(self, tokens: Tokens) -> float:
        """Per token, as one exact stream."""
        return self.evaluate(tokens).perplexity

    def evaluate(self, tokens: Tokens, streams: int = 1) -> Evaluation:
        return evaluate(HMMScorer(self.hmm.tables), tokens, self.tokenizer, streams=streams)

    def score(self, text: str, *, eos: bool = False) -> Score:
        """log p of every token given those before it; `eos` scores the end of the line too."""
        ids = self._encode(text, eos)
        with torch.no_grad():
            log_probs = self.hmm.token_log_probs(ids, belief=self._opening)
        names = [self.tokenizer.token(token) for token in ids[0].tolist()]
        return Score([TokenScore(name, value) for name, value in zip(names, log_probs[0].tolist(), strict=True)])

    def next_tokens(self, text: str = "", top: int = 10) -> list[tuple[str, float]]:
        """The most likely next tokens after `text`, with their probabilities."""
        check_count("top", top)
        probs = self.hmm.next_token_probs(self._belief_after(text))[0]
        best = probs.topk(min(top, probs.shape[0]))
        return [
            (self.tokenizer.token(token), prob)
            for prob, token in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]

    def posterior(self, text: str, top: int = 3) -> list[TokenPosterior]:
        """For each token the states it most likely came from, given the whole text."""
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
        """The most likely state path of `text`; with `k` the k most likely ones, best first, fewer where the text has fewer."""
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
        """Each token's surprise and likeliest states, and the states before and after these, all given the whole text."""
        check_count("top", top)
        check_count("neighbours", neighbours)
        ids = self._encode(text)
        return explain(self.hmm, ids, self._opening, top, neighbours, self.tokenizer.token, self.name_state)

    def stream(self) -> TextStream:
        """A text that is fed bit by bit. For many at once: `lm.hmm.stream(num, belief=lm.opening)`, fed with token ids."""
        return TextStream(self.hmm.stream(belief=self._opening), self.tokenizer)

    def infill(
        self,
        text: str,
        *,
        num: int = 5,
        top: int = 5,
        gap: tuple[int, int] = (1, 1),
        eos: bool = False,
        exclude: Sequence[str] = (),
        generator: torch.Generator | None = None,
    ) -> Infilling:
        """What may stand in the gaps of `text`, given all the rest; `num` samples and the `top` tokens of each position.

        ___ is a gap of `gap[0]` to `gap[1]` tokens, ___{2} of two, ___{1,4} of one to four. Where the number of tokens is open,
        each is equally likely beforehand, and afterwards as likely as p(text with so many tokens missing). EOS and the tokens
        in `exclude` are never filled in; with `eos` the text ends after its last word.
        """
        check_text("text", text)
        check_count("num", num, at_least=0)
        check_count("top", top)
        check_generator(generator, self.hmm.tables.device)
        if not isinstance(gap, Sequence) or len(gap) != 2:
            raise ValueError(f"gap is {gap!r}, but two numbers of tokens are needed, the smaller first: (1, 4)")
        for number in gap:
            check_count("a bound of gap", number, at_least=0)
        if isinstance(exclude, str):
            raise ValueError(f"exclude is the text {exclude!r}, but a sequence of tokens is needed: [{exclude!r}]")
        left_out = [self.tokenizer.token_id(token) for token in exclude]
        if None in left_out:
            raise ValueError(
                f"exclude has {exclude[left_out.index(None)]!r}, which is none of the {self.tokenizer.vocab_size} tokens"
            )
        pieces, gaps = split_at_gaps(text, Gap(*gap))
        ids = encode_pieces(self.tokenizer, pieces)
        if eos and self.tokenizer.eos_id is not None:
            ids[-1].append(self.tokenizer.eos_id)
        never = [token for token in (*left_out, self.tokenizer.eos_id) if token is not None]
        return infill_text(self.hmm, self.tokenizer, self._opening, ids, gaps, never, num, top, generator)

    def name_state(self, state: int, top: int = 5) -> NamedState:
        """A state with the words it emits most."""
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
        generator: torch.Generator | None = None,
    ) -> list[str]:
        """`num` continuations of `prompt`, prompt included, each up to EOS or `max_tokens` new tokens.

        With a `constraint` on the new tokens, exact samples of p(continuation | constraint) at temperature 1; it holds at
        any temperature, and with `top_k` or `top_p` too.
        """
        check_text("prompt", prompt)
        check_count("max_tokens", max_tokens)
        check_count("num", num)
        check_generator(generator, self.hmm.tables.device)
        choice = Choice(temperature, top_k, top_p)
        belief = self._possible_belief_after(prompt)
        if constraint is None:
            drawn = self._sample(num, max_tokens, belief, choice, generator)
        else:
            drawn = self._controlled.sample(constraint, num, max_tokens, belief, choice, generator)
        return [self._continued(prompt, row) for row in drawn]

    def _sample(
        self, num: int, max_tokens: int, belief: Belief | None, choice: Choice, generator: torch.Generator | None
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
            log_probs = self.hmm.next_token_probs(belief).expand(len(going), -1).log()
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
        self, prompt: str = "", *, max_tokens: int = 50, constraint: Constraint | Automaton | None = None
    ) -> BestText:
        """The continuation of `prompt` that is likeliest together with its states, up to EOS or `max_tokens` new tokens."""
        check_text("prompt", prompt)
        check_count("max_tokens", max_tokens)
        best = self._controlled.best(constraint, max_tokens, self._possible_belief_after(prompt))
        return BestText(self._continued(prompt, best.tokens), best.log_prob)

    def constraint_probability(
        self, prefix: str, constraint: Constraint | Automaton, length: int, *, until_eos: bool = False
    ) -> float:
        """P(the next `length` tokens after `prefix` satisfy `constraint`), EOS not among them.

        With `until_eos`: P(EOS comes within `length` tokens, and what comes before it satisfies the constraint).
        """
        check_text("prefix", prefix)
        check_count("length", length)
        belief = self._possible_belief_after(prefix)
        return self._controlled.probability(constraint, length, belief, until_eos=until_eos)

    @cached_property
    def _controlled(self) -> ControlledHMM:
        return ControlledHMM(self.hmm, self.tokenizer)

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
        """What is believed before the first token of a text; None: its states begin from the start distribution."""
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


def load(folder: str | Path, device: torch.device | str = "cpu") -> LanguageModel:
    """The language model that `save` or a training run left in `folder`."""
    saved = load_model(folder, as_device(device) or "cpu")
    return LanguageModel(saved.model, saved.tokenizer, saved.config["about"])
