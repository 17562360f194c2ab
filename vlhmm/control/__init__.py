"""Constraints on text, compiled to automata over a tokenizer's tokens."""

from vlhmm.control.automaton import Automaton
from vlhmm.control.constraints import Constraint
from vlhmm.control.controlled import constraint_log_prob
from vlhmm.control.count_constraints import length, words
from vlhmm.control.explain import explain_empty
from vlhmm.control.guide import Guide
from vlhmm.control.json_schemas import json_schema
from vlhmm.control.pattern_constraints import choice, regex
from vlhmm.control.phrase_constraints import (
    contains,
    contains_all,
    contains_any,
    ends_with,
    excludes,
    in_order,
    starts_with,
)
from vlhmm.control.possible import ImpossibleConstraintError
from vlhmm.control.time_limit import TimeLimitError
from vlhmm.control.token_texts import TokenTexts

__all__ = [
    "Automaton",
    "Constraint",
    "Guide",
    "ImpossibleConstraintError",
    "TimeLimitError",
    "TokenTexts",
    "choice",
    "constraint_log_prob",
    "contains",
    "contains_all",
    "contains_any",
    "ends_with",
    "excludes",
    "explain_empty",
    "in_order",
    "json_schema",
    "length",
    "regex",
    "starts_with",
    "words",
]
