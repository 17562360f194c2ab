"""One training run from a plan to results.json: blocks, model, training, figures of the held-out text."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vlhmm._version import __version__
from vlhmm.cluster import Blocks, word_counts
from vlhmm.data import Corpus
from vlhmm.data.atomic import atomic_path, atomic_write
from vlhmm.distillation.material import DrawnSamples, HeldOutSamples, held_out_samples
from vlhmm.distillation.stage_records import MIXTURE, Taught
from vlhmm.distillation.stages import teaching, told_of_stages
from vlhmm.distributed import ALONE, World, joined
from vlhmm.models import Model
from vlhmm.plot import learning_curve
from vlhmm.progress import Note, Progress, duration, result_of
from vlhmm.provenance import device_name
from vlhmm.reports.evaluation import HeldOutText, evaluating_held_out
from vlhmm.reports.json_values import as_values
from vlhmm.reports.results import RunResults
from vlhmm.reports.sources import corpus_label
from vlhmm.tensor_file import FolderError
from vlhmm.training.checkpoint import MODEL, TOKENIZER
from vlhmm.training.em import em_training
from vlhmm.training.estimate import estimate_seconds
from vlhmm.training.gradient import training
from vlhmm.training.initial import blocks_of, starting_model, with_model
from vlhmm.training.joint_phase import JointPhase
from vlhmm.training.plan import RECIPE, Plan, epoch_of, training_steps
from vlhmm.training.presets import Recipe
from vlhmm.training.run_folder import RESULTS, STATE, RunFolder, read_log
from vlhmm.training.settings import TrainSettings
from vlhmm.training.trainer import CheckEvent, Event, StepEvent, Stopped, relay

BLOCKS, CURVE = "blocks.tsv", "learning_curve.png"

RunEvent = Progress | Note | StepEvent | CheckEvent


def train_and_report(
    plan: Plan,
    corpus: Corpus,
    out: str | Path,
    *,
    blocks_file: Path | None = None,
    device: torch.device | str = "cpu",
    resume: bool = False,
    max_seconds: float | None = None,
    command: str = "",
    joint: JointPhase | None = None,
    samples: DrawnSamples | None = None,
    score_held_out: bool = True,
) -> RunResults:
    """Train a model as `vlhmm train` does, and leave it with results.json and a learning curve in a folder.

    Under torchrun all ranks train one model, and the first writes.

    Args:
        plan: Recipe and corpus; the folder remembers them.
        corpus: The corpus of the plan.
        out: The folder.
        blocks_file: Blocks that `Blocks.save` wrote; None: those of the recipe.
        device: Where the model is trained.
        resume: Continue the run in `out`.
        max_seconds: Stop training after that time; None: no limit.
        command: What the results are said to come from.
        joint: A first phase that maximises log p(x, z) with given states z; None: none.
        samples: The corpus is these samples of a teacher, and is compared with it; None: the held-out text is scored.
        score_held_out: Score the held-out text at the end; False: the test text is left unread.

    Returns:
        What results.json holds. Without figures if SIGINT or SIGTERM interrupted the training.

    Raises:
        ValueError: The folder already holds a run, or the settings do not fit the corpus.
        DivergedError: The loss is NaN or far above that of a uniform model. The last good checkpoint is kept.

    Example:
        >>> from pathlib import Path
        >>> from vlhmm.reports import Plan, train_and_report
        >>> from vlhmm.training.presets import preset
        >>> _ = Path("animals.txt").write_text(100 * "the cat sees a bird\\nthe dog sees a fish\\n")
        >>> changes = {"num_blocks": "4", "states_per_block": "2", "dim": "4", "batch_size": "2", "window": "8", "epochs": "1"}
        >>> plan = Plan(preset("demo").with_changes(changes), "animals.txt", None)
        >>> results = train_and_report(plan, vlhmm.load_corpus("animals.txt", tokenizer="words"), "animals")
        >>> results.stopped, sorted(results.figures.perplexity)
        ('finished', ['HMM', 'Kneser-Ney 5-gram', 'uniform', 'unigram'])
    """
    with joined() as here:
        return result_of(
            training_run(
                plan,
                corpus,
                out,
                blocks_file=blocks_file,
                device=device,
                resume=resume,
                max_seconds=max_seconds,
                command=command,
                joint=joint,
                samples=samples,
                score_held_out=score_held_out,
                here=here,
            )
        )


def training_run(
    plan: Plan,
    corpus: Corpus,
    out: str | Path,
    *,
    blocks_file: Path | None = None,
    device: torch.device | str = "cpu",
    resume: bool = False,
    max_seconds: float | None = None,
    command: str = "",
    joint: JointPhase | None = None,
    samples: DrawnSamples | None = None,
    score_held_out: bool = True,
    here: World = ALONE,
    local_steps: int = 1,
) -> Generator[RunEvent, None, RunResults]:
    """`train_and_report`, an event at a time."""
    device = torch.device(device)
    if plan.recipe.stages is not None and (plan.em is not None or joint is not None or samples is not None):
        raise ValueError(
            "a recipe with a teacher's stages is trained by gradient on a text: leave out em, joint and samples"
        )
    # Held to the end: all that is written into the folder is written under its lock.
    with RunFolder(Path(out), resume, here) as folder:
        resume = folder.resume
        if plan.initial is None or folder.does(lambda: _has_weights(plan.recipe, folder)):
            blocks = yield from folder.making(lambda: _blocks(plan.recipe, corpus, folder, blocks_file))
            model = plan.recipe.make_model(corpus, blocks).to(device)
        else:
            plan, blocks, model = _started(plan, corpus, blocks_file)
            model = model.to(device)
            yield Note(_where_it_starts(plan))
        yield Note(f"{corpus_label(corpus)}: {len(corpus.train):,} tokens, {corpus.tokenizer.vocabulary}")
        yield Note(
            f"{model.support.num_states:,} states in {blocks.num_blocks:,} block{'s' * (blocks.num_blocks != 1)}, "
            f"{model.num_parameters:,} parameters, on {device}"
            + (f", rows shared by {here.size} ranks" if here.size > 1 else "")
        )
        taught: Taught | None = None
        if plan.recipe.stages is not None:
            if not resume and folder.holds(RECIPE):
                raise FolderError(
                    f"{folder.path} already holds a run: continue it with --resume, or choose another folder"
                )
            training_steps(plan.recipe, corpus)
            _write_plan(plan, corpus, folder, blocks)
            begun = time.monotonic()
            before = _told_of_start(plan)
            taught = yield from teaching(
                plan.recipe, corpus, blocks, model, folder.path, max_seconds=max_seconds, before=before, here=here
            )
            if max_seconds is not None:
                max_seconds = max(0.0, max_seconds - (time.monotonic() - begun))
        if taught is not None and taught.stopped is not None:
            stopped = taught.stopped
        else:
            stopped = yield from _train(plan, corpus, folder, blocks, model, max_seconds, joint, taught, local_steps)
        figures: HeldOutText | HeldOutSamples | None = None
        curve = None
        # A run that was stopped in a stage has no model yet.
        if stopped.reason != "interrupted" and (taught is None or taught.stopped is None):
            if samples is not None:
                drawn = samples
                figures = folder.does(lambda: held_out_samples(model, corpus, drawn))
            elif score_held_out:
                figures = yield from folder.making(lambda: evaluating_held_out(model, corpus))
            title = f"{corpus.name}, {model.support.num_states:,} states"
            curve = yield from folder.making(lambda: _draw_curve(folder.path, title))
        results = RunResults(
            stopped=stopped.reason,
            step=stopped.step,
            num_steps=stopped.num_steps,
            train_seconds=stopped.seconds,
            best_check_perplexity=stopped.best_perplexity,
            num_states=model.support.num_states,
            num_parameters=model.num_parameters,
            corpus=corpus,
            seed=plan.recipe.train.seed,
            device=device_name(device),
            command=command,
            vlhmm=__version__,
            python=platform.python_version(),
            torch=torch.__version__,
            figures=figures,
            learning_curve=curve,
            stages=() if taught is None else taught.records,
            underflow_sequences=stopped.underflow_sequences,
        )
        written = (json.dumps(as_values(results), indent=2) + "\n").encode()
        folder.write(lambda: atomic_write(folder.path / RESULTS, written))
    return results


def _train(
    plan: Plan,
    corpus: Corpus,
    folder: RunFolder,
    blocks: Blocks,
    model: Model,
    max_seconds: float | None,
    joint: JointPhase | None,
    taught: Taught | None,
    local_steps: int,
) -> Generator[Note | StepEvent | CheckEvent, None, Stopped]:
    resume = folder.resume
    if plan.em is None:
        settings = plan.recipe.train if plan.recipe.stages is None else plan.recipe.stages.finetune
        on_cpu = model.group_of_word.device.type == "cpu"
        # The time of one process says little of several.
        if on_cpu and folder.here.size == 1 and joint is None and not resume:
            yield Note(_estimate(model, corpus, settings))
        before = {**_told_of_start(plan), **({} if taught is None else told_of_stages(plan.recipe, taught))}
        events = training(
            model,
            corpus,
            settings,
            joint=joint,
            out=folder,
            resume=resume,
            max_seconds=max_seconds,
            before=before,
            here=folder.here,
            local_steps=local_steps,
        )
    else:
        events = em_training(
            model, corpus, plan.em, out=folder, resume=resume, max_seconds=max_seconds, here=folder.here
        )
    return (yield from relay(_with_plan(events, plan, corpus, folder, blocks), Stopped))


def _started(plan: Plan, corpus: Corpus, blocks_file: Path | None) -> tuple[Plan, Blocks, Model]:
    """The model that the run starts from, its blocks, and the plan with its settings."""
    assert plan.initial is not None
    initial = plan.initial.decided(plan.recipe)
    model = starting_model(initial, plan.recipe, corpus)
    blocks = blocks_of(model)
    if blocks_file is not None:
        given = Blocks.load(blocks_file, corpus.tokenizer.tokens())
        if not np.array_equal(given.block_of_word, blocks.block_of_word):
            raise ValueError(
                f"{blocks_file} has other blocks than the model in {initial.folder}: leave --blocks out, or train from random weights"
            )
    return replace(plan, recipe=with_model(plan.recipe, model), initial=initial), blocks, model


def _has_weights(recipe: Recipe, folder: RunFolder) -> bool:
    """Whether a run that goes on has weights of its own: it then no longer needs those that it started from."""
    kept = (folder.path / STATE, folder.path / MIXTURE / STATE, folder.path / MIXTURE / MODEL)
    return folder.resume and recipe.blocks.clustering != "uniform" and any(file.exists() for file in kept)


def _told_of_start(plan: Plan) -> dict[str, Any]:
    return {} if plan.initial is None else {"initial": plan.initial.told()}


def _where_it_starts(plan: Plan) -> str:
    initial = plan.initial
    assert initial is not None
    told = f"weights of {initial.folder}"
    if initial.splits:
        told += f", each block in {initial.split_blocks}, each state in {initial.split_states}"
        told += f", noise {initial.noise:g} of the spread" if initial.noise else ", at equal likelihood"
    return told


def _estimate(model: Model, corpus: Corpus, settings: TrainSettings) -> str:
    steps = settings.epochs * epoch_of(corpus.train, settings).num_windows
    return (
        f"about {duration(estimate_seconds(model, corpus, settings))} for {steps:,} steps, epochs = {settings.epochs}, by the time "
        "of a few; fewer by --set epochs=N, an earlier end by --max-seconds S"
    )


def _with_plan(
    events: Iterator[Event], plan: Plan, corpus: Corpus, folder: RunFolder, blocks: Blocks
) -> Iterator[Event]:
    """The events; with the first of them plan and blocks are written: settings that are refused leave no plan."""
    planned = False
    for event in events:
        if not planned:
            _write_plan(plan, corpus, folder, blocks)
            planned = True
        yield event


def _write_plan(plan: Plan, corpus: Corpus, folder: RunFolder, blocks: Blocks) -> None:
    def write() -> None:
        if folder.resume and (folder.path / RECIPE).exists():
            return
        # The plan last: a folder that has one has its blocks and its tokenizer too.
        corpus.tokenizer.save(folder.path / TOKENIZER)
        counts = word_counts(corpus.train, corpus.tokenizer.vocab_size)
        blocks.save(folder.path / BLOCKS, corpus.tokenizer.tokens(), counts)
        plan.save(folder.path)

    folder.write(write)


def _blocks(
    recipe: Recipe, corpus: Corpus, folder: RunFolder, blocks_file: Path | None
) -> Generator[Progress | Note, None, Blocks]:
    given = None if blocks_file is None else Blocks.load(blocks_file, corpus.tokenizer.tokens())
    kept = folder.path / BLOCKS
    if folder.resume and (folder.path / RECIPE).exists() and kept.exists():
        saved = Blocks.load(kept, corpus.tokenizer.tokens())
        if given is not None and not np.array_equal(given.block_of_word, saved.block_of_word):
            raise ValueError(f"the run was started with other blocks than those of {blocks_file}: leave --blocks out")
        return saved
    if given is not None:
        return given
    blocks = yield from recipe.making_blocks(corpus)
    if blocks.information is not None and blocks.seconds is not None:
        yield Note(f"{blocks.num_blocks} blocks of words: {blocks.information:.4f} nats, {blocks.seconds:.1f} s")
    return blocks


def _draw_curve(out: Path, title: str) -> Generator[Note, None, str | None]:
    try:
        with atomic_path(out / CURVE) as partial:
            learning_curve(read_log(out), partial, title)
    except ValueError as error:
        yield Note(f"no learning curve: {error}")
        return None
    return str(out / CURVE)
