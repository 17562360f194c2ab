"""All that an explorer page shows of a model, as records; `values` is what the page reads."""

from __future__ import annotations

import base64
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray

from vlhmm.control.constraints import Constraint
from vlhmm.data import Tokens
from vlhmm.explorer.analysis import TextAnalysis, analyse_text
from vlhmm.explorer.states import States, Words, describing_states
from vlhmm.inspection.reading import read_text
from vlhmm.inspection.summary import BlockUsage, Usage, usage, usage_by_block
from vlhmm.lm import LanguageModel
from vlhmm.progress import Progress, result_of
from vlhmm.reports.json_values import as_json
from vlhmm.reports.model import TrainingSummary, training_summary
from vlhmm.reports.sources import Source, first_tokens, read_source
from vlhmm.training.plan import read_plan
from vlhmm.training.run_folder import read_log

MAX_STATES = 4096
"""The page holds so many, the most used ones."""
MAX_WORDS = 50_000
"""The page holds so many, the most frequent ones."""
MAX_TOKENS = 10_000
"""Of the text whose states are counted."""
DRAWN_TOKENS = 2_000
"""Of a text drawn from the model, where no other is known."""
NUM_TEXTS, MIN_LINE_TOKENS, MAX_LINE_TOKENS = 5, 6, 20
"""Lines of the text that are analysed where no texts are given, and their length."""


@dataclass(frozen=True)
class LogPoint:
    """A record of a training log."""

    tokens: int
    perplexity: float


@dataclass(frozen=True)
class Training:
    """How the model was trained, by its run folder."""

    summary: TrainingSummary
    steps: list[LogPoint]
    """Perplexity of the training text."""
    checks: list[LogPoint]
    """Perplexity of the validation text."""


@dataclass(frozen=True)
class ExplorerData:
    """What an explorer page shows.

    Example:
        >>> from vlhmm.explorer import explorer_data
        >>> data = explorer_data(vlhmm.load("demo-model"), texts=["the cat sees a bird"])
        >>> data.num_states, data.texts[0].tokens[1].token
        (48, 'cat')
    """

    name: str
    """What to call the model."""
    num_states: int
    num_blocks: int
    num_parameters: int
    num_words: int
    joined: bool
    """Whether tokens carry their own white space; else words stand apart."""
    byte_level: bool
    """Whether names of tokens are strings of bytes."""
    text: str
    """What to call the text whose states are counted."""
    tokens: Int[np.ndarray, " N"]
    """The tokens of that text."""
    perplexity: float
    """Of that text."""
    usage: Usage
    states: States
    words: Words
    names: list[str]
    """The name of each word."""
    blocks: list[BlockUsage]
    """None where states are in no blocks."""
    texts: list[TextAnalysis]
    """The texts that the page can show without a server."""
    training: Training | None
    """None: there is no log of a training run."""


def explorer_data(
    lm: LanguageModel,
    source: Source | None = None,
    *,
    folder: str | Path | None = None,
    data_dir: Path | None = None,
    texts: Sequence[str] | None = None,
    constraint: Constraint | None = None,
    top: int = 4,
    max_tokens: int = MAX_TOKENS,
    max_states: int = MAX_STATES,
) -> ExplorerData:
    """Compute what an explorer page shows of a model.

    Args:
        lm: The model.
        source: The text whose states are counted, as `vlhmm.reports.read_source` reads it. None: the validation text of the corpus
            that `folder` names, or where that cannot be read a text drawn from the model.
        folder: The folder of the model, which may contain the record of its training.
        data_dir: The folder that holds ptb/ and wikitext-2/.
        texts: The texts that are analysed token by token; None: some lines of the source.
        constraint: A constraint whose probability is followed along these texts.
        top: Number of states of each of their tokens.
        max_tokens: Only so many tokens of the source are read.
        max_states: Only so many states are described, the most used ones.

    Returns:
        The data.

    Raises:
        ValueError: A number is below 1, or a text has no tokens or probability zero.

    Example:
        >>> from vlhmm.explorer import explorer_data
        >>> data = explorer_data(vlhmm.load("demo-model"), folder="demo-model", texts=["the cat sees a bird"])
        >>> len(data.states.number) <= data.num_states, data.training.checks[-1].tokens > 0
        (True, True)
    """
    return result_of(
        exploring(
            lm,
            source,
            folder=folder,
            data_dir=data_dir,
            texts=texts,
            constraint=constraint,
            top=top,
            max_tokens=max_tokens,
            max_states=max_states,
        )
    )


def exploring(
    lm: LanguageModel,
    source: Source | None = None,
    *,
    folder: str | Path | None = None,
    data_dir: Path | None = None,
    texts: Sequence[str] | None = None,
    constraint: Constraint | None = None,
    top: int = 4,
    max_tokens: int = MAX_TOKENS,
    max_states: int = MAX_STATES,
) -> Generator[Progress, None, ExplorerData]:
    """`explorer_data`, telling how far it is."""
    if isinstance(texts, str):
        raise ValueError(f"texts is the text {texts!r}, but a sequence of texts is needed: [{texts!r}]")
    for name, value in (("top", top), ("max_tokens", max_tokens), ("max_states", max_states)):
        if value < 1:
            raise ValueError(f"{name} is {value}, but must be at least 1")
    tables = lm.hmm.tables
    if source is None:
        source = _known_source(lm, folder, data_dir)
    source = first_tokens(source, max_tokens)
    analysed = []
    chosen = _lines(lm, source.tokens) if texts is None else list(texts)
    for number, text in enumerate(chosen):
        yield Progress("analysing texts", number, len(chosen))
        analysed.append(analyse_text(lm, text, top=top, constraint=constraint))
    steps = read_text(tables, source.tokens)
    while True:
        try:
            yield Progress("reading", next(steps), 2 * len(source.tokens))
        except StopIteration as stop:
            reading = stop.value
            break
    states, words = yield from describing_states(tables, reading, max_states)
    return ExplorerData(
        name="model" if folder is None else Path(folder).resolve().name,
        num_states=tables.num_states,
        num_blocks=tables.support.num_groups,
        num_parameters=lm.model.num_parameters,
        num_words=tables.num_words,
        joined=not lm.tokenizer.word_level,
        byte_level=lm.tokenizer.byte_level,
        text=source.label,
        tokens=np.asarray(source.tokens.ids[:], dtype=np.int64),
        perplexity=float(np.exp(-float(reading.token_log_probs.double().mean()))),
        usage=usage(reading.occupancy),
        states=states,
        words=words,
        names=lm.tokenizer.tokens(),
        blocks=usage_by_block(reading.occupancy, tables.support),
        texts=analysed,
        training=None if folder is None else _training(Path(folder)),
    )


