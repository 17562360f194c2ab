"""What the library's products of float32 read is a setting of the process: threads must not see one another's."""

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from importlib import import_module
from pathlib import Path

import pytest
import torch
from tiny import tiny_corpus, tiny_model

import vlhmm
from vlhmm.baselines.adam import AdamStep
from vlhmm.baselines.feedforward import FeedForward
from vlhmm.baselines.scorer import NeuralScorer
from vlhmm.ops.recursion import product
from vlhmm.precision import Precision, float32_products, network_products
from vlhmm.training.baseline_settings import FeedForwardSettings
from vlhmm.training.settings import TrainSettings
from vlhmm.training.step import Step

GPU = torch.device("cuda")
"""Only its name is asked for."""

SECONDS = 20.0
"""Whoever waits longer waits for ever."""


def read() -> str:
    return torch.get_float32_matmul_precision()


def in_threads(*works: Callable[[], None]) -> None:
    with ThreadPoolExecutor(len(works)) as pool:
        for future in [pool.submit(work) for work in works]:
            future.result(SECONDS)


@pytest.mark.parametrize("before", ["highest", "high", "medium"])
def test_the_process_gets_its_own_setting_back(before: str) -> None:
    torch.set_float32_matmul_precision(before)
    try:
        with float32_products("bf16", GPU):
            assert read() == "high"
        assert read() == before
        with suppress(ZeroDivisionError), float32_products("highest", GPU):
            assert read() == "highest"
            raise ZeroDivisionError
        assert read() == before
        with float32_products("tf32", torch.device("cpu")):
            assert read() == before
    finally:
        torch.set_float32_matmul_precision("highest")


def test_threads_of_different_precision_each_read_their_own() -> None:
    wanted: dict[Precision, str] = {"bf16": "high", "tf32": "high", "highest": "highest"}

    def work(one: Precision) -> None:
        for _ in range(30):
            with float32_products(one, GPU):
                for _ in range(3):
                    assert read() == wanted[one]
                    time.sleep(0.0002)

    in_threads(*(lambda one=one: work(one) for one in wanted for _ in range(2)))
    assert read() == "highest"


def test_threads_of_the_same_precision_do_not_wait_for_one_another() -> None:
    together = threading.Barrier(3, timeout=SECONDS)

    def work(one: Precision) -> None:
        with float32_products(one, GPU):
            together.wait()

    in_threads(lambda: work("tf32"), lambda: work("bf16"), lambda: work("tf32"))


def test_no_thread_starves_while_others_take_turns() -> None:
    done = threading.Event()
    first_holds = threading.Event()

    def overlapping() -> None:
        deadline = time.monotonic() + SECONDS
        while not done.is_set():
            assert time.monotonic() < deadline
            with float32_products("tf32", GPU):
                first_holds.set()
                time.sleep(0.001)

    def alone() -> None:
        assert first_holds.wait(SECONDS)
        with float32_products("highest", GPU):
            done.set()

    in_threads(overlapping, overlapping, overlapping, alone)


def test_within_the_highest_precision_tf32_is_not_needed_but_not_the_other_way_round() -> None:
    with float32_products("highest", GPU), float32_products("tf32", GPU):
        assert read() == "highest"
    with (
        float32_products("bf16", GPU),
        pytest.raises(RuntimeError, match="within others of tf32"),
        float32_products("highest", GPU),
    ):
        pass
    assert read() == "highest"


@pytest.mark.parametrize(("precision", "expected"), [("bf16", "high"), ("tf32", "highest"), ("highest", "highest")])
def test_networks_read_tf32_only_beside_bf16(precision: Precision, expected: str) -> None:
    with network_products(precision, GPU):
        assert read() == expected


def test_no_other_module_touches_the_setting() -> None:
    package = Path(vlhmm.__file__).parent
    setting = re.compile(r"float32_matmul_precision|allow_tf32|fp32_precision")
    users = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if setting.search(path.read_text())}
    assert users == {"precision.py"}


def test_models_trained_and_scored_side_by_side_keep_to_their_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_on_a_gpu(one: Precision, _: torch.device) -> AbstractContextManager[None]:
        return float32_products(one, GPU)

    for name in ("evaluate", "baselines.adam", "baselines.scorer"):
        monkeypatch.setattr(import_module(f"vlhmm.{name}"), "float32_products", as_on_a_gpu)
    monkeypatch.setattr("vlhmm.training.step.network_products", lambda one, _: network_products(one, GPU))
    corpus = tiny_corpus(60)
    windows = torch.randint(corpus.tokenizer.vocab_size, (10, 4, 16), generator=torch.Generator().manual_seed(0))
    lengths = torch.full((4,), 16)

    def watched(model: torch.nn.Module) -> set[tuple[bool, str]]:
        """Whether each product is part of training, and what it reads."""
        seen: set[tuple[bool, str]] = set()

        def note(*_: object) -> None:
            seen.add((torch.is_grad_enabled(), read()))
            time.sleep(0.001)

        for part in model.modules():
            if isinstance(part, torch.nn.Linear):
                part.register_forward_pre_hook(note)
                part.register_forward_hook(note)
                part.weight.register_hook(lambda _: seen.add((True, read())))
        return seen

    def train_hmm(one: Precision) -> None:
        model = tiny_model(corpus, precision=one)
        seen = watched(model)
        step = Step(model, TrainSettings(batch_size=4, window=16))
        for window in windows:
            step(window, 0.01, fresh=True)
        assert seen == {(True, "high" if one == "bf16" else "highest")}

    def train_and_score_a_baseline() -> None:
        model = FeedForward(FeedForwardSettings(order=3, dim=8, batch_size=4, window=16), corpus.tokenizer.vocab_size)
        seen = watched(model)
        step = AdamStep(model, seed=0)
        for window in windows:
            step(window, fresh=True)
            NeuralScorer(model).score_window(window, lengths, None)
        assert seen == {(True, "high"), (False, "highest")}

    hmms = [lambda one=one: train_hmm(one) for one in ("bf16", "tf32", "highest")]
    in_threads(*hmms, train_and_score_a_baseline)
    assert read() == "highest"


def test_two_halves_hold_sixteen_bits() -> None:
    values = torch.randn(200, 50, generator=torch.Generator().manual_seed(0)) * 1e-20
    upper, lower = product._halves(values)
    assert ((upper.double() + lower.double() - values.double()).abs() <= 2.0**-16 * values.abs()).all()
