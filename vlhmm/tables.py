"""The frozen records that inference reads: all that a hidden Markov model is once its numbers are known.

Letters for axes: B batch, T time, Z states, X words, G groups of states, K states of a word, U distinct tiles, H width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.precision import Precision
from vlhmm.records import convert, mapped, shown
from vlhmm.support import Support, blocked_support, cloned_support, dense_support, uniform_support
from vlhmm.transitions import BlockFactoredTransition, LowRankTransition, SoftmaxTransition, TableTransition, Transition

__all__ = [
    "Belief",
    "BlockFactoredTransition",
    "LowRankTransition",
    "SoftmaxTransition",
    "Support",
    "TableTransition",
    "Tables",
    "Transition",
    "WindowTables",
    "blocked_support",
    "cloned_support",
    "dense_support",
    "uniform_support",
]


@dataclass(frozen=True)
class Tables:
    """The parameters of one HMM: start, transition and emission, as log-probabilities.

    Example:
        >>> from vlhmm.tables import Tables, TableTransition, dense_support
        >>> emission = torch.tensor([[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
        >>> transition = TableTransition(torch.tensor([[0.7, 0.3], [0.4, 0.6]]).log())
        >>> tables = Tables(dense_support(3, 2), torch.tensor([0.6, 0.4]).log(), transition, emission.T.log())
        >>> vlhmm.HMM(tables)
        HMM(2 states, 3 words, torch.float32, cpu)
    """

    support: Support
    """Which states can emit which word."""
    log_start: Float[Tensor, " Z"]
    """log p(z_1)."""
    transition: Transition
    """log p(z' | z), as a table or in factors."""
    log_emission: Float[Tensor, "X K"]
    """log p(x | z) for the K states z that can emit x, a row for every word; nothing is stored for the other states."""
    reset_token: int | None = None
    """After this token the next state is drawn from the start distribution; None: never."""
    precision: Precision = "highest"
    """What matrix products on a GPU read: bf16, tf32 or highest (float32). A CPU computes in the dtype of the tables.
    `with_precision` changes it.
    """

    __repr__ = shown

    @property
    def num_states(self) -> int:
        """Number of states, Z."""
        return self.support.num_states

    @property
    def num_words(self) -> int:
        """Size of the vocabulary, X."""
        return self.support.num_words

    def emissions_of(self, words: Int[Tensor, "B T"]) -> Float[Tensor, "B T K"]:
        """Look up log p(x | z) over the K states that can emit each word.

        Args:
            words: Token ids (B, T).

        Returns:
            Log-probabilities (B, T, K).

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> hmm.tables.emissions_of(torch.tensor([[0, 2]])).exp()
            tensor([[[0.5000, 0.1000],
                     [0.1000, 0.6000]]])
        """
        rows = self.log_emission.index_select(0, words.flatten())
        return rows.view(*words.shape, -1)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the tables."""
        return self.log_emission.dtype

    @property
    def device(self) -> torch.device:
        """The device of the tables."""
        return self.log_emission.device

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Tables:
        """Return a copy on another device or in another dtype.

        Args:
            device: The new device; None: unchanged.
            dtype: The new dtype of floating-point tensors; None: unchanged.

        Returns:
            New tables.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> hmm.tables.to(dtype=torch.float64).dtype
            torch.float64
        """
        return _with_its_normalizer(convert(self, device, dtype), self)

    def with_precision(self, precision: Precision) -> Tables:
        """Return the same tables, read by matrix products on a GPU in another precision.

        In bf16 the kernels of a softmax transition between blocks read rounded features. The tables then hold these, with the
        normaliser that belongs to them, so that rows sum to one. Make them from tables in float32, not the other way round.

        Args:
            precision: bf16, tf32 or highest (float32).

        Returns:
            New tables; on a CPU they give the same answers.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> hmm.tables.precision, hmm.tables.with_precision("bf16").precision
            ('highest', 'bf16')
        """
        return _with_its_normalizer(replace(self, precision=precision), self)

    def detach(self) -> Tables:
        """Return the same numbers without their autograd history.

        Returns:
            Tables that require no gradient.

        Example:
            >>> import numpy as np
            >>> model = vlhmm.scalar_hmm(vlhmm.Blocks(np.zeros(3, np.int64), 1), states_per_block=2)
            >>> tables = model.tables()
            >>> tables.log_start.requires_grad, tables.detach().log_start.requires_grad
            (True, False)
        """
        return mapped(self, Tensor.detach)


def _rounded_by_kernels(tables: Tables) -> bool:
    """Whether kernels read the features of the transition rounded to bfloat16."""
    on_gpu = tables.device.type == "cuda" and tables.dtype == torch.float32
    return on_gpu and tables.precision == "bf16" and tables.support.num_groups > 1


def _with_its_normalizer(tables: Tables, before: Tables) -> Tables:
    """`tables`, which were made of `before`, with a normaliser of the features as they are read now."""
    rounded = _rounded_by_kernels(tables)
    if rounded == _rounded_by_kernels(before):
        return tables
    transition = tables.transition.rounded() if rounded else tables.transition
    return replace(tables, transition=transition.renormalized())


@dataclass(frozen=True)
class WindowTables:
    """The parameters of one HMM without a table of emissions: their rows are made for the tokens that a window asks for.

    For a training step, which reads few of them. It can be scored, and nothing else.

    Example:
        >>> import numpy as np
        >>> model = vlhmm.neural_hmm(vlhmm.Blocks(np.zeros(5, np.int64), 1), states_per_block=4, dim=8)
        >>> tables, _ = model.window_tables(None, None)
        >>> tables.emissions_of(torch.tensor([[0, 2, 1]])).shape
        torch.Size([1, 3, 4])
    """

    support: Support
    """Which states can emit which word."""
    log_start: Float[Tensor, " Z"]
    """log p(z_1)."""
    transition: Transition
    """log p(z' | z), as a table or in factors."""
    emissions_of: Callable[[Int[Tensor, "B T"]], Float[Tensor, "B T K"]]
    """Computes log p(x | z) over the K states that can emit each token; differentiable in the parameters."""
    reset_token: int | None = None
    """After this token the next state is drawn from the start distribution; None: never."""
    precision: Precision = "highest"
    """What matrix products on a GPU read, as of `Tables`."""

    __repr__ = shown

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the tables."""
        return self.log_start.dtype

    @property
    def device(self) -> torch.device:
        """The device of the tables."""
        return self.log_start.device


AnyTables = Tables | WindowTables
"""What can be scored."""


@dataclass(frozen=True)
class Belief:
    """p(z_t | x_<=t) over the K states that can emit the last token x_t: all that a query needs of the text before.

    Example:
        >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
        >>> belief = hmm.filter([[0, 1]]).belief
        >>> belief.probs
        tensor([[0.7255, 0.2745]])
        >>> hmm.next_token_probs(belief)
        tensor([[0.3471, 0.3618, 0.2912]])
    """

    token: Int[Tensor, " B"]
    """The last token x_t of each sequence."""
    log_probs: Float[Tensor, "B K"]
    """log p(z_t | x_<=t); all -inf where the text before has probability zero."""

    __repr__ = shown

    def of(self, sequences: Int[Tensor, " R"] | list[int] | slice) -> Belief:
        """Select the belief of some sequences.

        Args:
            sequences: Numbers of sequences, or a slice of them.

        Returns:
            The belief of these sequences.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> hmm.filter([[0, 1], [2, 2]]).belief.of([1]).probs
            tensor([[0.1243, 0.8757]])
        """
        return Belief(self.token[sequences], self.log_probs[sequences])

    @property
    def probs(self) -> Float[Tensor, "B K"]:
        """p(z_t | x_<=t)."""
        return self.log_probs.exp()
