"""The training of a row of any kind, resumable: events, and at the end a scorer with what was seen on the way."""

from __future__ import annotations

import time

import torch

from experiments.hmm_training import read_timing, train_baum_welch, train_hmm, train_restarts, write_timing
from experiments.measure import thinned_curve
from experiments.row_events import Place, RowStopped, Trained, Training, Working
from experiments.row_settings import BaumWelchHMM, KneserNeySettings, RestartedHMM, TaughtHMM, with_seed
from experiments.staged_training import train_staged
from experiments.table_file import Row
from experiments.taught_training import train_taught
from experiments.texts import training_text
from vlhmm.baselines.kneser_ney import FALLBACK_DISCOUNTS, KneserNey
from vlhmm.baselines.training import TrainedBaseline, train_baseline
from vlhmm.data import Corpus
from vlhmm.training.baseline_settings import BaselineSettings
from vlhmm.training.presets import Recipe
from vlhmm.training.run_folder import read_log

NGRAM_MEMORY = 4 << 30
"""Bytes for counting n-grams; more are counted on disk."""


def train_row(
    row: Row,
    seed: int,
    whole: Corpus,
    device: torch.device,
    place: Place,
    max_seconds: float | None,
) -> Training:
    """Trains what the row describes, or goes on with it; the last event is `RowStopped` if it did not get to the end.

    `whole`: the table's corpus.
    """
    settings, corpus = with_seed(row.settings, seed), training_text(whole, row)
    match settings:
        case Recipe(stages=None):
            return (yield from train_hmm(settings, corpus, device, place, max_seconds))
        case Recipe():
            return (yield from train_staged(settings, corpus, device, place, max_seconds))
        case TaughtHMM():
            return (yield from train_taught(settings, corpus, whole, device, place, max_seconds))
        case BaumWelchHMM():
            return (yield from train_baum_welch(settings, corpus, device, place, max_seconds))
        case RestartedHMM():
            return (yield from train_restarts(settings, corpus, device, place, max_seconds))
        case KneserNeySettings():
            return (yield from _fit_kneser_ney(settings, corpus, place))
        case _:
            return (yield from _train_neural(settings, seed, corpus, device, place, max_seconds))


def _fit_kneser_ney(settings: KneserNeySettings, corpus: Corpus, place: Place) -> Training:
    yield Working("counting n-grams")
    begun = time.monotonic()
    place.runs.mkdir(parents=True, exist_ok=True)
    model = KneserNey.fit(
        corpus.train,
        num_words=corpus.tokenizer.vocab_size,
        eos_id=corpus.tokenizer.eos_id,
        order=settings.order,
        fallback=FALLBACK_DISCOUNTS if settings.fallback else None,
        max_memory=NGRAM_MEMORY,
        disk=place.runs,
    )
    return Trained(model, model.num_parameters, time.monotonic() - begun, [], [])


def _train_neural(
    settings: BaselineSettings,
    seed: int,
    corpus: Corpus,
    device: torch.device,
    place: Place,
    max_seconds: float | None,
) -> Training:
    begun = time.monotonic()
    earlier = read_timing(place.folder)
    trained: TrainedBaseline | None = None
    step, num_steps = 0, 0
    for event in train_baseline(
        settings, corpus, device=device, seed=seed, max_seconds=max_seconds, out=place.folder, resume=True
    ):
        if isinstance(event, TrainedBaseline):
            trained = event
        else:
            step, num_steps = event.step, event.num_steps
            yield event
    assert trained is not None
    seconds = earlier.get("seconds", 0.0) + time.monotonic() - begun
    write_timing(place.folder, {"seconds": seconds})
    if trained.reason in ("time", "interrupted"):
        yield RowStopped("time" if trained.reason == "time" else "interrupted", step, num_steps)
        return None
    return Trained(trained.scorer, trained.num_parameters, seconds, [], thinned_curve(read_log(place.folder)))
