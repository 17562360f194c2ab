"""The public face of tables and inference: any hidden Markov model, exact answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vlhmm.arguments import as_device, as_generator, check_count, check_number, is_integer
from vlhmm.fitting import FitSettings, Observed, fit_given, num_parameters
from vlhmm.inference import predict, sampling, scan
from vlhmm.inference.entropy import PosteriorEntropy, posterior_entropy
from vlhmm.inference.evidence import NO_TOKEN, after_evidence, before_tokens, evidence_tables, over_all_states
from vlhmm.inference.gather import Batch
from vlhmm.inference.infill import Infilled, infill, without_batch
from vlhmm.inference.kbest import k_best
from vlhmm.inference.posterior import Counts, Posterior, expected_counts, posterior
from vlhmm.inference.predict import emission_probs, transition_probs
from vlhmm.inference.score import Filtered, filter_states, score
from vlhmm.inference.small import SmallQueries, small_queries
from vlhmm.inference.viterbi import Paths, viterbi
from vlhmm.ops.recursion import kernels_run
from vlhmm.precision import Precision
from vlhmm.records import convert, requires_grad
from vlhmm.sequences import Given, padded, read, require_per_position
from vlhmm.stream import Stream
from vlhmm.support import dense_support
from vlhmm.tables import Belief, Tables
from vlhmm.transitions import TableTransition
from vlhmm.validate import (
    as_missing,
    check_belief,
    check_distributions,
    check_dtype,
    check_tables,
    check_window,
)

if TYPE_CHECKING:
    from vlhmm.inference.replay import Replays

MAX_PATHS = 100
"""The largest k of `viterbi`."""


@dataclass(frozen=True)
class Fit:
    """The result of `HMM.fit`: the fitted HMM, its log-likelihoods and what model selection asks for.

    Example:
        >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
        >>> fitted = hmm.fit([[0, 1, 2, 2], [2, 0]], iterations=3)
        >>> fitted.hmm
        HMM(2 states, 3 words, torch.float32, cpu)
        >>> [round(log_prob, 3) for log_prob in fitted.log_probs]
        [-6.778, -6.044, -6.028]
        >>> fitted.converged, fitted.num_parameters, round(fitted.aic, 1), round(fitted.bic, 1)
        (False, 7, 26.0, 24.6)
    """

    hmm: HMM
    """The fitted HMM."""
    log_probs: list[float]
    """log p of all sequences in each iteration, before its update (for mini-batches and adam: as seen during the pass)."""
    log_prob: float
    """log p of all sequences, and of what was known of their states, under the fitted HMM."""
    converged: bool
    """Whether fitting ended because log p rose by less than the tolerance."""
    num_parameters: int
    """Free parameters that were fitted: of each distribution its outcomes that are neither 0 nor fixed, less one."""
    num_tokens: int
    """Number of tokens in all sequences."""
    restart_log_probs: tuple[float, ...] = ()
    """`log_prob` of each restart; the first is that from the parameters of the HMM itself. Empty without restarts."""

    def __repr__(self) -> str:
        return (
            f"Fit({self.hmm!r}, log_prob={self.log_prob:.6g}, iterations={len(self.log_probs)}, "
            f"converged={self.converged}, num_parameters={self.num_parameters:,})"
        )

    @property
    def aic(self) -> float:
        """Akaike's criterion, 2 num_parameters - 2 log p: smaller is better."""
        return 2 * self.num_parameters - 2 * self.log_prob

    @property
    def bic(self) -> float:
        """The Bayesian criterion, num_parameters log(num_tokens) - 2 log p: smaller is better."""
        return self.num_parameters * math.log(self.num_tokens) - 2 * self.log_prob


