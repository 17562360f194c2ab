"""One row of a table: trained or taken up where it stopped, scored, written down, and timed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from experiments.hmm_training import shared_blocks
from experiments.measure import (
    Measured,
    baseline_seconds_per_epoch,
    perplexities,
    seconds_per_epoch,
    thinned_curve,
    times,
)
from experiments.results import (
    Identity,
    Result,
    ResultError,
    find_result,
    identity_of,
    outdated_results,
    result_files,
    write_result,
)
from experiments.row_events import Place, Trained, TrainingEvent, Working
from experiments.row_settings import with_seed
from experiments.row_training import train_row
from experiments.table_file import Row, TableFile
from experiments.texts import training_text
from vlhmm.data import Corpus
from vlhmm.inference.errors import ImpossibleTextError
from vlhmm.provenance import commit_of_source, device_name, versions
from vlhmm.training.baseline_settings import BaselineSettings
from vlhmm.training.presets import Recipe
from vlhmm.training.run_folder import RunFolder, read_log
from vlhmm.training.trainer import DivergedError


@dataclass(frozen=True)
class RowDone:
    result: Result
    path: Path
    fresh: bool
    """False: it had been there before."""


RowEvent = TrainingEvent | RowDone


@dataclass(frozen=True)
class RowRun:
    """One row to be run: what, and where things are kept."""

    table: TableFile
    row: Row
    seed: int
    text: Mapping[str, str]
    """The checksums of the table's corpus."""
    results: tuple[Path, ...]
    """Where results are looked for; the first is where this one is written."""
    runs: Path
    """Training runs, by identity, so that they can be taken up again."""
    command: str
    """What a user would type for this row."""

    @property
    def identity(self) -> Identity:
        return identity_of(self.row, self.text, self.seed)

    @property
    def label(self) -> str:
        """The row's name, with the seed where it has several."""
        return f"{self.row.name}, seed {self.seed}" if len(self.row.seeds) > 1 else self.row.name

    @property
    def folder(self) -> Path:
        return self.runs / self.identity.hash[:16]

    @property
    def place(self) -> Place:
        return Place(self.folder, self.runs, self.row.passing)

    def found(self) -> tuple[Path, Result] | None:
        """The result, if it has all that the row asks for."""
        scored = self.scored()
        return scored if scored is not None and self.is_timed(scored[1]) else None

    def scored(self) -> tuple[Path, Result] | None:
        """The result, if only times may be missing."""
        found = find_result(self.results, self.identity)
        if found is None or (found[1].status == "finished" and self.row.test and "test" not in found[1].measured):
            return None
        return found

    def is_timed(self, result: Result) -> bool:
        asked = self.row.timings and isinstance(self.row.settings, Recipe | BaselineSettings)
        return not asked or result.status != "finished" or "seconds_per_epoch" in result.measured

    def written_as(self) -> tuple[Path, str, str]:
        """Folder, table and row by which the result goes: those of the one it completes, if there is one."""
        found = find_result(self.results, self.identity)
        if found is None:
            return self.results[0], self.table.name, self.row.name
        return found[0].parent, found[1].table, found[1].row

    def discard(self) -> None:
        """Forgets the result, readable or not, and its training run; one that another process works on is refused."""
        if self.folder.exists():
            with RunFolder(self.folder, resume=True):
                pass
        for path in result_files(self.results, self.identity):
            path.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)


def run_row(
    run: RowRun,
    corpus: Corpus,
    device: torch.device,
    *,
    force: bool = False,
    max_seconds: float | None = None,
    alone: bool = True,
) -> Generator[RowEvent, None, None]:
    """Trains, scores and times a row, an event at a time; the last one is `RowDone` or `RowStopped`.

    A result that is there is not made again, what it lacks is added; `force` forgets it first, but for a trial's. If others
    share the device, times are left for when it is `alone`.
    """
    force = force and not run.row.passing
    if force:
        run.discard()
    fresh = False
    found = run.scored()
    if found is None:
        if not force and not run.folder.exists():
            _refuse_outdated(run)
        found = yield from _train_and_score(run, corpus, device, max_seconds)
        if found is None:
            return
        fresh = True
    path, result = found
    if alone and not run.is_timed(result):
        result = yield from _with_times(run, result, corpus, device)
        write_result(path.parent, result)
        fresh = True
    yield RowDone(result, path, fresh)


def _train_and_score(
    run: RowRun, corpus: Corpus, device: torch.device, max_seconds: float | None
) -> Generator[RowEvent, None, tuple[Path, Result] | None]:
    measured: list[Measured] = []
    trained: Trained | None = None
    message = ""
    begun = time.monotonic()
    try:
        trained = yield from train_row(run.row, run.seed, corpus, device, run.place, max_seconds)
        if trained is None:
            return None
        measured = [Measured("parameters", float(trained.num_parameters)), *trained.others]
        yield Working("scoring")
        text = training_text(corpus, run.row)
        measured += perplexities(trained.scorer, text, test=run.row.test, windows=run.row.windows)
    except (DivergedError, ImpossibleTextError) as error:
        # A captured step does not see numbers that vanish: a loss without end is then what training came to.
        message = error.what if isinstance(error, DivergedError) else str(error)
    folder, table_name, row_name = run.written_as()
    result = Result(
        table=table_name,
        row=row_name,
        kind=run.identity.kind,
        settings=run.identity.settings,
        data=run.identity.data,
        seed=run.seed,
        status="diverged" if trained is None else "finished",
        measured={one.quantity: one.value for one in measured},
        protocols={one.quantity: one.protocol for one in measured if one.protocol},
        curve=trained.curve if trained else thinned_curve(read_log(run.folder)),
        seconds=round(trained.seconds if trained else time.monotonic() - begun, 1),
        device=device_name(device),
        command=run.command,
        commit=commit_of_source(),
        versions=versions(),
        corpus_hash=corpus.hash,
        message=message,
    )
    path = write_result(folder, result)
    if run.row.passing:
        shutil.rmtree(run.folder, ignore_errors=True)
    return path, result


def _with_times(run: RowRun, result: Result, corpus: Corpus, device: torch.device) -> Generator[RowEvent, None, Result]:
    """Times do not depend on the weights: those of a fresh model, so they can be taken long after the training."""
    settings, text = with_seed(run.row.settings, run.seed), training_text(corpus, run.row)
    yield Working("timing")
    if isinstance(settings, Recipe):
        blocks = yield from shared_blocks(settings, text, run.place.blocks)
        model = settings.make_model(text, blocks).to(device)
        taken = [*times(model, settings, text), seconds_per_epoch(model, settings, text)]
    else:
        assert isinstance(settings, BaselineSettings)
        taken = [baseline_seconds_per_epoch(settings, text, device)]
    where = "" if device_name(device) == result.device else f", on {device_name(device)}"
    return replace(
        result,
        measured={**result.measured, **{one.quantity: one.value for one in taken}},
        protocols={**result.protocols, **{one.quantity: one.protocol + where for one in taken}},
    )


def _refuse_outdated(run: RowRun) -> None:
    for path, differences in outdated_results(run.results[0], run.table, run.row, run.identity):
        raise ResultError(
            f"{path} is of this row with other settings ({'; '.join(differences) or 'some are gone'}): run it again with --force, "
            "which keeps that file, or undo the change"
        )
