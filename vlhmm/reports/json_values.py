"""The one place that decides how an answer looks as JSON: on the command line, in Python and over HTTP."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

from vlhmm.data import Corpus
from vlhmm.distillation.stage_records import FINETUNING
from vlhmm.evaluate import Evaluation
from vlhmm.inspection import Inspection
from vlhmm.inspection.summary import BlockUsage
from vlhmm.reports.corpora import ClusteredWords, PreparedCorpus, splits_of
from vlhmm.reports.evaluation import TextEvaluation
from vlhmm.reports.model import BlockSample, TrainingSummary
from vlhmm.reports.results import PLAIN, DistillationResults, RunResults
from vlhmm.text.answers import BestPath, ExplainedState, Explanation, FilledGap, NamedState, NextTokens, Score


def as_json(answer: Any, **question: Any) -> Any:
    """Convert an answer to values that `json.dumps` takes.

    A record becomes a dictionary of its fields. Records that people read often have a shape of their own, documented with the
    commands that print them. Numbers that JSON lacks (infinity, NaN) become None.

    Args:
        answer: A record, or lists and dictionaries of them.
        **question: What was asked, such as the text; these keys come first.

    Returns:
        Dictionaries, lists, strings, numbers, truth values and None.

    Raises:
        TypeError: The answer holds something that is none of these, such as a tensor.

    Example:
        >>> from vlhmm.reports import as_json
        >>> lm = vlhmm.load("demo-model")
        >>> answer = as_json(lm.score("the cat"), text="the cat")
        >>> list(answer), answer["tokens"][1]["token"]
        (['text', 'log_prob', 'perplexity', 'tokens'], 'cat')
    """
    values = as_values(answer)
    return _finite({**question, **values} if question else values)


def as_values(value: Any) -> Any:
    """`as_json` with numbers as they are: infinity and NaN, which Python's own JSON files keep, included."""
    match value:
        case Score():
            return {
                "log_prob": value.log_prob,
                "perplexity": value.perplexity,
                "tokens": as_values(value.tokens),
            }
        case NextTokens(tokens):
            return {"next": _pairs("token", tokens)}
        case NamedState(state, block, words):
            return {"state": state, "block": block, "words": _pairs("word", words)}
        case ExplainedState():
            return {
                "prob": value.prob,
                **as_values(value.state),
                "previous": _likely_states(value.previous),
                "next": _likely_states(value.next),
            }
        case Explanation():
            return {
                "log_prob": value.score.log_prob,
                "perplexity": value.score.perplexity,
                "path_entropy": value.path_entropy,
                "tokens": as_values(value.tokens),
            }
        case BestPath(tokens, states, log_prob):
            # A text has many tokens of one state.
            known = {key: as_values(state) for key, state in {id(state): state for state in states}.items()}
            named = [{"token": token, **known[id(state)]} for token, state in zip(tokens, states, strict=True)]
            return {"log_prob": log_prob, "tokens": named}
        case FilledGap(lengths, tokens):
            return {"lengths": _pairs("tokens", lengths), "positions": [_pairs("token", one) for one in tokens]}
        case Corpus():
            return {"name": value.name, "hash": value.hash, "note": value.note}
        case Evaluation():
            return value.to_dict()
        case TextEvaluation(source):
            return {
                "text": source.name,
                "split": source.split,
                **as_values(value.evaluation),
                "byte_perplexity": value.byte_perplexity,
                "streams": value.streams,
                "baselines": as_values(value.baselines),
                "corpus": as_values(source.corpus),
            }
        case Inspection():
            return _inspection(value)
        case BlockUsage(block, num_words, usage):
            return {"block": block, "num_words": num_words, **as_values(usage)}
        case BlockSample():
            words = as_values(value.state)["words"]
            return {**_fields(value, without=("state",)), "state": value.state.state, "words": words}
        case TrainingSummary(run=run):
            return {**_fields(value, without=("run",)), **({} if run is None else _fields(run))}
        case RunResults(figures=figures, learning_curve=curve, stages=stages):
            values = _fields(value, without=("figures", "learning_curve", "stages"))
            if stages:
                seconds = {stage.name: round(stage.seconds, 1) for stage in stages}
                seconds[FINETUNING] = round(value.train_seconds, 1)
                values |= {
                    "stages": as_values(stages),
                    "stage_seconds": seconds,
                    "total_seconds": sum(seconds.values()),
                }
            # An interrupted run has neither.
            return values if figures is None else {**values, **_fields(figures), "learning_curve": curve}
        case DistillationResults(run, plain):
            return {**as_values(run), **({} if plain is None else {PLAIN: as_values(plain)})}
        case PreparedCorpus(folder, corpus, seconds):
            splits = splits_of(corpus)
            return {
                "folder": str(folder),
                "hash": corpus.hash,
                "tokenizer_hash": corpus.tokenizer.hash,
                "vocab_size": corpus.tokenizer.vocab_size,
                "tokens": {name: len(tokens) for name, tokens in splits.items()},
                "documents": {name: tokens.num_documents for name, tokens in splits.items()},
                "seconds": seconds,
            }
        case ClusteredWords():
            num_blocks = value.blocks.num_blocks
            return {"file": str(value.file), "num_blocks": num_blocks, **_fields(value, without=("file", "blocks"))}
        case Path():
            return str(value)
        case Mapping():
            return {str(key): as_values(item) for key, item in value.items()}
        case list() | tuple():
            return [as_values(item) for item in value]
        case None | str() | bool() | int() | float():
            return value
    if is_dataclass(value):
        return _fields(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _fields(record: Any, without: Sequence[str] = ()) -> dict[str, Any]:
    names = (field.name for field in fields(record))
    return {name: as_values(getattr(record, name)) for name in names if name not in without}


def _pairs(name: str, pairs: Sequence[tuple[Any, float]]) -> list[dict[str, Any]]:
    return [{name: thing, "prob": prob} for thing, prob in pairs]


def _likely_states(states: Sequence[tuple[NamedState, float]]) -> list[dict[str, Any]]:
    return [{"prob": prob, **as_values(state)} for state, prob in states]


def _inspection(found: Inspection) -> dict[str, Any]:
    reading, memory = found.reading, found.memory
    return {
        "num_tokens": len(reading.token_log_probs),
        "perplexity": found.perplexity,
        "filtered_entropy": float(reading.filtered_entropy.mean()),
        "smoothed_entropy": float(reading.smoothed_entropy.mean()),
        "usage": as_values(found.usage),
        "blocks": as_values(found.blocks),
        # Words and states with their probabilities stay pairs here.
        "states": [asdict(one) for one in found.states],
        "by_line_position": as_values(found.by_line_position),
        "by_frequency": as_values(found.by_frequency),
        "memory": None
        if memory is None
        else {
            "perplexity": memory.perplexity,
            "unlimited": memory.unlimited,
            "num_tokens": memory.num_tokens,
            "stationary_iterations": memory.stationary.iterations,
            "stationary_change": memory.stationary.change,
        },
    }


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
