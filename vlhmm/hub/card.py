"""The model card: README.md of a repository, written from what the model's folder records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vlhmm._version import __version__
from vlhmm.data import Tokenizer
from vlhmm.models import Model

MAX_LETTERS = 200
"""Of a value in a table."""


def model_card(model: Model, tokenizer: Tokenizer, about: Mapping[str, Any], name: str | None = None) -> str:
    """Data, settings, figures, seconds and use of a model; what is not recorded is left out.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        about: How it was made, `results` with the figures of its run among it where there are any.
        name: OWNER/NAME on the hub; None: not known.
    """
    corpus, results = _mapping(about.get("corpus")), _mapping(about.get("results"))
    parts = [
        _header(corpus, results),
        f"# {name or 'A hidden Markov language model'}",
        _what(model, tokenizer),
        _data(corpus, tokenizer),
        _figures(results),
        _held_out(_mapping(results.get("held_out"))),
        _training(about, results),
        _table("## Model settings", model.settings.to_dict()),
        _use(name),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _header(corpus: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    """The metadata that the hub indexes, in YAML: JSON strings are valid there."""
    lines = ["---", "library_name: vlhmm", "pipeline_tag: text-generation", "tags:"]
    lines += [f"- {tag}" for tag in ("vlhmm", "hidden-markov-model", "exact-inference")]
    perplexity = _mapping(_mapping(results.get("perplexity")).get("HMM"))
    splits = {split: value for split, value in perplexity.items() if isinstance(value, int | float)}
    data = corpus.get("name")
    if splits and isinstance(data, str):
        lines += ["model-index:", "- name: vlhmm", "  results:"]
        for split, value in splits.items():
            lines += [
                "  - task:",
                "      type: text-generation",
                "    dataset:",
                f"      name: {_text(data)}",
                f"      type: {_text(data)}",
                f"      split: {_text(split)}",
                "    metrics:",
                "    - type: perplexity",
                f"      value: {value:.4f}",
            ]
    return "\n".join([*lines, "---"])


def _what(model: Model, tokenizer: Tokenizer) -> str:
    support = model.support
    blocks = f" in {support.num_groups:,} blocks" if support.num_groups > 1 else ""
    kind = "words" if tokenizer.word_level else "subwords"
    after = "drawn anew" if model.reset_token is not None else "carried over"
    return (
        f"A hidden Markov language model with {support.num_states:,} states{blocks} over {tokenizer.vocab_size:,} {kind}, "
        f"{model.num_parameters:,} parameters; states are {after} after the end of a text. Scores, next words, posteriors, "
        "best paths, infilling and generation under constraints are exact."
    )


def _data(corpus: Mapping[str, Any], tokenizer: Tokenizer) -> str:
    if not corpus:
        return ""
    return _table("## Data", {**corpus, "tokenizer": f"{tokenizer.vocab_size:,} tokens, SHA-256 {tokenizer.hash[:16]}"})


def _figures(results: Mapping[str, Any]) -> str:
    by_model = {name: _mapping(splits) for name, splits in _mapping(results.get("perplexity")).items()}
    splits = list(dict.fromkeys(split for figures in by_model.values() for split in figures))
    if not splits:
        return ""
    rows = [["perplexity", *splits], ["---", *["---:"] * len(splits)]]
    rows += [[name, *(_number(figures.get(split)) for split in splits)] for name, figures in by_model.items()]
    text = "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in rows)
    protocol = _mapping(results.get("test")).get("protocol")
    return f"## Figures\n\n{text}" + (f"\n\nPerplexity per token: {protocol}." if isinstance(protocol, str) else "")


def _held_out(figures: Mapping[str, Any]) -> str:
    """Of a distilled model: on text of its teacher that it was not trained on."""
    names = {"unigram": "unigram", "hmm": "HMM", "teacher": "teacher, which sees the prompt"}
    rows = {shown: _number(figures[name]) for name, shown in names.items() if name in figures}
    counted = {
        name: f"{figures[name]:,}" for name in ("num_samples", "num_tokens") if isinstance(figures.get(name), int)
    }
    return _table("## Perplexity of held-out samples of the teacher", {**rows, **counted}) if rows else ""


def _training(about: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    names = (
        "sampling_seconds",
        "train_seconds",
        "stage_seconds",
        "total_seconds",
        "step",
        "stopped",
        "device",
        "seed",
        "command",
        "vlhmm",
        "torch",
        "python",
    )
    told = {name: results[name] for name in names if results.get(name) is not None}
    for name in ("sampling_seconds", "train_seconds"):
        if isinstance(told.get(name), int | float):
            told[name] = f"{told[name]:,.1f}"
    settings = {
        f"{part}.{name}": value
        for part, values in about.items()
        if part not in ("corpus", "results") and isinstance(values, Mapping)
        for name, value in values.items()
    }
    rest = {name: value for name, value in about.items() if not isinstance(value, Mapping)}
    rows = {**rest, **told, **settings}
    return _table("## Training", rows) if rows else ""


def _use(name: str | None) -> str:
    return f"""## Use

```bash
pip install vlhmm
```

```python
import vlhmm

lm = vlhmm.LanguageModel.from_pretrained({json.dumps(name or "FOLDER")})
lm.score("a text")
lm.generate("a prompt", max_new_tokens=20)
```

The tokenizer is also read by `transformers.AutoTokenizer.from_pretrained`; pass `add_special_tokens=False` for the same ids.
Written by vlhmm {__version__}."""


def _table(title: str, values: Mapping[str, Any]) -> str:
    rows = [f"| {_cell(name)} | {_cell(value)} |" for name, value in values.items() if value not in (None, "")]
    return "\n".join([title, "", "| | |", "|---|---|", *rows])


def _cell(value: Any) -> str:
    """On one line, and without what ends a cell."""
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    shown = " ".join(shown.split()).replace("|", "\\|")
    return shown if len(shown) <= MAX_LETTERS else shown[:MAX_LETTERS] + "..."


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _number(value: Any) -> str:
    return f"{value:,.2f}" if isinstance(value, int | float) else "-"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
