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
from vlhmm.inference.small import SmallQueries, small_queries
from vlhmm.inference.viterbi import Paths, viterbi
from vlhmm.memory import require_memory
from vlhmm.ops.recursion import kernels_run
from vlhmm.precision import Precision
from vlhmm.records import convert, requires_grad
from vlhmm.stream import Stream
from vlhmm.support import dense_support
from vlhmm.tables import Belief, Tables
from vlhmm.transitions import TableTransition
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

MAX_PATHS = 100
"""The largest k of `viterbi`."""


@dataclass(frozen=True)
class Fit:
    """The result of `HMM.fit`: the fitted HMM and its log-likelihoods.

    Example:
        >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
        >>> fitted = hmm.fit([[0, 1, 2, 2], [2, 0]], iterations=3)
        >>> fitted.hmm
        HMM(2 states, 3 words, torch.float32, cpu)
        >>> [round(log_prob, 3) for log_prob in fitted.log_probs]
        [-6.778, -6.044, -6.028]
    """

    hmm: HMM
    """The fitted HMM."""
    log_probs: list[float]
    """log p of all sequences in each iteration, before its update (for mini-batches and adam: as seen during the pass)."""


class HMM:
    """A hidden Markov model, p(x, z) = p(z_1) p(x_1 | z_1) prod_t p(z_t | z_t-1) p(x_t | z_t), with exact inference.

    `tokens` is always an array (B, T) of token ids. `lengths` (B,) gives the length of each sequence; ids past it are ignored.
    A `belief` continues a text: it is what `filter` returned for the text before. `window` bounds the memory: long texts are
    processed in chunks of that many positions. No result depends on it.

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
        return HMM(self.tables.to(as_device(device), dtype), graphs=self._graphs)

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
        return HMM(self.tables.with_precision(precision), graphs=self._graphs)

    def log_prob(
        self,
        tokens: Any,
        lengths: Any = None,
        belief: Belief | None = None,
        *,
        window: int | None = None,
        parallel: bool | None = None,
    ) -> Float[Tensor, " B"]:
        """Compute log p(x) of each sequence.

        Args:
            tokens: Token ids (B, T).
            lengths: Length of each sequence (B,); None: all are T long.
            belief: What `filter` returned for the text before; then the result is log p(x | the text before).
            window: Positions processed at a time, to bound memory; None: chosen automatically.
            parallel: Scan over time in parallel, which gives no gradient. None: where it is faster and no gradient is needed.

        Returns:
            log p(x), (B,); -inf where a sequence is impossible. Differentiable in the tables.

        Raises:
            ValueError: A token id or a length is out of range, or `parallel=True` while a table requires a gradient.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> hmm.log_prob([[0, 1, 2, 2], [2, 0, 0, 0]], lengths=[4, 2])
            tensor([-4.3157, -2.4628])
        """
        prepared = None if parallel else self._prepared_for(belief, window)
        if prepared is not None and (log_probs := prepared.log_prob(tokens, lengths)) is not None:
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
        """Compute log p(x_t | x_<t) at each position.

        Args:
            tokens: Token ids (B, T).
            lengths: Length of each sequence (B,); None: all are T long.
            belief: What `filter` returned for the text before.
            window: Positions processed at a time, to bound memory; None: chosen automatically.
            parallel: Scan over time in parallel, which gives no gradient. None: where it is faster and no gradient is needed.

        Returns:
            log p(x_t | x_<t), (B, T), 0 past the length. Differentiable in the tables.

        Raises:
            ValueError: A token id or a length is out of range, or `parallel=True` while a table requires a gradient.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> hmm.token_log_probs([[0, 1, 2, 2], [2, 0, 0, 0]], lengths=[4, 2])
            tensor([[-1.0788, -1.0038, -1.2338, -0.9992],
                    [-1.2040, -1.2588,  0.0000,  0.0000]])
        """
        prepared = None if parallel else self._prepared_for(belief, window)
        if prepared is not None and (found := prepared.token_log_probs(tokens, lengths)) is not None:
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
        """Compute p(z_t | x_<=t) over the states that can emit x_t, and the belief after the last token.

        Args:
            tokens: Token ids (B, T).
            lengths: Length of each sequence (B,); None: all are T long.
            belief: What an earlier `filter` returned for the text before.
            window: Positions processed at a time, to bound memory; None: chosen automatically.

        Returns:
            Probabilities, states and the belief with which the text can be continued.

        Raises:
            ValueError: A token id or a length is out of range, or the result does not fit in memory.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> filtered = hmm.filter([[0, 1]])
            >>> filtered.probs
            tensor([[[0.8824, 0.1176],
                     [0.7255, 0.2745]]])
            >>> hmm.log_prob([[2, 2]], belief=filtered.belief)  # log p(2, 2 | 0, 1)
            tensor([-2.2330])
        """
        batch = self._batch(tokens, lengths, belief, window)
        self._require_per_position(batch, "the filtered probabilities")
        return filter_states(self.tables, batch, belief, window)

    def posterior(
        self, tokens: Any, lengths: Any = None, belief: Belief | None = None, *, window: int | None = None
    ) -> Posterior:
        """Compute p(z_t | x) over the states that can emit x_t (forward-backward).

        Args:
            tokens: Token ids (B, T).
            lengths: Length of each sequence (B,); None: all are T long.
            belief: What `filter` returned for the text before.
            window: Positions processed at a time, to bound memory; None: chosen automatically.

        Returns:
            Probabilities and states at each position.

        Raises:
            ValueError: A token id or a length is out of range, or the result does not fit in memory.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> hmm.posterior([[0, 1, 2]]).probs
            tensor([[[0.8765, 0.1235],
                     [0.6229, 0.3771],
                     [0.2121, 0.7879]]])
        """
        prepared = self._prepared_for(belief, window)
        if prepared is not None and (found := prepared.posterior(tokens, lengths)) is not None:
            return found
        batch = self._batch(tokens, lengths, belief, window)
        self._require_per_position(batch, "the posterior")
        return posterior(self.tables, batch, belief, window)

    def posterior_entropy(
        self, tokens: Any, lengths: Any = None, belief: Belief | None = None, *, window: int | None = None
    ) -> PosteriorEntropy:
        """Compute H(z_t | x) at each position and H(z_1, ..., z_T | x) of the whole path.

        Args:
            tokens: Token ids (B, T).
            lengths: Length of each sequence (B,); None: all are T long.
            belief: What `filter` returned for the text before.
            window: Positions processed at a time, to bound memory; None: chosen automatically.

        Returns:
            Both entropies, in nats.

        Raises:
            ImpossibleTextError: A sequence has probability zero.
            ValueError: A token id or a length is out of range, or the posterior does not fit in memory.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> entropy = hmm.posterior_entropy([[0, 1, 2]])
            >>> entropy.position
            tensor([[0.3738, 0.6626, 0.5168]])
            >>> entropy.path
            tensor([1.5079])
        """
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
        """Find the k state paths z with the largest p(x, z).

        Args:
            tokens: Token ids (B, T).
            lengths: Length of each sequence (B,); None: all are T long.
            k: Number of paths, 1 to 100.
            belief: What `filter` returned for the text before. Its last state is summed out; it is no part of a path.
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
        prepared = self._prepared_for(belief, window) if k == 1 else None
        if prepared is not None and (found := prepared.best_path(tokens, lengths)) is not None:
            return found
        batch = self._batch(tokens, lengths, belief, window)
        if k == 1:
            return viterbi(self.tables, batch, belief, window)
        return k_best(self.tables, batch, k, belief, window)

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
            generator: Random numbers of the samples; None: the global generator of PyTorch.

        Returns:
            The distribution of each missing token, `num` joint samples and the best filling of each sequence.

        Raises:
            ImpossibleTextError: The known tokens have probability zero whatever is filled in.
            ValueError: A token id or a length is out of range, or a sequence has no missing token.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> filled = hmm.infill([[0, 0, 2]], [[False, True, False]], num=5, generator=torch.Generator().manual_seed(0))
            >>> filled.probs
            tensor([[0.3214, 0.3553, 0.3233]])
            >>> filled.best
            tensor([[0, 1, 2]])
            >>> filled.samples.shape  # 5 whole texts
            torch.Size([1, 5, 3])
        """
        check_count("num", num, at_least=0)
        check_generator(generator, self.tables.device)
        batch, gaps = as_missing(tokens, missing, lengths, self.tables)
        check_belief(belief, batch, self.tables)
        return infill(self.tables, batch, gaps, num, belief, self._allowed(exclude), generator)

    def expected_counts(self, tokens: Any, lengths: Any = None) -> Counts:
        """Compute how often each start, transition and emission is used, in expectation over p(z | x).

        These are the statistics of the E step of Baum-Welch: the gradient of log p(x) with respect to the log tables.

        Args:
            tokens: Token ids (B, T).
            lengths: Length of each sequence (B,); None: all are T long.

        Returns:
            The counts, summed over the batch.

        Raises:
            ValueError: A token id or a length is out of range, or the transition table (Z, Z) does not fit in memory.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> counts = hmm.expected_counts([[0, 1, 2, 2], [2, 0, 0, 0]], lengths=[4, 2])
            >>> counts.start
            tensor([1.1417, 0.8583])
            >>> counts.transition
            tensor([[0.9681, 0.9234],
                    [0.7175, 1.3911]])
        """
        if self._prepared is not None and (found := self._prepared.expected_counts(tokens, lengths)) is not None:
            return found
        return expected_counts(self.tables, as_batch(tokens, lengths, self.tables))[0]

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
        return predict.next_token_probs(self.tables, belief)

    def sample(self, num: int, length: int, generator: torch.Generator | None = None) -> sampling.Sample:
        """Draw texts together with their states, (z, x) ~ p(z, x).

        Args:
            num: Number of texts, N.
            length: Tokens of each text, T.
            generator: Random numbers; None: the global generator of PyTorch.

        Returns:
            States and tokens, (N, T) each.

        Raises:
            ValueError: `num` or `length` is below 1.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([1, 0, 0], [[0, 1, 0], [0, 0, 1], [1, 0, 0]], [[1, 0], [1, 0], [0, 1]])
            >>> drawn = hmm.sample(1, 5, generator=torch.Generator().manual_seed(0))  # this HMM has one text only
            >>> drawn.tokens
            tensor([[0, 0, 1, 0, 0]])
            >>> drawn.states
            tensor([[0, 1, 2, 0, 1]])
        """
        check_count("num", num)
        check_count("length", length)
        check_generator(generator, self.tables.device)
        if isinstance(self._prepared, SmallQueries):
            drawn = self._prepared.sample(num, length, generator)
            if drawn is not None:
                return drawn
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
        """Draw state paths z ~ p(z | x).

        Args:
            tokens: Token ids (B, T).
            num: Number of paths of each sequence, N.
            lengths: Length of each sequence (B,); None: all are T long.
            generator: Random numbers; None: the global generator of PyTorch.
            window: Positions processed at a time, to bound memory; None: chosen automatically.

        Returns:
            State numbers (B, N, T), -1 past the length.

        Raises:
            ImpossibleTextError: A sequence has probability zero.
            ValueError: A token id or a length is out of range, or `num` is below 1.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> hmm.sample_posterior([[0, 1, 2, 2]], num=3, generator=torch.Generator().manual_seed(0)).shape
            torch.Size([1, 3, 4])
        """
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
        """Fit an HMM to sequences of token ids, starting from the parameters of this one.

        `em` is Baum-Welch. With `batch_size` it updates after each mini-batch, theta <- rate new + (1 - rate) theta. `adam` is
        gradient ascent on log p(x). Fitting ends after `iterations`, or as soon as log p per token rises by less than `tolerance`.

        Args:
            sequences: A list of sequences of token ids, or an array (B, T).
            method: "em" or "adam".
            lengths: Length of each sequence (B,), for an array; None: all are T long.
            iterations: Passes over all sequences, at most.
            tolerance: Smallest rise of log p per token, in nats, with which fitting goes on.
            batch_size: Sequences of a mini-batch of `em`; None: one update for each pass.
            learning_rate: The rate of mini-batch `em` (None: 0.1) or of `adam` (None: 0.05).
            generator: Order of the mini-batches; None: the global generator of PyTorch.

        Returns:
            The fitted HMM and log p in each iteration. This HMM is unchanged.

        Raises:
            ImpossibleTextError: A sequence has probability zero under the current parameters.
            ValueError: A token id or a setting is out of range.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> fitted = hmm.fit([[0, 1, 2, 2], [2, 0]], iterations=20)
            >>> bool(fitted.hmm.log_prob([[0, 1, 2, 2]]) > hmm.log_prob([[0, 1, 2, 2]]))
            True
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
        return HMM(replace(self.tables, reset_token=reset_token), graphs=self._graphs)

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

    def _prepared_for(self, belief: Belief | None, window: int | None) -> Replays | SmallQueries | None:
        """They know neither beliefs nor windows."""
        return self._prepared if belief is None and window is None else None

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
