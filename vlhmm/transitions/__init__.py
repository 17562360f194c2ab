"""Transitions: p(z' | z), one file a kind, all of them behind the protocol `Transition`."""

from vlhmm.transitions.block_factored import BlockFactoredTransition
from vlhmm.transitions.block_softmax import BlockSoftmaxTransition
from vlhmm.transitions.low_rank import LowRankTransition
from vlhmm.transitions.protocol import Transition
from vlhmm.transitions.softmax import SoftmaxTransition
from vlhmm.transitions.table import TableTransition, is_table, log_table

KINDS = {
    "table": TableTransition,
    "softmax": SoftmaxTransition,
    "block-factored": BlockFactoredTransition,
    "low-rank": LowRankTransition,
}
"""The kinds that an `HMM` may have, by their names in files. `BlockSoftmaxTransition` exists in training windows only."""

__all__ = [
    "KINDS",
    "BlockFactoredTransition",
    "BlockSoftmaxTransition",
    "LowRankTransition",
    "SoftmaxTransition",
    "TableTransition",
    "Transition",
    "is_table",
    "log_table",
]
