"""What an HMM is distilled from: text that a teacher writes, or a text and a teacher that reads it."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vlhmm.data import Corpus, load_corpus
from vlhmm.data.corpus import MANIFEST
from vlhmm.data.vocabulary import Vocabulary
from vlhmm.distillation.decoder import DecoderTraining, TrainedDecoder, decoder_training
from vlhmm.distillation.lvd import ClusterEvent, LVDPlan, StateClusters, VectorsEvent, VectorTeacher, vector_teacher
from vlhmm.distillation.lvd.teachers import require_vocabulary, teacher_and_tokenizer
from vlhmm.distillation.pipeline import HeldOut, drawing, fitting, fitting_lvd, held_out
from vlhmm.distillation.teachers import Teacher, load_teacher
from vlhmm.distillation.teachers.samples import num_sampled
from vlhmm.distributed import ALONE, World, first_does, first_yields
from vlhmm.hmm import hmm_of_normalized
from vlhmm.models import Model
from vlhmm.progress import Note, Progress, result_of
from vlhmm.training.joint_phase import JointPhase
from vlhmm.training.plan import kept_tokenizer, training_steps
from vlhmm.training.presets import Recipe
from vlhmm.training.trainer import CheckEvent, StepEvent

TEACHER = "teacher"
"""Where in a run folder a decoder that was trained for it lies."""
TEACHER_STEPS = 500
"""A decoder's batches are small enough for so many steps."""


@dataclass(frozen=True)
class DrawnSamples:
    """Text that a teacher has written."""

    folder: Path
    seconds: float
    """What drawing it took, this time."""


@dataclass(frozen=True)
class HeldOutSamples:
    """How well an HMM knows samples that it was not trained on."""

    sampling_seconds: float
    held_out: HeldOut


@dataclass(frozen=True)
class Material:
    """What an HMM is trained on, and how."""

    recipe: Recipe
    corpus: Corpus
    source: str
    """The corpus by its name or path."""
    data_dir: Path | None
    teacher: VectorTeacher | None
    """Its vectors give the first states; None: training begins at random."""
    samples: DrawnSamples | None = None
    """None: the corpus is a text that no teacher wrote."""


@dataclass(frozen=True)
class Drawing:
    """How text is drawn."""

    folder: Path
    tokens: int
    max_tokens: int = 64
    temperature: float = 1.0
    prompts: Path | None = None
    batch_size: int | None = None
    seed: int = 0
    max_seconds: float | None = None


def draw_text(
    teacher: str, how: Drawing, recipe: Recipe, *, lvd: bool = False, device: torch.device | str = "cpu"
) -> Material:
    """Let a teacher write text to train an HMM on.

    Args:
        teacher: A causal language model of Hugging Face: its name, its folder or a .gguf file.
        how: How much is drawn, and where it is kept.
        recipe: Settings of model and training; the window becomes the longest sample.
        lvd: Keep the teacher, whose vectors give the first states.
        device: Where the teacher runs.

    Returns:
        The material; samples that are in the folder already are not drawn again.

    Raises:
        ValueError: There are too few tokens for one training step, or the folder holds samples of other settings.
    """
    return result_of(drawing_text(teacher, how, recipe, lvd=lvd, device=device))


def drawing_text(
    teacher: str,
    how: Drawing,
    recipe: Recipe,
    *,
    lvd: bool = False,
    device: torch.device | str = "cpu",
    here: World = ALONE,
) -> Generator[Progress | Note, None, Material]:
    """`draw_text`, telling how far it is."""
    device = torch.device(device)
    prompts = None if how.prompts is None else _read_prompts(how.prompts)
    already = first_does(lambda: num_sampled(how.folder), here, "reading samples")
    recipe = fitting(recipe, max(how.tokens, already), how.max_tokens)
    loaded: Teacher | None = load_teacher(teacher, device) if lvd else None
    begun, event = time.monotonic(), None
    for event in drawing(
        loaded or teacher,
        how.folder,
        tokens=how.tokens,
        max_tokens=how.max_tokens,
        temperature=how.temperature,
        prompts=prompts,
        batch_size=how.batch_size,
        seed=how.seed,
        device=device,
        max_seconds=how.max_seconds,
        here=here,
    ):
        yield Progress(
            f"drawing from {teacher}",
            event.num_tokens,
            how.tokens,
            unit="tokens",
            amount=event.new_tokens,
            note=f"{event.num_tokens:,} tokens",
            seconds_left=event.seconds_left,
        )
    seconds = time.monotonic() - begun
    if event is not None:
        yield Note(
            f"{event.num_samples:,} samples of {teacher}, {event.num_tokens:,} tokens in {how.folder}; "
            f"{event.new_tokens / seconds:,.0f} tokens/s"
        )
    vectors = None if loaded is None else vector_teacher(loaded)
    samples = DrawnSamples(how.folder, seconds)
    return Material(recipe, load_corpus(how.folder), str(how.folder), None, vectors, samples)


def held_out_samples(model: Model, corpus: Corpus, samples: DrawnSamples) -> HeldOutSamples:
    with torch.no_grad():
        hmm = hmm_of_normalized(model.tables().detach())
    return HeldOutSamples(samples.seconds, held_out(hmm, corpus, samples.folder))


