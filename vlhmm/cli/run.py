"""One training run as the command line makes it: plan, blocks, events on the screen, figures at the end."""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.text import Text

from vlhmm._version import __version__
from vlhmm.baselines import KneserNey, Uniform, Unigram
from vlhmm.baselines.kneser_ney import FALLBACK_DISCOUNTS
from vlhmm.cli.corpora import make_blocks
from vlhmm.cli.show import ProgressBar, corpus_label, message, program, progress_bar, short
from vlhmm.cluster import Blocks, word_counts
from vlhmm.data import Corpus, Tokenizer, Tokens
from vlhmm.data.atomic import atomic_write
from vlhmm.data.windows import Epoch
from vlhmm.evaluate import Evaluation, HMMScorer, Scorer, evaluate
from vlhmm.models import Model
from vlhmm.plot import learning_curve
from vlhmm.provenance import device_name
from vlhmm.settings import settings_from
from vlhmm.training.em import EMSettings, em_training
from vlhmm.training.gradient import training
from vlhmm.training.joint_phase import JointPhase
from vlhmm.training.presets import Recipe
from vlhmm.training.run_folder import RunFolder, read_log
from vlhmm.training.trainer import CheckEvent, Event, StepEvent, Stopped

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

RECIPE, BLOCKS, RESULTS, CURVE = "recipe.json", "blocks.tsv", "results.json", "learning_curve.png"
SMOOTHED_STEPS = 20
"""The loss on the bar is a running average over about so many steps."""
KNESER_NEY = "Kneser-Ney 5-gram"
KNESER_NEY_TOKENS = 20_000_000
"""Of a longer text, counting n-grams for comparison would take more than half a minute."""
TILE_COPIES = 8
"""What a training step holds of each transition tile at its peak: logits, probabilities, gradients; as measured."""


@dataclass(frozen=True)
class Plan:
    """What a run folder remembers, so that it can be resumed by name alone."""

    recipe: Recipe
    source: str
    """The corpus as the command line named it."""
    data_dir: Path | None
    em: EMSettings | None = None
    """Baum-Welch instead of gradient ascent: the recipe's `train` is not read, but for the seed."""

    def save(self, folder: Path) -> None:
        # A path must be found again from another working directory.
        source = str(Path(self.source).absolute()) if Path(self.source).exists() else self.source
        values = {
            "corpus": source,
            "data_dir": None if self.data_dir is None else str(self.data_dir.absolute()),
            "recipe": self.recipe.to_dict(),
            "em": None if self.em is None else asdict(self.em),
        }
        atomic_write(folder / RECIPE, json.dumps(values, indent=2).encode())


