"""From a language model to an HMM over its own tokens: draw text from it, then train on that text, first on the clusters of
the model's own vectors if asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from vlhmm.baselines import Unigram
from vlhmm.data import Corpus, Tokens, load_corpus
from vlhmm.distillation.lvd import LVDSettings, VectorTeacher, lvd_training, vector_teacher
from vlhmm.distillation.lvd.vectors import width_of
from vlhmm.distillation.teachers import Teacher, load_teacher
from vlhmm.distillation.teachers.model import require_transformers
from vlhmm.distillation.teachers.samples import (
    HELD_OUT_EVERY,
    SampleEvent,
    SampleSettings,
    digest_of,
    draw_samples,
    num_sampled,
    read_settings,
    teacher_perplexity,
)
from vlhmm.distributed import ALONE, World, first_does
from vlhmm.hmm import HMM
from vlhmm.lm import LanguageModel
from vlhmm.settings import settings_from
from vlhmm.training.gradient import train
from vlhmm.training.presets import Recipe, preset
from vlhmm.training.settings import TrainSettings
from vlhmm.training.trainer import run_to_end

SAMPLES = "samples"
"""Where in a run folder the samples lie, unless another folder is given."""
GPU_BATCH, CPU_BATCH = 4096, 32
"""Texts drawn side by side."""
CLUSTER_TOKENS, COMPONENTS = 2_000_000, 128
"""Distillation clusters the vectors of so many tokens at most, by so many components: a gigabyte."""
JOINT_TOKENS, JOINT_PART = 5_000_000, 0.1
"""p(x, z) gets so many tokens at most, and of a short training this part."""
SCORED_TOGETHER = 64
"""Held-out samples scored at once."""


@dataclass(frozen=True)
class HeldOut:
    """Perplexities per token, EOS included, of samples that training did not see; each sample is scored from its beginning.

    Example:
        >>> from vlhmm.distillation.pipeline import HeldOut
        >>> HeldOut(hmm=21.0, teacher=15.0, unigram=90.0, num_samples=100, num_tokens=2000).hmm
        21.0
    """

    hmm: float
    """Perplexity of the HMM."""
    teacher: float
    """Perplexity of the teacher given the prompt, which the HMM does not see: a lower bound in expectation."""
    unigram: float
    """Perplexity of the unigram model of the training samples."""
    num_samples: int
    """Number of samples."""
    num_tokens: int
    """Number of tokens."""


@dataclass(frozen=True)
class Distilled:
    """A distilled language model, and how well it predicts the teacher's text.

    Example:
        >>> from vlhmm.distillation.pipeline import HeldOut
        >>> lm = vlhmm.load("demo-model")
        >>> distilled = vlhmm.Distilled(lm, HeldOut(hmm=21.0, teacher=15.0, unigram=90.0, num_samples=100, num_tokens=2000))
        >>> distilled.lm.hmm.num_states, distilled.held_out.teacher < distilled.held_out.hmm
        (48, True)
    """

    lm: LanguageModel
    """The distilled language model."""
    held_out: HeldOut
    """Perplexities of samples that training did not see."""


def distill(
    teacher: str | Teacher,
    out: str | Path,
    *,
    states: int = 512,
    tokens: int = 10_000_000,
    max_tokens: int = 64,
    temperature: float = 1.0,
    prompts: Sequence[str] | None = None,
    samples: str | Path | None = None,
    batch_size: int | None = None,
    lvd: bool | LVDSettings = False,
    seed: int = 0,
    device: torch.device | str = "cpu",
    recipe: Recipe | None = None,
    **changes: Any,
) -> Distilled:
    """Train a dense HMM on text that a language model writes.

    The teacher writes `tokens` tokens, and the HMM is trained on them. The vocabulary of the HMM is that of the teacher. A call that
    was interrupted continues where it was when it is repeated. Needs the extra `vlhmm[llm]`.

    Args:
        teacher: A causal language model of Hugging Face: its name, its folder, a .gguf file, or a loaded `Teacher`.
        out: Folder for the model, as `vlhmm.train` writes it.
        states: Number of states.
        tokens: Tokens to draw from the teacher.
        max_tokens: Largest length of a sample.
        temperature: Sampling temperature of the teacher.
        prompts: What the samples continue; None: the BOS token alone.
        samples: Folder for the samples, which can be used again; None: inside `out`.
        batch_size: Samples drawn at a time; None: 4,096 on a GPU, 32 on a CPU.
        lvd: Begin with latent variable distillation: states are clusters of the teacher's hidden vectors.
        seed: Seed of sampling and training.
        device: Where teacher and HMM run.
        recipe: Settings of model and training; None: the preset "distill".
        **changes: Training settings by name, in place of those of the recipe; the batch size of training is in `recipe` alone.

    Returns:
        The language model, and the perplexities of held-out samples.

    Raises:
        ValueError: The teacher cannot be loaded, a setting is out of range, or there are too few tokens for one training step.

    Example:
        Here "teacher" is a folder that `save_pretrained` of transformers wrote, with model and tokenizer.

        >>> settings = {"max_tokens": 20, "epochs": 60, "learning_rate": 0.05}
        >>> distilled = vlhmm.distill("teacher", "distilled", states=8, tokens=5000, **settings)
        >>> distilled.lm.hmm.num_states, distilled.held_out.hmm < distilled.held_out.unigram
        (8, True)
    """
    device = torch.device(device)
    if lvd and isinstance(teacher, str):
        # It generates text, then vectors.
        teacher = load_teacher(teacher, device)
    folder = Path(out) / SAMPLES if samples is None else Path(samples)
    recipe = recipe or preset("distill")
    recipe = replace(
        recipe,
        model=replace(recipe.model, states_per_block=states),
        train=settings_from(TrainSettings, {**asdict(recipe.train), **changes, "seed": seed}),
    )
    recipe = fitting(recipe, max(tokens, num_sampled(folder)), max_tokens)
    for _ in drawing(
        teacher,
        folder,
        tokens=tokens,
        max_tokens=max_tokens,
        temperature=temperature,
        prompts=prompts,
        batch_size=batch_size,
        seed=seed,
        device=device,
    ):
        pass
    corpus = load_corpus(folder)
    model = recipe.make_model(corpus, recipe.make_blocks(corpus)).to(device)
    if lvd and isinstance(teacher, Teacher):
        vectors = vector_teacher(teacher)
        settings = lvd if isinstance(lvd, LVDSettings) else fitting_lvd(corpus, recipe.train, vectors)
        run_to_end(lvd_training(model, corpus, vectors, settings, recipe.train, out=out, resume=True))
    else:
        train(model, corpus, recipe.train, out=out, resume=True)
    lm = LanguageModel(model, corpus.tokenizer)
    return Distilled(lm, held_out(lm.hmm, corpus, folder))


def drawing(
    teacher: str | Teacher,
    folder: Path,
    *,
    tokens: int,
    max_tokens: int = 64,
    temperature: float = 1.0,
    prompts: Sequence[str] | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    max_seconds: float | None = None,
    here: World = ALONE,
) -> Iterator[SampleEvent]:
    """Draws the samples, a shard at a time, and leaves them in `folder` as a corpus; fewer than asked for if time is up."""
    device = torch.device(device)
    if isinstance(teacher, str) and num_sampled(folder) < tokens:
        # Before anything is written: the folder is claimed first, and the teacher loaded then.
        require_transformers()
    before = first_does(lambda: read_settings(folder), here, "reading samples")
    default = before.batch_size if before is not None else GPU_BATCH if device.type == "cuda" else CPU_BATCH
    settings = SampleSettings(
        teacher if isinstance(teacher, str) else teacher.name,
        max_tokens,
        temperature,
        default if batch_size is None else batch_size,
        seed,
        digest_of(prompts),
    )
    load: Callable[[], Teacher] = (
        (lambda: load_teacher(teacher, device)) if isinstance(teacher, str) else (lambda: teacher)
    )
    yield from draw_samples(folder, settings, tokens, load, prompts, max_seconds=max_seconds, here=here)


def fitting(recipe: Recipe, tokens: int, max_tokens: int) -> Recipe:
    """The recipe for so much text in samples of that length; refused before any is drawn if it is too little.

    A window holds the longest sample, so that each begins as a text does.
    """
    if tokens < 1:
        raise ValueError(f"{tokens} tokens are to be drawn, at least 1 is needed")
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}, but must be at least 1")
    made = replace(recipe, train=replace(recipe.train, window=max_tokens))
    needed = made.train.batch_size * max_tokens
    for_training = tokens * (HELD_OUT_EVERY - 2) // HELD_OUT_EVERY
    if for_training < needed:
        raise ValueError(
            f"{tokens:,} tokens leave {for_training:,} for training, but one step of batch_size {made.train.batch_size} x "
            f"{max_tokens} needs {needed:,}: draw more, or make batch_size smaller"
        )
    return made


def fitting_lvd(
    corpus: Corpus,
    train: TrainSettings,
    teacher: VectorTeacher,
    cluster_tokens: int | None = None,
    joint_tokens: int | None = None,
) -> LVDSettings:
    """Distillation of a text that training sees all of, for a training of that length."""
    length = len(corpus.train)
    if cluster_tokens is None:
        cluster_tokens = min(CLUSTER_TOKENS, length)
    if joint_tokens is None:
        joint_tokens = max(1, min(JOINT_TOKENS, int(JOINT_PART * train.epochs * length)))
    return LVDSettings(
        cluster_tokens=cluster_tokens,
        set_aside=False,
        joint_tokens=joint_tokens,
        # A state is then what the words before tell of the next one: a little better on the Penn Treebank, seeds 0 to 2.
        position="at" if teacher.sees_ahead else "before",
        pca=COMPONENTS if width_of(teacher) > COMPONENTS else 0,
        seed=train.seed,
    )


@torch.no_grad()
def held_out(hmm: HMM, corpus: Corpus, samples: Path) -> HeldOut:
    """How well the HMM knows samples that it was not trained on."""
    unigram = Unigram.of(corpus.train, corpus.tokenizer.vocab_size)
    by_hmm = by_unigram = 0.0
    for tokens, lengths in _batches(corpus.test):
        by_hmm += float(hmm.log_prob(tokens, lengths).double().sum())
        scored, _ = unigram.score_window(tokens, lengths, None)
        by_unigram += float(scored.double()[torch.arange(tokens.shape[1]) < lengths[:, None]].sum())
    num_tokens = len(corpus.test)
    return HeldOut(
        math.exp(-by_hmm / num_tokens),
        teacher_perplexity(samples)["test"],
        math.exp(-by_unigram / num_tokens),
        corpus.test.num_documents,
        num_tokens,
    )


def _batches(tokens: Tokens) -> Iterator[tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]]:
    for first in range(0, tokens.num_documents, SCORED_TOGETHER):
        last = min(first + SCORED_TOGETHER, tokens.num_documents)
        documents = [torch.from_numpy(tokens.document(number).astype("int64")) for number in range(first, last)]
        yield torch.nn.utils.rnn.pad_sequence(documents, batch_first=True), torch.tensor(list(map(len, documents)))
