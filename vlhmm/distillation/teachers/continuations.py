"""Text that a teacher writes after stretches of a real text, kept in a folder: shards as they are drawn, and from them a corpus.

Its training text are the samples, its validation and test text those of the real corpus. A shard depends on its number, the
settings, the kind of device and the real text alone, so drawing can be stopped at any time and goes on with the next one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from vlhmm.baselines.sampling import BaselineSampler
from vlhmm.baselines.scorer import Baseline
from vlhmm.data import Corpus, Tokens
from vlhmm.data.atomic import atomic_write
from vlhmm.data.corpus import MANIFEST, eos_rule
from vlhmm.data.prepare import write_manifest
from vlhmm.data.sources import SPLITS
from vlhmm.data.token_file import id_dtype, token_writer
from vlhmm.distillation.teachers.drawing import TextDrawer
from vlhmm.distillation.teachers.model import Teacher
from vlhmm.distillation.teachers.samples import SHARDS, claimed, shards_of
from vlhmm.distributed import ALONE, World, broadcast_object, first_does, gather_when_done
from vlhmm.tensor_file import read_tensor_header, read_tensors, write_tensors

TEACHER = "teacher.json"
"""How the teacher rates what it wrote."""


@dataclass(frozen=True)
class ContinuationSettings:
    """What decides the text of every shard, beside the kind of device."""

    teacher: str
    """SHA-256 of a baseline, or the name of a language model."""
    corpus: str
    """Hash of the real text."""
    length: int
    prefix: int
    temperature: float
    batch_size: int
    seed: int
    device: str
    """cuda or cpu."""
    context: int = 0
    """The last tokens of its prefix that a text begins with."""
    per_prefix: int = 1
    """Texts drawn after each prefix."""

    def to_dict(self) -> dict[str, Any]:
        """As a folder has them: one that was drawn before the last two settings existed says nothing of them."""
        later = {"context": 0, "per_prefix": 1}
        return {name: value for name, value in asdict(self).items() if name not in later or value != later[name]}


@dataclass(frozen=True)
class ContinuationEvent:
    """One more shard is on disk."""

    num_tokens: int
    """Drawn so far, earlier runs included."""
    new_tokens: int
    """Of this run."""
    perplexity: float
    """Of this shard, by the distribution that it was drawn from."""


@dataclass(frozen=True)
class Continued:
    """What a teacher wrote after prefixes, one text a row."""

    tokens: Int[Tensor, "B T"]
    lengths: Int[Tensor, " B"]
    log_probs: Float[Tensor, " B"]
    position_log_probs: Float[Tensor, " T"] | None = None
    """Means over rows, where all are of one length."""


Continues = Callable[[Int[Tensor, "B P"], int], Continued]
"""A teacher that continues prefixes, by a seed."""


def baseline_writer(model: Baseline, settings: ContinuationSettings) -> Continues:
    """A baseline of this package."""
    sampler = BaselineSampler(
        model,
        batch_size=settings.batch_size,
        length=settings.length,
        temperature=settings.temperature,
        per_prefix=settings.per_prefix,
    )
    lengths = torch.full((settings.batch_size * settings.per_prefix,), settings.length)

    def write(prefixes: Tensor, seed: int) -> Continued:
        drawn = sampler(prefixes, seed)
        return Continued(drawn.tokens, lengths, drawn.log_probs, drawn.position_log_probs)

    return write


def language_model_writer(teacher: Teacher, settings: ContinuationSettings) -> Continues:
    """A causal language model of transformers; its texts end at EOS. Without prefix they begin from its BOS."""
    begin = [] if settings.prefix else teacher.prompt_ids(None)[0]
    drawer = TextDrawer(
        teacher,
        max_tokens=settings.length,
        temperature=settings.temperature,
        longest_prompt=max(settings.prefix, len(begin)),
    )

    def write(prefixes: Tensor, seed: int) -> Continued:
        generator = torch.Generator(teacher.device).manual_seed(seed)
        prompts = [begin + prefix for prefix in prefixes.tolist()]
        drawn = [drawer(prompts, generator) for _ in range(settings.per_prefix)]
        return Continued(
            # Where all have ended early their rows are shorter.
            torch.cat([pad(one.tokens, (0, settings.length - one.tokens.shape[1])) for one in drawn]),
            torch.cat([one.lengths for one in drawn]),
            torch.cat([one.log_probs for one in drawn]),
        )

    return write


def draw_continuations(
    folder: Path,
    settings: ContinuationSettings,
    num_tokens: int,
    load: Callable[[], Continues],
    corpus: Corpus,
    here: World = ALONE,
) -> Generator[ContinuationEvent, None, None]:
    """Draw shards until `num_tokens` tokens are there, then write the corpus.

    Ranks draw a shard each at a time, and the first writes them: the samples are those of one process.

    Args:
        folder: Where the samples are kept.
        settings: What decides them; samples of other settings are refused.
        num_tokens: Tokens to draw, at least.
        load: Gives the teacher; called only if text is missing.
        corpus: The real text, whose validation and test text become those of the samples.
        here: The ranks.

    Yields:
        An event for each new shard, or where there are several ranks for one of each.

    Raises:
        ValueError: The text is shorter than a prefix.
        FolderError: The folder holds samples of other settings, or is in use.
    """
    if settings.prefix > len(corpus.train):
        raise ValueError(
            f"a prefix of {settings.prefix:,} tokens, but the training text has {len(corpus.train):,}: make samples.prefix smaller"
        )
    with claimed(folder, settings.to_dict(), here):
        paths = shards_of(folder) if here.is_first else []
        found = sum(_length_of(path) for path in paths), len(paths), (folder / MANIFEST).is_file()
        (drawn, number, finished), new = broadcast_object(found, here, "reading samples"), 0
        if drawn >= num_tokens and finished:
            return
        write: Continues | None = None
        while drawn < num_tokens:
            write = write or load()
            made = _draw_shard(number + here.rank, write, settings, corpus.train)
            counts, log_prob = [0], 0.0
            for tensors in gather_when_done(made, here, "drawing samples"):
                if drawn >= num_tokens:
                    # One process would not have drawn it.
                    break
                counts.append(int(tensors["lengths"].sum()) - settings.context * len(tensors["lengths"]))
                log_prob += float(tensors["log_probs"].sum())
                if here.is_first:
                    about = {"kind": "samples", "tokens": str(counts[-1])}
                    write_tensors(folder / SHARDS / f"{number:06d}.safetensors", tensors, about)
                number, drawn, new = number + 1, drawn + counts[-1], new + counts[-1]
            yield ContinuationEvent(drawn, new, math.exp(-log_prob / sum(counts)))
        first_does(lambda: _write_corpus(folder, settings, corpus), here, "writing samples")


def _draw_shard(number: int, write: Continues, settings: ContinuationSettings, text: Tokens) -> dict[str, Tensor]:
    random = np.random.default_rng([settings.seed, number])
    begins = random.integers(len(text) - settings.prefix + 1, size=settings.batch_size)
    prefixes = text.ids[begins[:, None] + np.arange(settings.prefix)].astype(np.int64)
    made = write(torch.from_numpy(prefixes), int(random.integers(2**62)))
    lengths = made.lengths.cpu() + settings.context
    context = torch.from_numpy(prefixes[:, settings.prefix - settings.context :]).int().repeat(settings.per_prefix, 1)
    tokens = torch.cat([context, made.tokens.int().cpu()], dim=1)
    written = torch.arange(tokens.shape[1]) < lengths[:, None]
    ids = tokens.flatten() if bool((lengths == tokens.shape[1]).all()) else tokens[written]
    tensors = {"ids": ids, "lengths": lengths, "log_probs": made.log_probs.double().cpu()}
    if made.position_log_probs is not None:
        tensors["position_log_probs"] = made.position_log_probs.float().cpu()
    return tensors


def _length_of(path: Path) -> int:
    return int(read_tensor_header(path).metadata["tokens"])


def _write_corpus(folder: Path, settings: ContinuationSettings, corpus: Corpus) -> None:
    tokenizer = corpus.tokenizer
    tokenizer.save(folder / "tokenizer.json")
    of_file: dict[str, Any] = {"vocab_size": tokenizer.vocab_size, "tokenizer_hash": tokenizer.hash}
    total, drawn, log_prob = 0, 0, 0.0
    by_position: list[Tensor] = []
    with token_writer(folder / "train.tokens", **of_file) as writer:
        for path in shards_of(folder):
            tensors, _ = read_tensors(path)
            lengths = tensors["lengths"].numpy()
            writer.write(tensors["ids"].numpy().astype(id_dtype(tokenizer.vocab_size)))
            writer.add_documents(total + np.cumsum(lengths))
            writer.add_source(None, None)
            total += int(lengths.sum())
            drawn += int(lengths.sum()) - settings.context * len(lengths)
            log_prob += float(tensors["log_probs"].sum())
            if "position_log_probs" in tensors:
                by_position.append(tensors["position_log_probs"].double())
    for split in SPLITS:
        if split != "train":
            getattr(corpus, split).save(folder / f"{split}.tokens", **of_file)
    rated: dict[str, Any] = {"perplexity": math.exp(-log_prob / drawn), "tokens": drawn}
    if by_position:
        mean = torch.stack(by_position).mean(0)
        rated["perplexity_by_position"] = [round(value, 3) for value in (-mean).exp().tolist()]
    atomic_write(folder / TEACHER, json.dumps(rated, indent=2).encode())
    note = f"{settings.length} tokens after {settings.prefix} of {corpus.name}, of teacher {settings.teacher[:12]}"
    note += f", with {settings.context} of these" if settings.context else ""
    write_manifest(folder, folder.name, tokenizer, eos_rule(tokenizer), note)