def read_text(
    teacher: str | None,
    text: str,
    recipe: Recipe,
    *,
    teacher_tokens: int | None = None,
    out: Path,
    data_dir: Path | None = None,
    vocabulary: Vocabulary | None = None,
    device: torch.device | str = "cpu",
) -> Material:
    """Read a text, and a teacher whose vectors of it give the first states.

    Args:
        teacher: A language model of Hugging Face, or a folder that a trained decoder is in; None: one is trained on the text.
        text: A corpus or a text file.
        recipe: Settings of model and training.
        teacher_tokens: Tokens of the text that a new teacher is trained on.
        out: The folder of the run, where a new teacher is kept.
        data_dir: The folder that holds ptb/ and wikitext-2/.
        vocabulary: The tokenizer of text that a new teacher is trained on; None: as in `load_corpus`.
        device: Where the teacher runs.

    Returns:
        The material.

    Raises:
        ValueError: Both or neither of `teacher` and `teacher_tokens` are given, or text and teacher have other vocabularies.
        KeyboardInterrupt: SIGINT or SIGTERM stopped the training of the teacher.
    """
    steps = reading_text(
        teacher,
        text,
        recipe,
        teacher_tokens=teacher_tokens,
        out=out,
        data_dir=data_dir,
        vocabulary=vocabulary,
        device=device,
    )
    return result_of(steps)


def reading_text(
    teacher: str | None,
    text: str,
    recipe: Recipe,
    *,
    teacher_tokens: int | None = None,
    out: Path,
    data_dir: Path | None = None,
    vocabulary: Vocabulary | None = None,
    device: torch.device | str = "cpu",
    here: World = ALONE,
) -> Generator[Progress | Note, None, Material]:
    """`read_text`, telling how far it is."""
    device = torch.device(device)
    vectors: VectorTeacher
    if (teacher is None) == (teacher_tokens is None):
        raise ValueError("--text needs one teacher: name it, or say how many --teacher-tokens a new one is trained on")
    yield Progress(f"reading {text}", 0, None)
    if teacher is None:
        assert teacher_tokens is not None
        made = vocabulary or Vocabulary()
        # A run that goes on reads with the tokenizer that it began with.
        tokenizer = kept_tokenizer(out, text) if made == Vocabulary() else made.tokenizer
        corpus = load_corpus(
            text, data_dir=data_dir, tokenizer=tokenizer, vocab_size=made.vocab_size, min_count=made.min_count
        )
        # Validate the text before training a teacher.
        training_steps(recipe, corpus)
        asked, window, seed = teacher_tokens, recipe.train.window, recipe.train.seed
        vectors = yield from first_yields(
            lambda: _training_teacher(corpus, asked, window, seed, out / TEACHER, device), here, "the teacher"
        )
    elif (Path(text) / MANIFEST).is_file():
        corpus = load_corpus(text, data_dir=data_dir)
        vectors, own = teacher_and_tokenizer(teacher, device)
        require_vocabulary(teacher, own, corpus.tokenizer)
    else:
        vectors, own = teacher_and_tokenizer(teacher, device)
        corpus = load_corpus(text, data_dir=data_dir, tokenizer=own)
    if corpus.tokenizer.eos_id is None:
        recipe = replace(recipe, blocks=replace(recipe.blocks, reset="carry"))
    return Material(recipe, corpus, text, data_dir, vectors)


def _training_teacher(
    corpus: Corpus, tokens: int, window: int, seed: int, folder: Path, device: torch.device
) -> Generator[Progress | Note, None, VectorTeacher]:
    if tokens < 0:
        raise ValueError(f"--teacher-tokens is {tokens}, but must be at least 0, which leaves the teacher untrained")
    batch_size = min(DecoderTraining().batch_size, max(8, tokens // window // TEACHER_STEPS))
    training = DecoderTraining(tokens=tokens, batch_size=batch_size, window=window, seed=seed)
    perplexity = None
    for event in decoder_training(corpus, training=training, out=folder, resume=True, device=device):
        match event:
            case StepEvent(step, num_steps, loss, seen):
                what, note = "training the teacher", f"loss {loss:.3f}"
                yield Progress(what, step, num_steps, unit="tokens", amount=seen, note=note)
            case CheckEvent():
                perplexity = event.valid_perplexity
            case TrainedDecoder(decoder, seen, reason):
                if reason == "interrupted":
                    raise KeyboardInterrupt
                known = "" if perplexity is None else f", valid perplexity {perplexity:,.1f} in windows of {window}"
                yield Note(f"teacher of {seen:,} tokens in {folder}{known}")
                return decoder.requires_grad_(False).eval()
            case _:
                pass
    raise AssertionError("training always ends with TrainedDecoder")


def finding_states(
    material: Material,
    teacher: VectorTeacher,
    out: Path,
    cluster_tokens: int | None = None,
    joint_tokens: int | None = None,
    here: World = ALONE,
) -> Generator[Progress | Note, None, JointPhase | None]:
    """Clusters of the teacher's vectors as states, kept in the run's folder."""
    recipe, corpus = material.recipe, material.corpus
    settings = fitting_lvd(corpus, recipe.train, teacher, cluster_tokens, joint_tokens)
    blocks = yield from recipe.making_blocks(corpus, here)
    support = recipe.make_model(corpus, blocks).support
    plan = LVDPlan.of(support, corpus, teacher, settings, recipe.train)
    for event in plan.clustering(None, out, resume=True, here=here):
        match event:
            case VectorsEvent(done, total):
                yield Progress("vectors", done, total, unit="tokens", note=f"{done:,} tokens")
            case ClusterEvent(_, _, made):
                yield Progress("clusters", made.iteration, made.iterations, note=f"distance {made.distance:.4g}")
            case StateClusters():
                yield Note(
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
