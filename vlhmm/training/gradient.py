"""Gradient ascent on the exact marginal likelihood of an HMM; before it, if asked, on p(x, z) with states given."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vlhmm.data import Corpus
from vlhmm.distributed import ALONE, World, joined
from vlhmm.models import Model
from vlhmm.settings import settings_from
from vlhmm.training.gradient_task import GradientTask
from vlhmm.training.joint_phase import JointPhase
from vlhmm.training.run_folder import RunFolder, path_of
from vlhmm.training.settings import TrainSettings
from vlhmm.training.trainer import Event, Stopped, fit
from vlhmm.training.watching import run_to_end_shown


def train(
    model: Model,
    corpus: Corpus,
    settings: TrainSettings | None = None,
    *,
    joint: JointPhase | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    max_seconds: float | None = None,
    local_steps: int = 1,
    progress: bool | None = None,
    **changes: Any,
) -> Stopped:
    r"""Train `model` by gradient ascent on log p(x), in place.

    The model is trained on its own device and keeps the weights that were best on the validation text. With `out`, the run can be
    stopped at any time and resumed; on a CPU the resumed run gives bit-identical weights. `training` of
    `vlhmm.training.gradient` is the same loop as a generator of events, for a progress display. Under torchrun all ranks train
    one model: each reads its rows of every batch.

    Args:
        model: The model, over the vocabulary of the corpus.
        corpus: Training and validation text.
        settings: The settings; None: the defaults of `TrainSettings`.
        joint: A first phase that maximises log p(x, z) with given states z; None: none.
        out: Folder for the model, the training state and the log; `vlhmm.load` reads it. None: nothing is written.
        resume: Continue the run in `out`.
        max_seconds: Stop after that time; None: no limit.
        local_steps: Under torchrun: steps that each rank makes on its rows alone before all average their weights; 1: gradients are summed at every step, as one process does.
        progress: Show how far training is, on stderr; None: if that is a terminal, and in a notebook.
        **changes: Settings by name, in place of those of `settings`.

    Returns:
        Why and where training stopped, and the best validation perplexity.

    Raises:
        ValueError: A setting is unknown or out of range, the corpus has another vocabulary than the model, or `out` already holds a model.
        DivergedError: The loss is NaN or far above that of a uniform model. The last good checkpoint is kept.

    Example:
        >>> from pathlib import Path
        >>> who, what, where = ["cat", "cat", "dog"], ["bird", "bird", "fish"], ["", "", " in the garden"]
        >>> verbs = ["sees", "sees", "hears"]
        >>> lines = [f"the {a} {v} a {b}{place}" for a in who for v in verbs for b in what for place in where]
        >>> _ = Path("animals.txt").write_text("\n".join(8 * lines))
        >>> corpus = vlhmm.load_corpus("animals.txt", tokenizer="words")
        >>> tokenizer = corpus.tokenizer
        >>> blocks = vlhmm.brown_clusters(corpus.train, 6, vocab_size=tokenizer.vocab_size)
        >>> model = vlhmm.neural_hmm(blocks, states_per_block=8, dim=16, eos_id=tokenizer.eos_id, reset="eos")
        >>> settings = vlhmm.TrainSettings(epochs=5, batch_size=8, learning_rate=0.02, state_dropout=0.0)
        >>> result = vlhmm.train(model, corpus, settings, out="demo-model")
        >>> result.reason, round(result.best_perplexity, 1)
        ('finished', 1.4)
    """
    settings = settings_from(TrainSettings, {**asdict(settings or TrainSettings()), **changes})
    with joined() as here:
        events = training(
            model,
            corpus,
            settings,
            joint=joint,
            out=out,
            resume=resume,
            max_seconds=max_seconds,
            here=here,
            local_steps=local_steps,
        )
        shown = progress if here.is_first else False
        return run_to_end_shown(events, settings.epochs, shown, max_seconds)


def training(
    model: Model,
    corpus: Corpus,
    settings: TrainSettings,
    *,
    joint: JointPhase | None = None,
    out: str | Path | RunFolder | None = None,
    resume: bool = False,
    max_seconds: float | None = None,
    save_seconds: float = 0.0,
    save_at_end: bool = True,
    before: Mapping[str, Any] | None = None,
    here: World = ALONE,
    local_steps: int = 1,
) -> Generator[Event, None, None]:
    """The training of an HMM, an event at a time; the last one is `Stopped`.

    `joint`: what comes before p(x). `before`: what the model's folder is to say of the stages before this training. `save_seconds`: checks that come sooner after the last save do not save, which takes
    long for large models; nor does the end without `save_at_end`, where it will not be read. `here`: the ranks that train it
    together, each on a copy of the model; they begin with the weights of the first. `local_steps`: so many by each rank alone,
    between two averages.
    """
    task = GradientTask(model, corpus, settings, joint, path_of(out), before, here, local_steps)
    folder = out if isinstance(out, RunFolder) else None
    yield from fit(
        task,
        folder=folder,
        resume=resume,
        max_seconds=max_seconds,
        save_seconds=save_seconds,
        save_at_end=save_at_end,
        here=here,
    )
