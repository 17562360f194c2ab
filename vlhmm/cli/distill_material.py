"""What `vlhmm distill` trains on: text that a teacher writes, or a text and a teacher that reads it; shown while it is made."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vlhmm.cli.options import read_corpus
from vlhmm.cli.run import training_steps
from vlhmm.cli.show import message, progress_bar, short
from vlhmm.data import Corpus, load_corpus
from vlhmm.data.corpus import MANIFEST
from vlhmm.distillation.decoder import DecoderTraining, TrainedDecoder, decoder_training
from vlhmm.distillation.lvd import ClusterEvent, LVDPlan, StateClusters, VectorsEvent, VectorTeacher, vector_teacher
from vlhmm.distillation.lvd.teachers import require_vocabulary, teacher_and_tokenizer
from vlhmm.distillation.pipeline import drawing as draw
from vlhmm.distillation.pipeline import fitting, fitting_lvd, held_out
from vlhmm.distillation.teachers import load_teacher
from vlhmm.distillation.teachers.samples import num_sampled
from vlhmm.hmm import HMM
from vlhmm.models import Model
from vlhmm.training.joint_phase import JointPhase
from vlhmm.training.presets import Recipe
from vlhmm.training.trainer import CheckEvent, StepEvent

TEACHER = "teacher"
"""Where in a run folder a decoder that was trained for it lies."""
TEACHER_STEPS = 500
"""A decoder's batches are small enough for so many steps."""


@dataclass(frozen=True)
class Material:
    """What an HMM is trained on, and how."""

    recipe: Recipe
    corpus: Corpus
    source: str
    """The corpus as the command line names it."""
    data_dir: Path | None
    teacher: VectorTeacher | None
    """Its vectors give the first states; None: training begins at random."""
    figures: Callable[[Model, Corpus], dict[str, Any]] | None


@dataclass(frozen=True)
class Drawing:
    """How text is drawn."""

    folder: Path
    tokens: int
    max_tokens: int
    temperature: float
    prompts: Path | None
    batch_size: int | None
    seed: int
    max_seconds: float | None


def drawn_text(name: str, drawing: Drawing, recipe: Recipe, lvd: bool, device: torch.device) -> Material:
    """Text that the teacher writes."""
    folder, prompts = drawing.folder, None if drawing.prompts is None else _read_prompts(drawing.prompts)
    recipe = fitting(recipe, max(drawing.tokens, num_sampled(folder)), drawing.max_tokens)
    loaded = load_teacher(name, device) if lvd else None
    begun, event = time.monotonic(), None
    with progress_bar(f"drawing from {name}", drawing.tokens) as shown:
        for event in draw(
            loaded or name,
            folder,
            tokens=drawing.tokens,
            max_tokens=drawing.max_tokens,
            temperature=drawing.temperature,
            prompts=prompts,
            batch_size=drawing.batch_size,
            seed=drawing.seed,
            device=device,
            max_seconds=drawing.max_seconds,
        ):
            rate = event.new_tokens / max(time.monotonic() - begun, 1e-9)
            shown.update(event.num_tokens, note=f"{short(event.num_tokens)} tokens  {short(rate)} tokens/s")
    seconds = time.monotonic() - begun
    if event is not None:
        message(
            f"{event.num_samples:,} samples of {name}, {event.num_tokens:,} tokens in {folder}; "
            f"{short(event.new_tokens / seconds)} tokens/s"
        )

    def figures(model: Model, corpus: Corpus) -> dict[str, Any]:
        with torch.no_grad():
            hmm = HMM(model.tables().detach())
        return {"sampling_seconds": seconds, "held_out": asdict(held_out(hmm, corpus, folder))}

    vectors = None if loaded is None else vector_teacher(loaded)
    return Material(recipe, load_corpus(folder), str(folder), None, vectors, figures)


