"""The folder to ship: a run's best model without what only training needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from vlhmm.data import Tokenizer
from vlhmm.data.atomic import LOCK
from vlhmm.data.transformers_files import SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG
from vlhmm.hmm import hmm_of_normalized
from vlhmm.models import Model
from vlhmm.tensor_file import FolderError
from vlhmm.training.checkpoint import CONFIG, MODEL, TOKENIZER, load_model, save_model
from vlhmm.training.run_folder import STATE

MODEL_FILES = (CONFIG, MODEL, TOKENIZER)
CHECKED_TOKENS = 64
"""Drawn from the model, to be scored by the copy too."""


@dataclass(frozen=True)
class ExportedModel:
    """A model that was taken out of the folder of its run."""

    folder: Path
    num_bytes: int
    run: Path
    run_bytes: int
    num_states: int
    num_parameters: int
    checked_log_prob: float
    """log p of a text drawn from the model, which both folders give to the bit."""


def export_run(run: str | Path, out: str | Path, *, force: bool = False) -> ExportedModel:
    """Write the best model of a run into a folder of its own, without the state of the training.

    The new folder is loaded again before this returns: its weights and scores are those of the run's best checkpoint, bit by bit.

    Args:
        run: The folder of a run, or of any model.
        out: The new folder.
        force: Replace a model that `out` holds.

    Returns:
        Both folders with their sizes.

    Raises:
        ValueError: `run` holds no whole model, `out` is not empty, or is a run of its own.

    Example:
        >>> from vlhmm.reports import export_run
        >>> exported = export_run("demo-model", "to-ship")
        >>> exported.num_bytes < exported.run_bytes
        True
        >>> vlhmm.load("to-ship").next_tokens("the cat", top=1)[0][0]
        'sees'
    """
    run, out = Path(run), Path(out)
    saved = load_model(run)
    _check_place(run, out, force)
    save_model(out, saved.model, saved.tokenizer, saved.config["about"])
    copy = load_model(out, verify=True)
    log_prob = _checked(saved.model, copy.model, saved.tokenizer, copy.tokenizer, out)
    return ExportedModel(
        out,
        model_bytes(out),
        run,
        folder_bytes(run),
        saved.model.support.num_states,
        saved.model.num_parameters,
        log_prob,
    )


def model_bytes(folder: Path) -> int:
    """Of the files that make a model folder, with those that `transformers` reads."""
    paths = [folder / name for name in (*MODEL_FILES, TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP)]
    return sum(path.stat().st_size for path in paths if path.exists())


def folder_bytes(folder: Path) -> int:
    """Of all files in it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _check_place(run: Path, out: Path, force: bool) -> None:
    if out.resolve() == run.resolve():
        raise FolderError(f"{out} is the run itself: export it to another folder")
    if out.exists() and not out.is_dir():
        raise FolderError(f"{out} is a file: name a folder")
    if (out / STATE).exists():
        raise FolderError(f"{out} holds a training run, which a model must not replace: choose another folder")
    found = sorted(path.name for path in out.iterdir() if path.name != LOCK) if out.exists() else []
    if not found:
        return
    if CONFIG not in found:
        raise FolderError(f"{out} is not empty ({found[0]}) and holds no model: choose another folder")
    if not force:
        raise FolderError(f"{out} already holds a model: choose another folder, or replace it by --force (force=True)")


@torch.no_grad()
def _checked(saved: Model, copy: Model, tokenizer: Tokenizer, copied: Tokenizer, out: Path) -> float:
    """log p of a text that is drawn from the first, which the second must give too."""
    same = saved.state_dict().keys() == copy.state_dict().keys() and tokenizer.hash == copied.hash
    same = same and all(torch.equal(value, copy.state_dict()[name]) for name, value in saved.state_dict().items())
    hmm, other = hmm_of_normalized(saved.tables()), hmm_of_normalized(copy.tables())
    drawn = hmm.sample(1, CHECKED_TOKENS, seed=0)
    tokens = drawn.tokens
    log_prob = hmm.log_prob(tokens)
    if not same or not torch.equal(log_prob, other.log_prob(tokens)):
        raise FolderError(
            f"{out} does not give the scores of the run: the disk or the memory is damaged; do not use it"
        )
    return float(log_prob)
