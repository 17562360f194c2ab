"""Rows of the table: one piece of work of one size by every engine, beside its floor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial

import torch

from bench import original
from bench.floor import Rates, dense_needs, step_needs
from bench.measure import MAX_SECONDS, Result, compare
from bench.ours import QUERY_PRECISION, Ours, step_inputs, timed_step
from bench.peers import PEERS, Peer, installed
from bench.report import Row
from bench.workloads import (
    DenseSizes,
    Step,
    StepSizes,
    Timed,
    Truth,
    Work,
    dense_inputs,
    error,
    products_read,
    tolerance,
)
from vlhmm.precision import Precision


def dense_row(
    work: Work,
    sizes: DenseSizes,
    device: torch.device,
    rates: Rates,
    repeat: int,
    with_peers: bool,
    precision: Precision = QUERY_PRECISION,
    max_seconds: float = MAX_SECONDS,
) -> Row:
    inputs = dense_inputs(sizes, device)
    ours = Ours(precision)
    peers = [peer for peer in PEERS if with_peers and device.type in peer.devices]
    engines: list[Ours | Peer] = [ours, *(peer for peer in peers if installed(peer))]
    allowed = tolerance(work, device)
    results = compare(
        {engine.name: partial(engine.timed, work, inputs) for engine in engines},
        partial(error, work, Truth(inputs)),
        allowed,
        device,
        repeat,
        max_seconds,
    )
    missing = [Result(peer.name, message="not installed") for peer in peers if not installed(peer)]
    of_ours, *of_peers = (
        replace(result, precision=engine.reads(work, device))
        for result, engine in zip(
            [*results, *missing], [*engines, *(one for one in peers if not installed(one))], strict=True
        )
    )
    floor = 1e3 * dense_needs(work, sizes, rates).seconds(rates)
    return Row(work, asdict(sizes), allowed, floor, of_ours, of_peers, of_ours.precision)


def step_row(work: Step, sizes: StepSizes, device: torch.device, rates: Rates, repeat: int, with_peers: bool) -> Row:
    inputs = step_inputs(sizes, device)
    engines: dict[str, Callable[[], Timed]] = {Ours.name: partial(timed_step, inputs)}
    if with_peers:
        engines[original.NAME] = partial(original.timed_eager_step, inputs)
    allowed = tolerance(work, device)
    results = compare(engines, partial(original.step_error, inputs), allowed, device, repeat)
    floor = 1e3 * step_needs(sizes, rates).seconds(rates)
    reads = products_read(inputs.model.settings.precision, device)
    ours = replace(results[0], precision=reads)
    return Row(work, {**asdict(sizes), "states": sizes.states}, allowed, floor, ours, results[1:], reads)