def read_text(
    name: str | None,
    text: str,
    teacher_tokens: int | None,
    data_dir: Path | None,
    recipe: Recipe,
    out: Path,
    device: torch.device,
) -> Material:
    """Text that there is, and a teacher that reads it: one of that name, or one that is trained on it first."""
    teacher: VectorTeacher
    if (name is None) == (teacher_tokens is None):
        raise ValueError("--text needs one teacher: name it, or say how many --teacher-tokens a new one is trained on")
    if name is None:
        assert teacher_tokens is not None
        corpus = read_corpus(text, data_dir)
        # What cannot be trained on needs no teacher.
        training_steps(recipe, corpus)
        teacher = _trained_teacher(
            corpus, teacher_tokens, recipe.train.window, recipe.train.seed, out / TEACHER, device
        )
    elif (Path(text) / MANIFEST).is_file():
        corpus = read_corpus(text, data_dir)
        teacher, own = teacher_and_tokenizer(name, device)
        require_vocabulary(name, own, corpus.tokenizer)
    else:
        teacher, own = teacher_and_tokenizer(name, device)
        with progress_bar(f"reading {text}", None):
            corpus = load_corpus(text, data_dir=data_dir, tokenizer=own)
    if corpus.tokenizer.eos_id is None:
        recipe = replace(recipe, blocks=replace(recipe.blocks, reset="carry"))
    return Material(recipe, corpus, text, data_dir, teacher, None)


def _trained_teacher(
    corpus: Corpus, tokens: int, window: int, seed: int, folder: Path, device: torch.device
) -> VectorTeacher:
    if tokens < 0:
        raise ValueError(f"--teacher-tokens is {tokens}, but must be at least 0, which leaves the teacher untrained")
    batch_size = min(DecoderTraining().batch_size, max(8, tokens // window // TEACHER_STEPS))
    training = DecoderTraining(tokens=tokens, batch_size=batch_size, window=window, seed=seed)
    begun, perplexity = time.monotonic(), None
    with progress_bar("training the teacher", None) as shown:
        for event in decoder_training(corpus, training=training, out=folder, resume=True, device=device):
            match event:
                case StepEvent():
                    rate = event.tokens / max(time.monotonic() - begun, 1e-9)
                    shown.update(event.step, event.num_steps, f"loss {event.loss:.3f}  {short(rate)} tokens/s")
                case CheckEvent():
                    perplexity = event.valid_perplexity
                case TrainedDecoder(decoder, seen, reason):
                    if reason == "interrupted":
                        raise KeyboardInterrupt
                    known = "" if perplexity is None else f", valid perplexity {perplexity:,.1f} in windows of {window}"
                    message(f"teacher of {seen:,} tokens in {folder}{known}")
                    return decoder.requires_grad_(False).eval()
                case _:
                    pass
    raise AssertionError("training always ends with TrainedDecoder")


def joint_phase(
    material: Material, teacher: VectorTeacher, out: Path, cluster_tokens: int | None, joint_tokens: int | None
) -> JointPhase | None:
    """Clusters of the teacher's vectors as states, kept in the run's folder."""
    recipe, corpus = material.recipe, material.corpus
    settings = fitting_lvd(corpus, recipe.train, teacher, cluster_tokens, joint_tokens)
    support = recipe.make_model(corpus, recipe.make_blocks(corpus)).support
    plan = LVDPlan.of(support, corpus, teacher, settings, recipe.train)
    begun = time.monotonic()
    with progress_bar("vectors", None) as shown:
        for event in plan.clustering(None, out, resume=True):
            match event:
                case VectorsEvent(done, total):
                    rate = done / max(time.monotonic() - begun, 1e-9)
                    shown.update(done, total, f"{short(done)} tokens  {short(rate)} tokens/s")
                case ClusterEvent(_, _, made):
                    shown.update(made.iteration, made.iterations, f"distance {made.distance:.4g}", "clusters")
                case StateClusters():
                    message(
                        f"{support.num_states:,} states from the vectors of {settings.cluster_tokens:,} tokens of {teacher.name}, "
                        f"given for the first {settings.joint_tokens:,} tokens of training"
                    )
                    return plan.joint(plan.labeller(event))
    raise AssertionError("clustering always ends with StateClusters")


def _read_prompts(path: Path) -> list[str]:
    try:
        prompts = [text for text in path.read_text(encoding="utf-8").splitlines() if text.strip()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}); convert it first") from None
    if not prompts:
        raise ValueError(f"{path} has 0 prompts, at least 1 line of text is needed")
    return prompts