class HMM:
    """A hidden Markov model, p(x, z) = p(z_1) p(x_1 | z_1) prod_t p(z_t | z_t-1) p(x_t | z_t), with exact inference.

    `tokens` is an array (B, T) of token ids. `lengths` (B,) gives the length of each sequence; ids past it are ignored. A list of
    sequences of different lengths needs no `lengths`. One sequence (T,) is answered without the batch axis. A `belief` continues a
    text: it is what `filter` returned for the text before. `window` bounds the memory: long texts are processed in chunks of that
    many positions. No result depends on it.

    Soft evidence, `log_likelihoods`, takes the place of tokens: log p(what is seen at t | z) of every state z, (B, T, Z), (T, Z) for
    one sequence, or a list of such. It comes from any emission, a Gaussian or a network; a constant added at a position changes
    no posterior. Then x_t stands for what was seen at t, and the reset token has no effect.

    A dense HMM on a GPU caches its transition in the layout of the kernels, and CUDA graphs for shapes that occur again. The
    graphs share one memory pool, and none takes more than a sixteenth of the GPU's memory.

    Args:
        tables: The parameters. `HMM.from_probabilities` makes them from arrays, `Model.tables` from a trained model.
        graphs: Cache CUDA graphs of queries. Without it nothing is cached on the GPU.

    Attributes:
        tables: The parameters, a `Tables` record.

    Raises:
        ValueError: Shapes, dtypes or devices of the tables do not agree, or a number is no log-probability.

    Example:
        >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
        >>> hmm
        HMM(2 states, 3 words, torch.float32, cpu)
        >>> hmm.log_prob([[0, 1, 2, 2], [2, 0, 0, 0]], lengths=[4, 2])
        tensor([-4.3157, -2.4628])
    """

    def __init__(self, tables: Tables, *, graphs: bool = True) -> None:
        check_tables(tables)
        self._hold(tables, graphs)

    def _hold(self, tables: Tables, graphs: bool) -> None:
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
        precision: Precision = "highest",
    ) -> HMM:
        """Make a dense HMM from p(z_1), p(z' | z) and p(x | z).

        Args:
            start: Array-like (Z,), p(z_1).
            transition: Array-like (Z, Z), p(z' | z) in row z.
            emission: Array-like (Z, X), p(x | z) in row z.
            reset_token: After this token the next state is drawn from `start`. None: never.
            dtype: float32 or float64; None: float64 if one of the arrays is a tensor or NumPy array of float64, else float32.
            device: Where the tables are stored; None: where the arrays are.
            precision: What matrix products on a GPU read: highest (float32), tf32 or bf16, which is the fastest. A CPU computes in
                `dtype`.

        Returns:
            The HMM.

        Raises:
            ValueError: Shapes do not agree, a number is negative or NaN, or a row does not sum to 1.

        Example:
            >>> vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            HMM(2 states, 3 words, torch.float32, cpu)
            >>> vlhmm.HMM.from_probabilities([0.6, 0.6], [[0.7, 0.3], [0.4, 0.6]], [[0.9, 0.1], [0.2, 0.8]])
            Traceback (most recent call last):
                ...
            ValueError: start: row 0 sums to 1.2, but a distribution sums to 1 (within 1e-06): divide each row by its sum
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

    @classmethod
    def random(
        cls,
        num_states: int,
        num_words: int,
        seed: int | torch.Generator = 0,
        *,
        concentration: float = 1.0,
        reset_token: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        precision: Precision = "highest",
    ) -> HMM:
        """Make a dense HMM whose distributions are drawn from a symmetric Dirichlet distribution.

        Args:
            num_states: Number of states, Z.
            num_words: Size of the vocabulary, X.
            seed: A number, or a `torch.Generator` on the CPU.
            concentration: Of the Dirichlet distribution: 1 draws uniformly, less makes few entries large, more makes all alike.
            reset_token: After this token the next state is drawn from the start distribution. None: never.
            dtype: float32 or float64; None: float32.
            device: Where the tables are stored; None: on the CPU.
            precision: What matrix products on a GPU read, as in `from_probabilities`.

        Returns:
            The HMM; the same for the same seed on every device.

        Raises:
            ValueError: A number is out of range, or the tables do not fit in memory.

        Example:
            >>> hmm = vlhmm.HMM.random(num_states=3, num_words=5, seed=0)
            >>> hmm
            HMM(3 states, 5 words, torch.float32, cpu)
            >>> torch.allclose(hmm.transition.sum(1), torch.ones(3))
            True
        """
        check_count("num_states", num_states)
        check_count("num_words", num_words)
        check_number("concentration", concentration)
        if seed is None:
            raise ValueError("seed is None, but an integer or a torch.Generator is needed")
        drawn = as_generator(seed, None, torch.device("cpu"))
        start, transition, emission = sampling.dirichlet_tables(num_states, num_words, concentration, drawn)
        return cls.from_probabilities(
            start,
            transition,
            emission,
            reset_token=reset_token,
            dtype=dtype or torch.float32,
            device=device,
            precision=precision,
        )

    def save(self, path: str | Path) -> None:
        """Write the HMM to one safetensors file, whole or not at all, with a checksum.

        Args:
            path: The file; one that exists is replaced, and folders are made.

        Raises:
            ValueError: `path` is a folder.

        Example:
            >>> hmm = vlhmm.HMM.random(num_states=3, num_words=5)
            >>> hmm.save("hmm.safetensors")
            >>> torch.equal(vlhmm.HMM.load("hmm.safetensors").start, hmm.start)
            True
        """
        from vlhmm.hmm_file import write_hmm

        write_hmm(path, self.tables)

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str | None = None, *, verify: bool | None = None) -> HMM:
        """Load what `save` wrote.

        Args:
            path: The file.
            device: Where the tables are stored; None: on the CPU.
            verify: Compare the file with its checksum; None: unless the environment variable `VLHMM_VERIFY` is 0.

        Returns:
            The HMM as it was saved. The normaliser of a softmax transition is computed from its features, not read.

        Raises:
            ValueError: The file is missing or damaged, holds no HMM, or is of a later version.

        Example:
            >>> vlhmm.HMM.random(num_states=3, num_words=5, seed=1).save("hmm.safetensors")
            >>> vlhmm.HMM.load("hmm.safetensors")
            HMM(3 states, 5 words, torch.float32, cpu)
        """
        from vlhmm.hmm_file import read_hmm, whole_hmm

        tables = read_hmm(path, verify, as_device(device))
        with whole_hmm(path):
            return hmm_of_normalized(tables)

    def __repr__(self) -> str:
        support = self.tables.support
        groups = f" in {support.num_groups:,} groups" if support.num_groups > 1 else ""
        return f"HMM({self.num_states:,} states{groups}, {self.num_words:,} words, {self.tables.dtype}, {self.tables.device})"

    @property
    def num_states(self) -> int:
        """Number of states, Z."""
        return self.tables.num_states

    @property
    def num_words(self) -> int:
        """Size of the vocabulary, X."""
        return self.tables.num_words

    @property
    def start(self) -> Float[Tensor, " Z"]:
        """p(z_1)."""
        return self.tables.log_start.exp()

    @property
    def transition(self) -> Float[Tensor, "Z Z"]:
        """p(z' | z) in row z, made anew each time; refused where it does not fit in memory."""
        return transition_probs(self.tables)

    @property
    def emission(self) -> Float[Tensor, "Z X"]:
        """p(x | z) in row z, 0 for words that a state cannot emit, made anew each time; refused where it does not fit in memory."""
        return emission_probs(self.tables)

    @property
    def num_parameters(self) -> int:
        """Number of free parameters: of each stored distribution its outcomes that are not 0, less one; of features all."""
        return num_parameters(self.tables)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> HMM:
        """Return a copy on another device or in another dtype.

        Args:
            device: The new device; None: unchanged.
            dtype: float32 or float64; None: unchanged.

        Returns:
            A new HMM; this one is unchanged.

        Raises:
            ValueError: `dtype` is neither float32 nor float64.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> hmm.to(dtype=torch.float64)
            HMM(2 states, 3 words, torch.float64, cpu)
        """
        check_dtype(dtype)
        return hmm_of_normalized(self.tables.to(as_device(device), dtype), graphs=self._graphs)

    def with_precision(self, precision: Precision) -> HMM:
        """Return the same HMM with queries in another precision on a GPU; the default is float32.

        Args:
            precision: What matrix products read: highest (float32), tf32 or bf16. log p of 64 tokens is off by at most 1e-6, 3e-5
                or 3e-4, relative. On a CPU nothing changes.

        Returns:
            A new HMM; this one is unchanged.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> quick = hmm.with_precision("bf16")
            >>> quick.tables.precision
            'bf16'
        """
        return hmm_of_normalized(self.tables.with_precision(precision), graphs=self._graphs)

    def log_prob(
        self,
        tokens: Any = None,
        lengths: Any = None,
        belief: Belief | None = None,
        *,
        log_likelihoods: Any = None,
        window: int | None = None,
        parallel: bool | None = None,
    ) -> Float[Tensor, " *B"]:
        """Compute log p(x) of each sequence.

        Args:
            tokens: Token ids (B, T).
            lengths: Length of each sequence (B,); None: all are T long.
            belief: What `filter` returned for the text before; then the result is log p(x | the text before).
            log_likelihoods: In place of tokens: log p(what is seen at t | z) of every state z, (B, T, Z).
            window: Positions processed at a time, to bound memory; None: chosen automatically.
            parallel: Scan over time in parallel, which gives no gradient. None: where it is faster and no gradient is needed.

        Returns:
            log p(x), (B,); -inf where a sequence is impossible. Differentiable in the tables.

        Raises:
            ValueError: A token id, a log-likelihood or a length is out of range, or `parallel=True` while a table requires a gradient.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> hmm.log_prob([[0, 1, 2, 2], [2, 0, 0, 0]], lengths=[4, 2])
            tensor([-4.3157, -2.4628])
        """
        given = read(tokens, lengths, log_likelihoods)
        prepared = None if parallel else self._prepared_for(given, belief, window)
        if prepared is not None and (found := prepared.log_prob(given.tokens, given.lengths)) is not None:
            return given.shaped(found)
        token_log_probs = self._token_log_probs(given, belief, window, parallel)
        # A million terms of one sign lose digits in float32.
        return given.shaped(token_log_probs.double().sum(1).to(token_log_probs.dtype))

    def token_log_probs(
        self,
        tokens: Any = None,
        lengths: Any = None,
        belief: Belief | None = None,
        *,
        log_likelihoods: Any = None,
        window: int | None = None,
        parallel: bool | None = None,
    ) -> Float[Tensor, "*B T"]:
        """Compute log p(x_t | x_<t) at each position.

        Args:
            tokens: Token ids (B, T).
            lengths: Length of each sequence (B,); None: all are T long.
            belief: What `filter` returned for the text before.
            log_likelihoods: In place of tokens: log p(what is seen at t | z) of every state z, (B, T, Z).
            window: Positions processed at a time, to bound memory; None: chosen automatically.
            parallel: Scan over time in parallel, which gives no gradient. None: where it is faster and no gradient is needed.

        Returns:
            log p(x_t | x_<t), (B, T), 0 past the length. Differentiable in the tables.

        Raises:
            ValueError: A token id, a log-likelihood or a length is out of range, or `parallel=True` while a table requires a gradient.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> hmm.token_log_probs([[0, 1, 2, 2], [2, 0, 0, 0]], lengths=[4, 2])
            tensor([[-1.0788, -1.0038, -1.2338, -0.9992],
                    [-1.2040, -1.2588,  0.0000,  0.0000]])
        """
        given = read(tokens, lengths, log_likelihoods)
        return given.shaped(self._token_log_probs(given, belief, window, parallel))

    def _token_log_probs(
        self, given: Given, belief: Belief | None, window: int | None, parallel: bool | None
    ) -> Float[Tensor, "B T"]:
        prepared = None if parallel else self._prepared_for(given, belief, window)
        if prepared is not None and (found := prepared.token_log_probs(given.tokens, given.lengths)) is not None:
            return found
        tables, batch, belief = self._asked(given, belief, window)
        with_gradient = requires_grad(self.tables) or given.requires_grad
        if parallel is None:
            parallel = not with_gradient and scan.pays(tables, *batch.tokens.shape)
        if parallel:
            if with_gradient:
                raise ValueError(
                    "parallel=True gives no gradient, but a table or log_likelihoods require one: use parallel=False, or no_grad"
                )
            return scan.parallel_token_log_probs(tables, batch, belief)
        return score(tables, batch, belief, window=window).token_log_probs

    def filter(
        self,
        tokens: Any = None,
        lengths: Any = None,
        belief: Belief | None = None,
        *,
        log_likelihoods: Any = None,
        window: int | None = None,
    ) -> Filtered:
        """Compute p(z_t | x_<=t) over the states that can emit x_t, and the belief after the last token.

        Args:
            tokens: Token ids (B, T).
            lengths: Length of each sequence (B,); None: all are T long.
            belief: What an earlier `filter` returned for the text before.
            log_likelihoods: In place of tokens: log p(what is seen at t | z) of every state z, (B, T, Z).
            window: Positions processed at a time, to bound memory; None: chosen automatically.

        Returns:
            Probabilities, states and the belief with which the text can be continued.

        Raises:
            ValueError: A token id, a log-likelihood or a length is out of range, or the result does not fit in memory.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> filtered = hmm.filter([[0, 1]])
            >>> filtered.probs
            tensor([[[0.8824, 0.1176],
                     [0.7255, 0.2745]]])
            >>> hmm.log_prob([[2, 2]], belief=filtered.belief)  # log p(2, 2 | 0, 1)
            tensor([-2.2330])
        """
        given = read(tokens, lengths, log_likelihoods)
        tables, batch, belief = self._asked(given, belief, window)
        require_per_position(tables, batch, "the filtered probabilities")
        filtered = filter_states(tables, batch, belief, window)
        if tables is not self.tables:
            filtered = replace(filtered, belief=after_evidence(filtered.belief))
        return given.shaped(filtered)

    def posterior(
        self,
        tokens: Any = None,
        lengths: Any = None,
        belief: Belief | None = None,
        *,
        log_likelihoods: Any = None,
        window: int | None = None,
    ) -> Posterior:
        """Compute p(z_t | x) over the states that can emit x_t (forward-backward).

        Args:
            tokens: Token ids (B, T).
            lengths: Length of each sequence (B,); None: all are T long.
            belief: What `filter` returned for the text before.
            log_likelihoods: In place of tokens: log p(what is seen at t | z) of every state z, (B, T, Z).
            window: Positions processed at a time, to bound memory; None: chosen automatically.

        Returns:
            Probabilities and states at each position.

        Raises:
            ValueError: A token id, a log-likelihood or a length is out of range, or the result does not fit in memory.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> hmm.posterior([[0, 1, 2]]).probs
            tensor([[[0.8765, 0.1235],
                     [0.6229, 0.3771],
                     [0.2121, 0.7879]]])
        """
        given = read(tokens, lengths, log_likelihoods)
        prepared = self._prepared_for(given, belief, window)
        if prepared is not None and (found := prepared.posterior(given.tokens, given.lengths)) is not None:
            return given.shaped(found)
        tables, batch, belief = self._asked(given, belief, window)
        require_per_position(tables, batch, "the posterior")
        return given.shaped(posterior(tables, batch, belief, window))

    def posterior_entropy(
        self,
        tokens: Any = None,
        lengths: Any = None,
        belief: Belief | None = None,
        *,
        log_likelihoods: Any = None,
        window: int | None = None,
    ) -> PosteriorEntropy:
        """Compute H(z_t | x) at each position and H(z_1, ..., z_T | x) of the whole path.

        Args:
            tokens: Token ids (B, T).
            lengths: Length of each sequence (B,); None: all are T long.
            belief: What `filter` returned for the text before.
            log_likelihoods: In place of tokens: log p(what is seen at t | z) of every state z, (B, T, Z).
            window: Positions processed at a time, to bound memory; None: chosen automatically.

        Returns:
            Both entropies, in nats.

        Raises:
            ImpossibleTextError: A sequence has probability zero.
            ValueError: A token id, a log-likelihood or a length is out of range, or the posterior does not fit in memory.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> entropy = hmm.posterior_entropy([[0, 1, 2]])
            >>> entropy.position
            tensor([[0.3738, 0.6626, 0.5168]])
            >>> entropy.path
            tensor([1.5079])
        """
        given = read(tokens, lengths, log_likelihoods)
        tables, batch, belief = self._asked(given, belief, window)
        require_per_position(tables, batch, "the posterior")
        return given.shaped(posterior_entropy(tables, batch, belief, window))

    def viterbi(
        self,
        tokens: Any = None,
        lengths: Any = None,
        k: int = 1,
        belief: Belief | None = None,
        *,
        log_likelihoods: Any = None,
        window: int | None = None,
    ) -> Paths:
        """Find the k state paths z with the largest p(x, z).

        Args:
            tokens: Token ids (B, T).
            lengths: Length of each sequence (B,); None: all are T long.
            k: Number of paths, 1 to 100.
            belief: What `filter` returned for the text before. Its last state is summed out; it is no part of a path.
            log_likelihoods: In place of tokens: log p(what is seen at t | z) of every state z, (B, T, Z).
            window: Positions processed at a time, to bound memory; None: chosen automatically.

        Returns:
            Distinct paths, best first, each with its log p(x, z).

        Raises:
            ImpossibleTextError: A sequence has probability zero.
            ValueError: A token id, a length or `k` is out of range.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> paths = hmm.viterbi([[0, 1, 2]], k=2)
            >>> paths.states
            tensor([[[0, 0, 1],
                     [0, 1, 1]]])
            >>> paths.log_prob
            tensor([[-4.1917, -4.6336]])
        """
        if not is_integer(k) or not 1 <= k <= MAX_PATHS:
            raise ValueError(f"k is {k}, but it must be between 1 and {MAX_PATHS} paths")
        given = read(tokens, lengths, log_likelihoods)
        prepared = self._prepared_for(given, belief, window) if k == 1 else None
        if prepared is not None and (found := prepared.best_path(given.tokens, given.lengths)) is not None:
            return given.shaped(found)
        tables, batch, belief = self._asked(given, belief, window)
        if k == 1:
            return given.shaped(viterbi(tables, batch, belief, window))
        return given.shaped(k_best(tables, batch, k, belief, window))

    def stream(self, num: int = 1, belief: Belief | None = None) -> Stream:
        """Start texts that are fed a few tokens at a time.

        Args:
            num: Number of texts.
            belief: Where they begin, as `filter` returned it: one row for all of them, or one for each. None: from the start
                distribution.

        Returns:
            The stream. It keeps the belief after the last token, and nothing else of the past.

        Raises:
            ValueError: `num` is below 1, or the belief has another number of rows.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> stream = hmm.stream(num=2)
            >>> stream.feed([[0, 1], [2, 2]])
            tensor([[-1.0788, -1.0038],
                    [-1.2040, -0.9943]])
            >>> stream.log_prob
            tensor([-2.0826, -2.1982], dtype=torch.float64)
        """
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
        seed: int | torch.Generator | None = None,
        generator: torch.Generator | None = None,
    ) -> Infilled:
        """Compute p(missing tokens | the other tokens): distributions, joint samples and the best filling.

        Args:
            tokens: Token ids (B, T); what stands at missing positions is ignored.
            missing: Boolean mask (B, T), at least one True in each sequence.
            lengths: Length of each sequence (B,); None: all are T long.
            belief: What `filter` returned for the text before.
            num: Number of samples of each sequence.
            exclude: Token ids that are never filled in; all results are given that.
            seed: Of the samples: a number, or a `torch.Generator`; None: the global generator of PyTorch.
            generator: The older name of `seed`.

        Returns:
            The distribution of each missing token, `num` joint samples and the best filling of each sequence.

        Raises:
            ImpossibleTextError: The known tokens have probability zero whatever is filled in.
            ValueError: A token id or a length is out of range, or a sequence has no missing token.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> filled = hmm.infill([[0, 0, 2]], [[False, True, False]], num=5, seed=0)
            >>> filled.probs
            tensor([[0.3214, 0.3553, 0.3233]])
            >>> filled.best
            tensor([[0, 1, 2]])
            >>> filled.samples.shape  # 5 whole texts
            torch.Size([1, 5, 3])
        """
        check_count("num", num, at_least=0)
        draws = as_generator(seed, generator, self.tables.device)
        given, mask = read(tokens, lengths), padded("missing", missing, None)[0]
        batch, gaps = as_missing(given.tokens, mask, given.lengths, self.tables)
        check_belief(belief, batch, self.tables)
        belief = None if belief is None else before_tokens(belief, self.tables)
        filled = infill(self.tables, batch, gaps, num, belief, self._allowed(exclude), draws)
        return without_batch(filled) if given.single else filled

    def expected_counts(self, tokens: Any = None, lengths: Any = None, *, log_likelihoods: Any = None) -> Counts:
        """Compute how often each start, transition and emission is used, in expectation over p(z | x).

        These are the statistics of the E step of Baum-Welch: the gradient of log p(x) with respect to the log tables.

        Args:
            tokens: Token ids (B, T).
            lengths: Length of each sequence (B,); None: all are T long.
            log_likelihoods: In place of tokens: log p(what is seen at t | z) of every state z, (B, T, Z).

        Returns:
            The counts, summed over the batch.

        Raises:
            ValueError: A token id, a log-likelihood or a length is out of range, or the transition table (Z, Z) does not fit in memory.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> counts = hmm.expected_counts([[0, 1, 2, 2], [2, 0, 0, 0]], lengths=[4, 2])
            >>> counts.start
            tensor([1.1417, 0.8583])
            >>> counts.transition
            tensor([[0.9681, 0.9234],
                    [0.7175, 1.3911]])
        """
        given = read(tokens, lengths, log_likelihoods)
        prepared = self._prepared_for(given, None, None)
        if prepared is not None and (found := prepared.expected_counts(given.tokens, given.lengths)) is not None:
            return found
        tables, batch, _ = self._asked(given, None, None)
        counts = expected_counts(tables, batch)[0]
        return counts if tables is self.tables else replace(counts, emission=counts.emission[:0])

    def next_token_probs(self, belief: Belief | None = None) -> Float[Tensor, "B X"]:
        """Compute p(x_t+1 | x_<=t) over the vocabulary.

        Args:
            belief: What `filter` returned for the text so far; None: no text yet, p(x_1).

        Returns:
            Probabilities (B, X); B = 1 without a belief.

        Raises:
            ValueError: The belief does not fit the tables.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> hmm.next_token_probs()
            tensor([[0.3400, 0.3600, 0.3000]])
            >>> hmm.next_token_probs(hmm.filter([[0, 1]]).belief)
            tensor([[0.3471, 0.3618, 0.2912]])
        """
        check_belief(belief, None, self.tables)
        if belief is not None and bool((belief.token == NO_TOKEN).any()):
            tables = evidence_tables(self.tables)
            state_probs = predict.next_state_probs(tables, over_all_states(belief, self.tables))
            return predict.emitted(self.tables, state_probs)
        return predict.next_token_probs(self.tables, belief)

    def sample(
        self,
        num: int,
        length: int,
        seed: int | torch.Generator | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> sampling.Sample:
        """Draw texts together with their states, (z, x) ~ p(z, x).

        Args:
            num: Number of texts, N.
            length: Tokens of each text, T.
            seed: A number, or a `torch.Generator`; None: the global generator of PyTorch.
            generator: The older name of `seed`.

        Returns:
            States and tokens, (N, T) each.

        Raises:
            ValueError: `num` or `length` is below 1.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([1, 0, 0], [[0, 1, 0], [0, 0, 1], [1, 0, 0]], [[1, 0], [1, 0], [0, 1]])
            >>> drawn = hmm.sample(1, 5, seed=0)  # this HMM has one text only
            >>> drawn.tokens
            tensor([[0, 0, 1, 0, 0]])
            >>> drawn.states
            tensor([[0, 1, 2, 0, 1]])
        """
        check_count("num", num)
        check_count("length", length)
        draws = as_generator(seed, generator, self.tables.device)
        if isinstance(self._prepared, SmallQueries):
            drawn = self._prepared.sample(num, length, draws)
            if drawn is not None:
                return drawn
        return sampling.sample(self.tables, num, length, draws)

    def sample_posterior(
        self,
        tokens: Any = None,
        num: int = 1,
        lengths: Any = None,
        seed: int | torch.Generator | None = None,
        *,
        log_likelihoods: Any = None,
        window: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "*B N T"]:
        """Draw state paths z ~ p(z | x).

        Args:
            tokens: Token ids (B, T).
            num: Number of paths of each sequence, N.
            lengths: Length of each sequence (B,); None: all are T long.
            seed: A number, or a `torch.Generator`; None: the global generator of PyTorch.
            log_likelihoods: In place of tokens: log p(what is seen at t | z) of every state z, (B, T, Z).
            window: Positions processed at a time, to bound memory; None: chosen automatically.
            generator: The older name of `seed`.

        Returns:
            State numbers (B, N, T), -1 past the length.

        Raises:
            ImpossibleTextError: A sequence has probability zero.
            ValueError: A token id, a log-likelihood or a length is out of range, or `num` is below 1.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> hmm.sample_posterior([[0, 1, 2, 2]], num=3, seed=0).shape
            torch.Size([1, 3, 4])
        """
        check_count("num", num)
        draws = as_generator(seed, generator, self.tables.device)
        given = read(tokens, lengths, log_likelihoods)
        tables, batch, _ = self._asked(given, None, window)
        return given.shaped(sampling.sample_posterior(tables, batch, num, draws, window))

    def fit(
        self,
        sequences: Sequence[Any] | Tensor | NDArray[Any] | None = None,
        method: Literal["em", "adam"] = "em",
        *,
        lengths: Any = None,
        log_likelihoods: Any = None,
        iterations: int = 100,
        tolerance: float = 1e-4,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        states: Any = None,
        params: str = "ste",
        fixed: Mapping[str, Any] | None = None,
        pseudocount: float = 0.0,
        restarts: int = 0,
        seed: int | torch.Generator | None = None,
        generator: torch.Generator | None = None,
    ) -> Fit:
        """Fit an HMM to sequences of token ids, starting from the parameters of this one.

        `em` is Baum-Welch. With `batch_size` it updates after each mini-batch, theta <- rate new + (1 - rate) theta. `adam` is
        gradient ascent on log p(x). Fitting ends after `iterations`, or as soon as log p per token rises by less than `tolerance`.

        Args:
            sequences: A list of sequences of token ids, an array (B, T), or one sequence (T,).
            method: "em" or "adam".
            lengths: Length of each sequence (B,), for an array; None: all are T long.
            log_likelihoods: In place of sequences: log p(what is seen at t | z) of every state z, (B, T, Z) or a list of (T, Z). Start
                and transition are fitted; the emission, which they replace, stays as it is.
            iterations: Passes over all sequences, at most.
            tolerance: Smallest rise of log p per token, in nats, with which fitting goes on.
            batch_size: Sequences of a mini-batch of `em`; None: one update for each pass.
            learning_rate: The rate of mini-batch `em` (None: 0.1) or of `adam` (None: 0.05).
            states: What is known of the states: shaped as the sequences, -1 where a state is unknown. Then p(x) stands for the
                probability of the tokens together with the known states.
            params: What is fitted, as in hmmlearn: letters of s (start), t (transition), e (emission).
            fixed: Single probabilities that stay exactly as they are: masks by the names start (Z,), transition (Z, Z) and emission
                (Z, X), True where fixed. The others of a row share what these leave. Probabilities of 0 always stay 0.
            pseudocount: Added by `em` to each count, so that no probability vanishes: a Dirichlet prior of concentration 1 + this.
            restarts: Further fits from random parameters, of which, with the first, the one of largest log p is returned.
            seed: Of mini-batches and restarts: a number, or a `torch.Generator`; None: the global generator of PyTorch.
            generator: The older name of `seed`.

        Returns:
            The fitted HMM, log p in each iteration, and criteria to compare fits by. This HMM is unchanged.

        Raises:
            ImpossibleTextError: A sequence has probability zero under the current parameters.
            ValueError: A token id, a state or a setting is out of range, or a known state cannot emit its token.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> fitted = hmm.fit([[0, 1, 2, 2], [2, 0]], iterations=20)
            >>> bool(fitted.hmm.log_prob([[0, 1, 2, 2]]) > hmm.log_prob([[0, 1, 2, 2]]))
            True
            >>> labelled = hmm.fit([[0, 1, 2, 2], [2, 0]], states=[[0, -1, -1, 1], [1, -1]], params="te")
            >>> torch.equal(labelled.hmm.start, hmm.start)
            True
            >>> seen = torch.tensor([0.1, 0.3, 2.2, 1.9, 2.4])  # what Gaussians with means 0 and 2 emit
            >>> soft = hmm.fit(log_likelihoods=torch.distributions.Normal(torch.tensor([0.0, 2.0]), 1.0).log_prob(seen[:, None]))
            >>> torch.equal(soft.hmm.emission, hmm.emission), bool(soft.hmm.start[0] > 0.9)
            (True, True)
        """
        settings = FitSettings(method, iterations, tolerance, batch_size, learning_rate, pseudocount, restarts)
        settings.check()
        found = fit_given(
            self.tables,
            Observed(sequences, log_likelihoods, lengths, states),
            settings,
            params,
            fixed,
            as_generator(seed, generator, torch.device("cpu")),
        )
        return Fit(
            HMM(found.tables, graphs=self._graphs),
            found.run.log_probs,
            found.run.log_prob,
            found.run.converged,
            found.num_parameters,
            found.num_tokens,
            found.of_restarts,
        )

    def with_reset_token(self, reset_token: int | None) -> HMM:
        """Return the same tables with another reset token.

        Args:
            reset_token: After this token the next state is drawn from the start distribution. None: never.

        Returns:
            A new HMM; this one is unchanged.

        Raises:
            ValueError: `reset_token` is not in the vocabulary.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> reset = hmm.with_reset_token(1)
            >>> reset.log_prob([[0, 1, 2]]), hmm.log_prob([[0, 1]]) + hmm.log_prob([[2]])
            (tensor([-3.2866]), tensor([-3.2866]))
        """
        return hmm_of_normalized(replace(self.tables, reset_token=reset_token), graphs=self._graphs)

    def _allowed(self, exclude: Sequence[int]) -> Bool[Tensor, " X"]:
        allowed = torch.ones(self.num_words, dtype=torch.bool)
        for token in exclude:
            if not is_integer(token) or not 0 <= token < self.num_words:
                raise ValueError(f"exclude has {token!r}, but ids must be between 0 and {self.num_words - 1}")
            allowed[token] = False
        return allowed.to(self.tables.device)

    @cached_property
    def _prepared(self) -> Replays | SmallQueries | None:
        """What answers questions without a belief and a window from tables that were prepared once; None: nothing does."""
        if self._graphs and self.tables.support.dense and kernels_run(self.tables.dtype, self.tables.device):
            from vlhmm.inference.replay import Replays

            return Replays(self.tables)
        return small_queries(self.tables)

    def _prepared_for(self, given: Given, belief: Belief | None, window: int | None) -> Replays | SmallQueries | None:
        """They know neither beliefs nor windows nor log-likelihoods."""
        return self._prepared if given.log_likelihoods is None and belief is None and window is None else None

    def _asked(self, given: Given, belief: Belief | None, window: int | None) -> tuple[Tables, Batch, Belief | None]:
        """The tables that answer (other than this HMM's for log-likelihoods), the checked batch and its belief."""
        check_window(window)
        return given.on(self.tables, belief)


def hmm_of_normalized(tables: Tables, *, graphs: bool = True) -> HMM:
    """`HMM(tables)` where the normaliser of the transition was computed from its features: it is not computed again."""
    check_tables(tables, normalized=True)
    hmm = HMM.__new__(HMM)
    hmm._hold(tables, graphs)
    return hmm