def _known_source(lm: LanguageModel, folder: str | Path | None, data_dir: Path | None) -> Source:
    """The validation text of the model's corpus; where that cannot be read, a text drawn from the model."""
    if folder is not None and read_plan(Path(folder)) is not None:
        try:
            return read_source(lm, folder, default="valid", data_dir=data_dir)
        except (OSError, ValueError):
            # The corpus is not on this machine, or no longer what it was.
            pass
    drawn = lm.hmm.sample(1, DRAWN_TOKENS, torch.Generator(lm.hmm.tables.device).manual_seed(0)).tokens[0]
    tokens = Tokens.from_documents([drawn.tolist()], lm.tokenizer.vocab_size)
    label = f"{DRAWN_TOKENS:,} tokens drawn from the model"
    return Source(label, label, tokens)


def _lines(lm: LanguageModel, tokens: Tokens) -> list[str]:
    """The first lines that are neither short nor long and have no unknown token; else the beginning of the text."""
    tokenizer = lm.tokenizer
    lines, line = list[str](), list[int]()
    for token in tokens.ids[:].tolist():
        if token != tokenizer.eos_id:
            line.append(token)
            continue
        if MIN_LINE_TOKENS <= len(line) <= MAX_LINE_TOKENS and tokenizer.unk_id not in line:
            lines.append(tokenizer.decode(line))
        line = []
        if len(lines) == NUM_TEXTS:
            break
    if lines:
        return lines
    beginning = [token for token in tokens.ids[:].tolist() if token != tokenizer.eos_id][:MAX_LINE_TOKENS]
    return [tokenizer.decode(beginning)] if beginning else []


def _training(folder: Path) -> Training | None:
    summary = training_summary(folder)
    if summary is None:
        return None
    log = read_log(folder)
    # Where states are given, the likelihood is that of text and states, and of another size.
    steps = [record for record in log if record["kind"] == "step" and "objective" not in record]
    checks = [record for record in log if record["kind"] == "check"]
    return Training(
        summary,
        [LogPoint(record["tokens"], record["perplexity"]) for record in steps],
        [LogPoint(record["tokens"], record["valid_perplexity"]) for record in checks],
    )


def page_values(data: ExplorerData) -> dict[str, Any]:
    """The data as JSON values; columns of numbers are packed."""
    kept = np.argsort(-data.words.prob, kind="stable")[:MAX_WORDS]
    # Words that a state's card or the text names are kept whatever their frequency.
    kept = np.unique(np.concatenate([kept, data.states.word, data.tokens]))
    place = np.full(data.num_words, -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    states, words = data.states, data.words
    return {
        "name": data.name,
        "num_states": data.num_states,
        "num_blocks": data.num_blocks,
        "num_parameters": data.num_parameters,
        "num_words": data.num_words,
        "joined": data.joined,
        "byte_level": data.byte_level,
        "text": {
            "label": data.text,
            "perplexity": data.perplexity,
            "tokens": packed(place[data.tokens]),
        },
        "usage": as_json(data.usage),
        "blocks": as_json(data.blocks),
        "words": {
            "name": [data.names[word] for word in kept.tolist()],
            "prob": packed(words.prob[kept]),
            "block": packed(words.block[kept]),
            "state": packed(words.state[kept]),
            "state_prob": packed(words.state_prob[kept]),
        },
        "states": {
            "number": packed(states.number),
            "use": packed(states.use),
            "block": packed(states.block),
            "position": packed(states.position),
            "first_word": packed(states.first_word),
            "word": packed(place[states.word]),
            "word_log_prob": packed(states.word_log_prob),
            "next": packed(states.next),
            "next_prob": packed(states.next_prob),
            "previous": packed(states.previous),
            "previous_prob": packed(states.previous_prob),
            "example": packed(states.example),
            "example_prob": packed(states.example_prob),
        },
        "texts": as_json(data.texts),
        "training": as_json(data.training),
    }


def packed(column: NDArray[Any]) -> dict[str, Any]:
    """A column of numbers as base64, little-endian: floats in 32 bits, integers in the fewest that hold them."""
    kind: np.dtype[Any] = np.dtype("<f4")
    if not np.issubdtype(column.dtype, np.floating):
        least, most = (int(column.min()), int(column.max())) if column.size else (0, 0)
        kinds = [np.dtype(name) for name in ("<i1", "<i2", "<i4")]
        kind = next(one for one in kinds if np.iinfo(one).min <= least and most <= np.iinfo(one).max)
    content = base64.b64encode(np.ascontiguousarray(column, dtype=kind).tobytes()).decode()
    return {"type": kind.name, "shape": list(column.shape), "base64": content}