def read_plan(folder: Path) -> Plan | None:
    """What `Plan.save` wrote; None if the run never got so far."""
    path = folder / RECIPE
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        data_dir = values["data_dir"]
        recipe = Recipe.from_dict(values["recipe"])
        em = values.get("em")
        return Plan(
            recipe,
            values["corpus"],
            None if data_dir is None else Path(data_dir),
            None if em is None else settings_from(EMSettings, em),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read ({error}): it was edited or is of another version") from error


def training_steps(recipe: Recipe, corpus: Corpus) -> int:
    settings = recipe.train
    epoch = Epoch(corpus.train, settings.windows, settings.batch_size, settings.window, settings.seed, 0)
    epoch.check()
    return settings.epochs * epoch.num_windows


def estimated_bytes(recipe: Recipe, model: Model) -> int:
    """Weights with all that belongs to them, and the transition tiles of one window: a rough figure, without the program."""
    settings, support = recipe.train, model.support
    # Weights, gradient, two moments of Adam, the best weights so far; the average of weights.
    weights = model.num_parameters * (5 + bool(settings.ema))
    kept = support.states_per_word - int(support.states_per_word * settings.state_dropout)
    tiles = min(settings.batch_size * settings.window, support.num_groups**2)
    return 4 * (weights + TILE_COPIES * tiles * kept**2)


def train_and_report(
    plan: Plan,
    corpus: Corpus,
    out: Path,
    *,
    blocks_file: Path | None = None,
    device: torch.device,
    resume: bool = False,
    max_seconds: float | None = None,
    tensorboard: bool = False,
    command: str,
    joint: JointPhase | None = None,
    figures: Callable[[Model, Corpus], dict[str, Any]] | None = None,
) -> tuple[int, dict[str, Any]]:
    """Trains and leaves results.json in the folder; the exit status and what is in that file.

    `joint`: what comes before p(x). `figures` of the best weights are part of the file; left out, they are perplexities of
    the held-out text.
    """
    # Another process or an earlier run is refused before words are clustered; the lock is taken again for training.
    with RunFolder(out, resume):
        pass
    writer = _tensorboard(out) if tensorboard else None
    blocks = _blocks(plan.recipe, corpus, out, blocks_file, resume)
    model = plan.recipe.make_model(corpus, blocks).to(device)
    message(f"{corpus_label(corpus)}: {len(corpus.train):,} tokens, {corpus.tokenizer.vocab_size:,} words")
    message(
        f"{model.support.num_states:,} states in {blocks.num_blocks:,} block{'s' * (blocks.num_blocks != 1)}, "
        f"{model.num_parameters:,} parameters, on {device}"
    )

    def write_plan() -> None:
        plan.save(out)
        blocks.save(out / BLOCKS, corpus.tokenizer.tokens(), word_counts(corpus.train, corpus.tokenizer.vocab_size))

    if plan.em is None:
        settings, passes = plan.recipe.train, plan.recipe.train.epochs
        events = training(model, corpus, settings, joint=joint, out=out, resume=resume, max_seconds=max_seconds)
    else:
        passes = plan.em.iterations
        events = em_training(model, corpus, plan.em, out=out, resume=resume, max_seconds=max_seconds)
    stopped = _watch(events, None if resume and (out / RECIPE).exists() else write_plan, writer, passes)
    if writer is not None:
        writer.close()
    results: dict[str, Any] = {
        "stopped": stopped.reason,
        "step": stopped.step,
        "num_steps": stopped.num_steps,
        "train_seconds": stopped.seconds + (_earlier_seconds(out) if resume else 0.0),
        "best_check_perplexity": stopped.best_perplexity,
        "num_states": model.support.num_states,
        "num_parameters": model.num_parameters,
        "corpus": {"name": corpus.name, "hash": corpus.hash, "note": corpus.note},
        "seed": plan.recipe.train.seed,
        "device": device_name(device),
        "command": command,
        "vlhmm": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if stopped.reason == "interrupted":
        _write_results(out, results)
        go_on = f"{program()} train --out {out} --resume" if joint is None else "the same command"
        message(f"stopped at step {stopped.step:,} of {stopped.num_steps:,}; go on with: {go_on}")
        return 130, results
    results.update((figures or _final_figures)(model, corpus))
    results["learning_curve"] = _draw_curve(out, f"{corpus.name}, {model.support.num_states:,} states")
    _write_results(out, results)
    return 0, results


def _blocks(recipe: Recipe, corpus: Corpus, out: Path, blocks_file: Path | None, resume: bool) -> Blocks:
    given = None if blocks_file is None else Blocks.load(blocks_file, corpus.tokenizer.tokens())
    if resume and (out / BLOCKS).exists():
        saved = Blocks.load(out / BLOCKS, corpus.tokenizer.tokens())
        if given is not None and not np.array_equal(given.block_of_word, saved.block_of_word):
            raise ValueError(f"the run was begun with other blocks than those of {blocks_file}: leave --blocks out")
        return saved
    if given is not None:
        return given
    blocks = make_blocks(recipe, corpus)
    if blocks.information is not None and blocks.seconds is not None:
        message(f"{blocks.num_blocks} blocks of words: {blocks.information:.4f} nats, {blocks.seconds:.1f} s")
    return blocks


def _watch(
    events: Iterator[Event],
    write_plan: Callable[[], None] | None,
    writer: SummaryWriter | None,
    passes: int,
) -> Stopped:
    """Shows a run while it happens."""
    loss, num_steps = 0.0, 0
    first: tuple[float, int] | None = None
    with progress_bar("training", None) as shown:
        for event in events:
            if write_plan is not None:
                # Only now is the folder locked, and nothing else is in it yet.
                write_plan()
                write_plan = None
            match event:
                case StepEvent():
                    num_steps += 1
                    loss += (event.loss - loss) / min(num_steps, SMOOTHED_STEPS)
                    now = time.monotonic()
                    first = first or (now, event.tokens)
                    rate = (event.tokens - first[1]) / max(now - first[0], 1e-9)
                    _show_step(shown, event, loss, rate, passes)
                    if writer is not None:
                        writer.add_scalar("loss/train", event.loss, event.step)
                case CheckEvent():
                    shown.line(_check_line(event))
                    if writer is not None:
                        writer.add_scalar("perplexity/valid", event.valid_perplexity, event.step)
                case Stopped():
                    return event
    raise AssertionError("training always ends with Stopped")


def _show_step(shown: ProgressBar, event: StepEvent, loss: float, rate: float, epochs: int) -> None:
    epoch = min(epochs, 1 + (event.step - 1) * epochs // event.num_steps)
    known = "states given" if event.joint else f"perplexity {math.exp(loss):,.1f}"
    note = f"loss {loss:.3f}  {known}  {short(rate)} tokens/s"
    shown.update(event.step, event.num_steps, note, f"epoch {epoch}/{epochs}")


def _check_line(event: CheckEvent) -> Text:
    width = len(f"{event.num_steps:,}")
    text = Text(f"step {event.step:>{width},}/{event.num_steps:,}  ", style="dim")
    text.append(f"valid perplexity {event.valid_perplexity:>9,.1f}", style="not dim")
    if event.improved:
        text.append("  best", style="not dim green")
    return text


def _tensorboard(out: Path) -> SummaryWriter:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError('--tensorboard needs tensorboard: pip install "vlhmm[tensorboard]"') from None
    return SummaryWriter(str(out / "tensorboard"))


def _final_figures(model: Model, corpus: Corpus) -> dict[str, Any]:
    """Exact one-stream perplexities of the best weights, and of models that only count."""
    with torch.no_grad():
        hmm = HMMScorer(model.tables().detach())
    scorers = {**counting_baselines(corpus), "HMM": hmm}
    splits = {"valid": corpus.valid, "test": corpus.test}
    evaluations = {
        name: {
            split: evaluate_shown(scorer, tokens, corpus.tokenizer, f"scoring {split}")
            for split, tokens in splits.items()
        }
        for name, scorer in scorers.items()
    }
    return {
        "perplexity": {
            name: {split: evaluation.perplexity for split, evaluation in by_split.items()}
            for name, by_split in evaluations.items()
        },
        "valid": evaluations["HMM"]["valid"].to_dict(),
        "test": evaluations["HMM"]["test"].to_dict(),
    }


def counting_baselines(corpus: Corpus) -> dict[str, Scorer[Any]]:
    """Models of the training text that take seconds to make; Kneser-Ney is left out, with a word, where it would not."""
    num_words, num_tokens = corpus.tokenizer.vocab_size, len(corpus.train)
    scorers: dict[str, Scorer[Any]] = {"uniform": Uniform(num_words), "unigram": Unigram.of(corpus.train, num_words)}
    if num_tokens > KNESER_NEY_TOKENS:
        message(f"no {KNESER_NEY}: {num_tokens:,} training tokens, counted for comparison up to {KNESER_NEY_TOKENS:,}")
        return scorers
    try:
        model = KneserNey.fit(
            corpus.train, num_words=num_words, eos_id=corpus.tokenizer.eos_id, fallback=FALLBACK_DISCOUNTS
        )
    # Too little memory for a comparison must not cost the run's own figures.
    except ValueError as error:
        message(f"no {KNESER_NEY}: {error}")
        return scorers
    guessed = [str(order) for order, discounts in enumerate(model.discounts or (), 1) if not discounts.estimated]
    if guessed:
        fixed = ", ".join(map(str, FALLBACK_DISCOUNTS))
        message(
            f"{KNESER_NEY}: the text is too small to estimate discounts of order {', '.join(guessed)}; {fixed} instead"
        )
    return {**scorers, KNESER_NEY: model}


@dataclass(frozen=True)
class _Watched:
    """A scorer that tells after each window how many tokens it has read."""

    scorer: Scorer[Any]
    advance: Callable[[int], None]

    @property
    def num_words(self) -> int:
        return self.scorer.num_words

    @property
    def protocol(self) -> str:
        return self.scorer.protocol

    def score_window(self, tokens: torch.Tensor, lengths: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        result = self.scorer.score_window(tokens, lengths, state)
        self.advance(int(lengths.sum()))
        return result


def evaluate_shown(
    scorer: Scorer[Any], tokens: Tokens, tokenizer: Tokenizer, description: str, streams: int = 1
) -> Evaluation:
    """`evaluate` with a bar."""
    done = 0
    begun = time.monotonic()
    with progress_bar(description, len(tokens)) as shown:

        def advance(num_tokens: int) -> None:
            nonlocal done
            done += num_tokens
            shown.update(done, note=f"{short(done / max(time.monotonic() - begun, 1e-9))} tokens/s")

        return evaluate(_Watched(scorer, advance), tokens, tokenizer, streams=streams)


def _draw_curve(out: Path, title: str) -> str | None:
    try:
        learning_curve(read_log(out), out / CURVE, title)
    except ValueError as error:
        message(f"no learning curve: {error}")
        return None
    return str(out / CURVE)


def _earlier_seconds(out: Path) -> float:
    """Training time of the sessions before this one that ended in order."""
    if not (out / RESULTS).exists():
        return 0.0
    return float(json.loads((out / RESULTS).read_text(encoding="utf-8")).get("train_seconds", 0.0))


def _write_results(out: Path, results: dict[str, Any]) -> None:
    atomic_write(out / RESULTS, (json.dumps(results, indent=2) + "\n").encode())
