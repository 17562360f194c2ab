"""Transitions: p(z' | z), one file a kind."""

from vlhmm.transitions.block_factored import BlockFactoredTransition
from vlhmm.transitions.softmax import SoftmaxTransition
from vlhmm.transitions.table import TableTransition

Transition = TableTransition | SoftmaxTransition | BlockFactoredTransition

__all__ = ["BlockFactoredTransition", "SoftmaxTransition", "TableTransition", "Transition"]
