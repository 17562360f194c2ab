"""Validation of input: one error that names the number, the limit and the remedy."""

from vlhmm.validate.belief import check_belief
from vlhmm.validate.distributions import Distributions, check_distributions
from vlhmm.validate.numbers import check_dtype
from vlhmm.validate.sequences import (
    Vocabulary,
    as_batch,
    as_integers,
    as_lengths,
    as_missing,
    as_sequences,
    check_window,
)
from vlhmm.validate.tables import check_support, check_tables

__all__ = [
    "Distributions",
    "Vocabulary",
    "as_batch",
    "as_integers",
    "as_lengths",
    "as_missing",
    "as_sequences",
    "check_belief",
    "check_distributions",
    "check_dtype",
    "check_support",
    "check_tables",
    "check_window",
]
