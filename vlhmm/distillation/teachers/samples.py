"""Text drawn from a teacher, kept in a folder: shards as they are drawn, and from them a corpus to train on.

A shard depends on its number and the settings alone, so drawing can be stopped at any time and goes on with the next one.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from torch import Tensor

from vlhmm.data import Tokenizer, Tokens
from vlhmm.data.atomic import LOCK, atomic_write, remove_partials
from vlhmm.data.json_file import read_json_object
from vlhmm.data.prepare import write_manifest
from vlhmm.data.token_file import id_dtype
from vlhmm.distillation.teachers.drawing import TextDrawer
from vlhmm.distillation.teachers.model import Teacher
from vlhmm.distributed import ALONE, World, any_rank, broadcast_object, first_does, gather_when_done
from vlhmm.training.checkpoint import FolderError, read_tensors, write_tensors

SETTINGS: Final = "samples.json"
SHARDS: Final = "shards"
HELD_OUT_EVERY: Final = 20
"""Of so many samples the last is for test, the one before it for validation."""
MAX_HELD_OUT: Final = 2_000
"""Samples of each held-out split at most."""


@dataclass(frozen=True)
class SampleSettings:
    """What decides the text of every shard."""

    teacher: str
    max_tokens: int = 64
    """Tokens of a sample, EOS included; a longer one is cut there, without EOS."""
    temperature: float = 1.0
    batch_size: int = 64
    """Samples drawn side by side: one shard."""
    seed: int = 0
    prompts: str = ""
    """A digest of the prompts; each sample draws one of them."""

    def __post_init__(self) -> None:
        for name in ("max_tokens", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise ValueError(f"temperature is {self.temperature}, but must be finite and above 0")


@dataclass(frozen=True)
class SampleEvent:
    """One more shard is on disk."""

    num_tokens: int
    """Drawn so far, earlier runs included."""
    num_samples: int
    new_tokens: int
    """Of this run."""
    seconds_left: float | None
    """Until drawing ends whatever is there; None: there is no such limit."""


@dataclass(frozen=True)
class Shard:
    ids: NDArray[Any]
    lengths: NDArray[np.int64]
    log_probs: NDArray[np.float64]


def digest_of(prompts: Sequence[str] | None) -> str:
    return "" if prompts is None else hashlib.sha256(json.dumps(list(prompts)).encode()).hexdigest()


def read_settings(folder: Path) -> SampleSettings | None:
    """The settings of the samples in `folder`; None where it holds none."""
    path = folder / SETTINGS
    if not path.is_file():
        return None
    try:
        return SampleSettings(**read_json_object(path))
    except (ValueError, TypeError) as error:
        raise FolderError(f"{path} cannot be read ({error}): it was edited or is of another version") from None


def num_sampled(folder: Path) -> int:
    """Tokens of the shards in `folder`."""
    return sum(int(read_shard(path).lengths.sum()) for path in shards_of(folder))


def draw_samples(
    folder: Path,
    settings: SampleSettings,
    num_tokens: int,
    load: Callable[[], Teacher],
    prompts: Sequence[str] | None = None,
    *,
    max_seconds: float | None = None,
    here: World = ALONE,
) -> Iterator[SampleEvent]:
    """Draws shards until `num_tokens` tokens are there, or time is up, then writes the corpus.

    `load` is called only if text is missing, and its time does not count. Samples of other settings are refused. Ranks draw a
    shard each at a time, and the first writes them: the samples are those of one process.
    """
    if num_tokens < 1:
        raise ValueError(f"{num_tokens} tokens are to be drawn, at least 1 is needed")
    with claimed(folder, asdict(settings), here):
        done = [read_shard(path).lengths for path in shards_of(folder)] if here.is_first else []
        drawn, samples, new = sum(int(lengths.sum()) for lengths in done), sum(map(len, done)), 0
        number = len(done)
        drawn, samples, number = broadcast_object((drawn, samples, number), here, "reading samples")
        if drawn < num_tokens:
            teacher = load()
            if here.is_first:
                _keep_tokenizer(folder, teacher.tokenizer)
            prompt_ids = teacher.prompt_ids(prompts)
            draw = TextDrawer(
                teacher,
                max_tokens=settings.max_tokens,
                temperature=settings.temperature,
                longest_prompt=max(map(len, prompt_ids)),
            )
            end = math.inf if max_seconds is None else time.monotonic() + max_seconds
            while drawn < num_tokens and not any_rank([time.monotonic() >= end], here, "drawing samples")[0]:
                made = _draw_shard(number + here.rank, teacher.device, draw, prompt_ids, settings)
                for tensors in gather_when_done(made, here, "drawing samples"):
                    if drawn >= num_tokens:
                        # One process would not have drawn it.
                        break
                    if here.is_first:
                        write_tensors(folder / SHARDS / f"{number:06d}.safetensors", tensors, {"kind": "samples"})
                    lengths = tensors["lengths"]
                    number += 1
                    drawn, samples, new = drawn + int(lengths.sum()), samples + len(lengths), new + int(lengths.sum())
                left = None if max_seconds is None else max(0.0, end - time.monotonic())
                yield SampleEvent(drawn, samples, new, left)
        first_does(lambda: _write_corpus(folder, settings), here, "writing samples")


@contextmanager
def claimed(folder: Path, settings: Mapping[str, Any], here: World = ALONE) -> Iterator[None]:
    """Holds the lock of the folder, which is for samples of these settings only. With several ranks the
    first one takes the lock."""
    if not here.is_first:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise FolderError(f"{folder} is in use by another process: wait for it, or choose another folder") from None
    with lock:
        remove_partials(folder)
        remove_partials(folder / SHARDS)
        _claim(folder, settings)
        yield


def _claim(folder: Path, now: Mapping[str, Any]) -> None:
    path = folder / SETTINGS
    if not path.is_file():
        if any(found.name != LOCK for found in folder.iterdir()):
            raise FolderError(f"{folder} holds other files: choose a new folder for the samples")
        atomic_write(path, json.dumps(dict(now), indent=2).encode())
        return
    try:
        before = read_json_object(path)
    except ValueError as error:
        raise FolderError(f"{path} cannot be read ({error}): it was edited or is of another version") from None
    if before.keys() != now.keys():
        raise FolderError(
            f"{path} cannot be read: it is of samples of another kind, was edited or is of another version"
        )
    changed = [f"{name} = {value!r}, not {now[name]!r}" for name, value in before.items() if now[name] != value]
    if changed:
        raise FolderError(
            f"the samples in {folder} were drawn with {'; '.join(changed)}: use the same, or another folder"
        )


def _keep_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    path = folder / "tokenizer.json"
    if not path.exists():
        tokenizer.save(path)
    elif Tokenizer.load(path).hash != tokenizer.hash:
        raise FolderError(f"the samples in {folder} have another tokenizer than the teacher: choose another folder")


def _draw_shard(
    number: int, device: torch.device, draw: TextDrawer, prompts: list[list[int]], settings: SampleSettings
) -> dict[str, Tensor]:
    random = np.random.default_rng([settings.seed, number])
    chosen = [prompts[index] for index in random.integers(len(prompts), size=settings.batch_size)]
    generator = torch.Generator(device).manual_seed(int(random.integers(2**62)))
    drawn = draw(chosen, generator)
    written = torch.arange(drawn.tokens.shape[1], device=drawn.tokens.device) < drawn.lengths[:, None]
    tensors = {"ids": drawn.tokens[written].int(), "lengths": drawn.lengths, "log_probs": drawn.log_probs}
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def shards_of(folder: Path) -> list[Path]:
    """In order, up to the first that is missing."""
    paths = sorted((folder / SHARDS).glob("*.safetensors"))
    return [path for number, path in enumerate(paths) if path.name == f"{number:06d}.safetensors"]


def read_shard(path: Path) -> Shard:
    tensors, _ = read_tensors(path)
    missing = {"ids", "lengths", "log_probs"} - tensors.keys()
    if missing:
        raise FolderError(f"{path} lacks {', '.join(sorted(missing))}: it is no shard of samples; delete it")
    return Shard(tensors["ids"].numpy(), tensors["lengths"].numpy(), tensors["log_probs"].numpy())


def _write_corpus(folder: Path, settings: SampleSettings) -> None:
    """train, valid and test as `load_corpus` reads them; the training text in windows that begin where a sample does."""
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    shards = [read_shard(path) for path in shards_of(folder)]
    lengths = np.concatenate([shard.lengths for shard in shards])
    every = Tokens(
        np.concatenate([shard.ids for shard in shards]).astype(id_dtype(tokenizer.vocab_size)),
        np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
    )
    number = np.arange(len(lengths))
    # The same samples stay held out however many are drawn later.
    held_out = number // HELD_OUT_EVERY < MAX_HELD_OUT
    test = held_out & (number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1)
    valid = held_out & (number % HELD_OUT_EVERY == HELD_OUT_EVERY - 2)
    if not test.any():
        raise ValueError(
            f"{len(lengths)} samples, but at least {HELD_OUT_EVERY} are needed to hold some out: draw more tokens"
        )
    splits = {
        "train": packed(_chosen(every, ~(valid | test)), settings.max_tokens),
        "valid": _chosen(every, valid),
        "test": _chosen(every, test),
    }
    if not len(splits["train"]):
        raise ValueError(f"{int(lengths.sum())} tokens do not fill one window of {settings.max_tokens}: draw more")
    for split, tokens in splits.items():
        tokens.save(folder / f"{split}.tokens", vocab_size=tokenizer.vocab_size, tokenizer_hash=tokenizer.hash)
    log_probs = np.concatenate([shard.log_probs for shard in shards])
    teacher = {
        split: math.exp(-float(log_probs[chosen].sum()) / int(lengths[chosen].sum()))
        for split, chosen in (("valid", valid), ("test", test))
    }
    atomic_write(folder / "teacher.json", json.dumps({"perplexity": teacher}, indent=2).encode())
    write_manifest(folder, folder.name, tokenizer, "document", f"of {settings.teacher}")


def _chosen(tokens: Tokens, documents: NDArray[np.bool_]) -> Tokens:
    begins, ends = tokens.offsets[:-1][documents], tokens.offsets[1:][documents]
    return _joined(tokens, begins, ends - begins)


def packed(tokens: Tokens, window: int) -> Tokens:
    """Windows of that length one after the other, each from the beginning of a document on.

    A document that does not fit into the rest of a window fills it with its beginning, and stands whole in the next: no
    conditional p(x_t | x_<t) is ever scored without its full context. What does not fill a window at the end is left out.
    """
    begins: list[int] = []
    sizes: list[int] = []
    left = window
    # Stretches up to the end of the last full window.
    filled = 0
    for begin, end in zip(tokens.offsets[:-1].tolist(), tokens.offsets[1:].tolist(), strict=True):
        size = end - begin
        if size > window:
            raise ValueError(f"a document of {size} tokens, but a window has {window}: make the window longer")
        for stretch in (left, size) if size > left else (size,):
            begins.append(begin)
            sizes.append(stretch)
            left -= stretch
            if not left:
                left, filled = window, len(sizes)
    del begins[filled:], sizes[filled:]
    return _joined(tokens, np.array(begins, np.int64), np.array(sizes, np.int64))


def _joined(tokens: Tokens, begins: NDArray[np.int64], sizes: NDArray[np.int64]) -> Tokens:
    """The stretches of the text that begin there, one document each."""
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    positions = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], sizes)
    return Tokens(tokens.ids[positions], offsets)


def teacher_perplexity(folder: Path) -> dict[str, float]:
    """The teacher's own perplexity per token on the held-out samples, by the distribution they were drawn from."""
    path = folder / "teacher.json"
    values = read_json_object(path).get("perplexity")
    if not isinstance(values, dict) or not all(isinstance(value, float) for value in values.values()):
        raise FolderError(f"{path} has no perplexities: it was edited; draw the samples again")
    return values
