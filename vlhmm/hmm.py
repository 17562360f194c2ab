"""The public face of tables and inference: any hidden Markov model, exact answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vlhmm.arguments import as_device, check_count, check_generator, check_number, is_integer
from vlhmm.inference import fit, predict, sampling, scan
from vlhmm.inference.entropy import PosteriorEntropy, posterior_entropy
from vlhmm.inference.gather import Batch
from vlhmm.inference.infill import Infilled, infill
from vlhmm.inference.kbest import k_best
from vlhmm.inference.posterior import Counts, Posterior, expected_counts, posterior
from vlhmm.inference.score import Filtered, filter_states, score
from vlhmm.inference.viterbi import Paths, viterbi
from vlhmm.memory import require_memory
from vlhmm.ops.recursion import kernels_run
from vlhmm.precision import Precision
from vlhmm.stream import Stream
from vlhmm.tables import Belief, Tables, TableTransition, convert, dense_support, requires_grad
from vlhmm.validate import (
    as_batch,
    as_missing,
    as_sequences,
    check_belief,
    check_distributions,
    check_dtype,
    check_tables,
    check_window,
)

if TYPE_CHECKING:
    from vlhmm.inference.replay import Replays

MOST_PATHS = 100
"""The largest k of `viterbi`."""


@dataclass(frozen=True)
class Fit:
    """What fitting an HMM gave."""

    hmm: HMM
    log_probs: list[float]
    """log p of all sequences in each iteration, before its step (in mini-batches and for adam: as seen during the pass)."""


class HMM:
    """A hidden Markov model: its tables, and every exact question one may ask of them.

    `tokens` is always (B, T), ids past a sequence's length are ignored. A `belief` carries on where a `filter` left off.
    `window` bounds the memory by cutting long texts into stretches of so many positions; no result depends on it.

    A dense HMM on a GPU keeps its tile as kernels read it and, for shapes of texts that come again, CUDA graphs: a few, in common
    memory, none that takes more than a sixteenth of the GPU's. Without `graphs` it keeps nothing.
    """

    def __init__(self, tables: Tables, *, graphs: bool = True) -> None:
        check_tables(tables)
        self.tables = tables
        self._graphs = graphs

    @classmethod
    def from_probabilities(
        cls,
        start: Any,
        transition: Any,
        emission: Any,
        *,
        reset_token: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        precision: Precision = "bf16",
    ) -> HMM:
        """Any HMM given as array-likes (Z,), (Z, Z), (Z, X): p(z_1), p(z' | z), p(x | z).

        `precision` is that of matrix products on a GPU.
        """
        arrays = check_distributions(start, transition, emission, dtype, device)
        num_states, num_words = arrays.emission.shape
        precise = Tables(
            convert(dense_support(num_words, num_states), device=arrays.start.device),
            arrays.start.log(),
            TableTransition(arrays.transition.log()),
            arrays.emission.log().T.contiguous(),
            reset_token,
            precision,
        )
        return cls(precise.to(dtype=arrays.dtype))

    def __repr__(self) -> str:
        support = self.tables.support
        groups = f" in {support.num_groups:,} groups" if support.num_groups > 1 else ""
        return f"HMM({self.num_states:,} states{groups}, {self.num_words:,} words, {self.tables.dtype}, {self.tables.device})"

    @property
    def num_states(self) -> int:
        return self.tables.num_states

    @property
    def num_words(self) -> int:
        return self.tables.num_words

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> HMM:
        check_dtype(dtype)
        return HMM(self.tables.to(as_device(device), dtype), graphs=self._graphs)

    def log_prob(
        self,
        tokens: Any,
        lengths: Any = None,
        belief: Belief | None = None,
        *,
        window: int | None = None,
        parallel: bool | None = None,
    ) -> Float[Tensor, " B"]:
        """log p(x), -inf where x is impossible."""
        replays = None if parallel else self._replays_for(belief, window)
        if replays is not None and (log_probs := replays.log_prob(tokens, lengths)) is not None:
            return log_probs
        token_log_probs = self.token_log_probs(tokens, lengths, belief, window=window, parallel=parallel)
        # A million terms of one sign lose digits in float32.
        return token_log_probs.double().sum(1).to(token_log_probs.dtype)

    def token_log_probs(
        self,
        tokens: Any,
        lengths: Any = None,
        belief: Belief | None = None,
        *,
        window: int | None = None,
        parallel: bool | None = None,
    ) -> Float[Tensor, "B T"]:
        """log p(x_t | x_<t), 0 past the length. `parallel`: by a scan over time (None: where that pays and no gradient is asked)."""
        replays = None if parallel else self._replays_for(belief, window)
        if replays is not None and (found := replays.token_log_probs(tokens, lengths)) is not None:
            return found
        batch = self._batch(tokens, lengths, belief, window)
        if parallel is None:
            parallel = not requires_grad(self.tables) and scan.pays(self.tables, *batch.tokens.shape)
        if parallel:
            if requires_grad(self.tables):
                raise ValueError(
                    "parallel=True gives no gradient, but a table requires one: use parallel=False, or no_grad"
                )
            return scan.parallel_token_log_probs(self.tables, batch, belief)
        return score(self.tables, batch, belief, window=window).token_log_probs

    def filter(
        self, tokens: Any, lengths: Any = None, belief: Belief | None = None, *, window: int | None = None
    ) -> Filtered:
        """p(z_t | x_<=t) over the states that can emit x_t, and the last belief to carry on with."""
        batch = self._batch(tokens, lengths, belief, window)
        self._require_per_position(batch, "the filtered probabilities")
        return filter_states(self.tables, batch, belief, window)

    def posterior(
        self, tokens: Any, lengths: Any = None, belief: Belief | None = None, *, window: int | None = None
    ) -> Posterior:
        """p(z_t | x) over the states that can emit x_t."""
        replays = self._replays_for(belief, window)
        if replays is not None and (found := replays.posterior(tokens, lengths)) is not None:
            return found
        batch = self._batch(tokens, lengths, belief, window)
        self._require_per_position(batch, "the posterior")
        return posterior(self.tables, batch, belief, window)

    def posterior_entropy(
        self, tokens: Any, lengths: Any = None, belief: Belief | None = None, *, window: int | None = None
    ) -> PosteriorEntropy:
        """H(z_t | x) at each position, and H(z | x) of the whole path."""
        batch = self._batch(tokens, lengths, belief, window)
        self._require_per_position(batch, "the posterior")
        return posterior_entropy(self.tables, batch, belief, window)

    def viterbi(
        self,
        tokens: Any,
        lengths: Any = None,
        k: int = 1,
        belief: Belief | None = None,
        *,
        window: int | None = None,
    ) -> Paths:
        """The k most likely state paths, best first, each with its log p(x, z)."""
        if not is_integer(k) or not 1 <= k <= MOST_PATHS:
            raise ValueError(f"k is {k}, but it must be between 1 and {MOST_PATHS} paths")
        replays = self._replays_for(belief, window) if k == 1 else None
        if replays is not None and (found := replays.best_path(tokens, lengths)) is not None:
            return found
        batch = self._batch(tokens, lengths, belief, window)
        if k == 1:
            return viterbi(self.tables, batch, belief, window)
        return k_best(self.tables, batch, k, belief, window)

    def stream(self, num: int = 1, belief: Belief | None = None) -> Stream:
        """`num` texts that are fed bit by bit, each begun from the start or from `belief` (of one row: the same for all)."""
        return Stream(self.tables, num, belief)

    def infill(
        self,
        tokens: Any,
        missing: Any,
        lengths: Any = None,
        belief: Belief | None = None,
        *,
        num: int = 1,
        exclude: Sequence[int] = (),
        generator: torch.Generator | None = None,
    ) -> Infilled:
        """p(missing tokens | the rest): distributions, `num` joint samples, and the best filling.

        `missing` is a (B, T) mask; what `tokens` has there is ignored. Tokens in `exclude` are never filled in: the
        distributions are given that.
        """
        check_count("num", num, at_least=0)
        check_generator(generator, self.tables.device)
        batch, gaps = as_missing(tokens, missing, lengths, self.tables)
        check_belief(belief, batch, self.tables)
        return infill(self.tables, batch, gaps, num, belief, self._allowed(exclude), generator)

    def expected_counts(self, tokens: Any, lengths: Any = None) -> Counts:
        """E[how often each start, transition and emission is used | x], summed over the batch."""
        if self._replays is not None and (found := self._replays.expected_counts(tokens, lengths)) is not None:
            return found
        return expected_counts(self.tables, as_batch(tokens, lengths, self.tables))[0]

    def next_token_probs(self, belief: Belief | None = None) -> Float[Tensor, "B X"]:
        """p(x_t+1 | x_<=t) over the vocabulary; without a belief p(x_1), with B = 1."""
        check_belief(belief, None, self.tables)
        return predict.next_token_probs(self.tables, belief)

    def sample(self, num: int, length: int, generator: torch.Generator | None = None) -> sampling.Sample:
        """Texts with their states, from the start distribution on."""
        check_count("num", num)
        check_count("length", length)
        check_generator(generator, self.tables.device)
        return sampling.sample(self.tables, num, length, generator)

    def sample_posterior(
        self,
        tokens: Any,
        num: int,
        lengths: Any = None,
        generator: torch.Generator | None = None,
        *,
        window: int | None = None,
    ) -> Int[Tensor, "B N T"]:
        """State paths z ~ p(z | x), -1 past the length."""
        check_count("num", num)
        check_generator(generator, self.tables.device)
        batch = self._batch(tokens, lengths, None, window)
        return sampling.sample_posterior(self.tables, batch, num, generator, window)

    def fit(
        self,
        sequences: Sequence[Any] | Tensor | NDArray[Any],
        method: Literal["em", "adam"] = "em",
        *,
        lengths: Any = None,
        iterations: int = 100,
        tolerance: float = 1e-4,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        generator: torch.Generator | None = None,
    ) -> Fit:
        """An HMM fitted to sequences of token ids, begun from this one; this one stays as it is.

        `em` is Baum-Welch; with `batch_size` (sequences) it steps after each mini-batch by theta <- rate new + (1 - rate) theta, where
        `learning_rate` is the rate (0.1 if not given). `adam` is gradient ascent (learning rate 0.05 if not given). Stops after
        `iterations`, or when log p per token rises by less than `tolerance`.
        """
        data = as_sequences(sequences, lengths, self.tables)
        check_count("iterations", iterations)
        check_number("tolerance", tolerance)
        check_generator(generator, torch.device("cpu"))
        if learning_rate is not None:
            check_number("learning_rate", learning_rate)
        if method == "em" and batch_size is None:
            steps = fit.em_steps(self.tables, data)
        elif method == "em":
            check_count("batch_size", batch_size)
            rate = 0.1 if learning_rate is None else learning_rate
            if not 0 < rate <= 1:
                raise ValueError(f"learning_rate is {rate}, but mini-batch Baum-Welch needs one in (0, 1]")
            steps = fit.minibatch_em_steps(self.tables, data, batch_size or len(data), rate, generator)
        elif method == "adam":
            steps = fit.adam_steps(self.tables, data, 0.05 if learning_rate is None else learning_rate)
        else:
            raise ValueError(f"method is {method!r}, but it must be 'em' or 'adam'")
        num_tokens = sum(len(sequence) for sequence in data)
        tables, log_probs = self.tables, list[float]()
        for step_tables, log_prob in islice(steps, iterations):
            tables = step_tables
            log_probs.append(log_prob)
            if len(log_probs) > 1 and (log_probs[-1] - log_probs[-2]) / num_tokens < tolerance:
                break
        return Fit(HMM(tables, graphs=self._graphs), log_probs)

    def with_reset_token(self, reset_token: int | None) -> HMM:
        """The same tables with another convention for what follows `reset_token`."""
        return HMM(replace(self.tables, reset_token=reset_token), graphs=self._graphs)

    def _allowed(self, exclude: Sequence[int]) -> Bool[Tensor, " X"]:
        allowed = torch.ones(self.num_words, dtype=torch.bool)
        for token in exclude:
            if not is_integer(token) or not 0 <= token < self.num_words:
                raise ValueError(f"exclude has {token!r}, but ids must be between 0 and {self.num_words - 1}")
            allowed[token] = False
        return allowed.to(self.tables.device)

    @cached_property
    def _replays(self) -> Replays | None:
        if not (self._graphs and self.tables.support.dense and kernels_run(self.tables.dtype, self.tables.device)):
            return None
        from vlhmm.inference.replay import Replays

        return Replays(self.tables)

    def _replays_for(self, belief: Belief | None, window: int | None) -> Replays | None:
        """Graphs know neither beliefs nor windows."""
        return self._replays if belief is None and window is None else None

    def _batch(self, tokens: Any, lengths: Any, belief: Belief | None, window: int | None) -> Batch:
        batch = as_batch(tokens, lengths, self.tables)
        check_belief(belief, batch, self.tables)
        check_window(window)
        return batch

    def _require_per_position(self, batch: Batch, what: str) -> None:
        size, num_positions = batch.tokens.shape
        states = self.tables.support.states_per_word
        require_memory(
            size * num_positions * states * self.tables.log_emission.element_size(),
            f"{what} of {size} x {num_positions} tokens over {states} states each",
            "ask for fewer tokens at a time and carry the belief on",
            self.tables.device,
        )
