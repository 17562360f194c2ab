"""Programs that wait in vain end, with an error and without a result: interpreted here, compiled on a GPU (`-m gpu`)."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    # Must be known before triton is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

pytest.importorskip("triton")

from tests.ops.test_max_product_kernel import SMALL as SMALL_MAX
from tests.ops.test_recursion_kernel import SMALL, check, forward, random_factors
from vlhmm.capture import Graphed
from vlhmm.inference.errors import raise_impossible
from vlhmm.ops import waiting
from vlhmm.ops.max_product import dense as max_dense
from vlhmm.ops.max_product import kernel as max_kernel
from vlhmm.ops.recursion import Factors, dense, launches, recursion_by_kernels, tilings
from vlhmm.ops.recursion import kernel as forward_kernel
from vlhmm.ops.recursion.backward import kernel as backward_kernel
from vlhmm.ops.recursion.resident import kernel as resident_kernel
from vlhmm.records import convert

# What is made of numbers that nobody has written overflows: the interpreter says so.
overflows = pytest.mark.filterwarnings(
    *(f"ignore:{what}:RuntimeWarning" for what in ("overflow", "invalid value", "All-NaN slice"))
)

FEW = 30
"""Polls; on a GPU a wait that ends may take more."""


class Changed:
    """A kernel whose programs do not all meet: one of them is not launched, or has not been counted."""

    def __init__(self, kernel: Any, uncounted: bool) -> None:
        self.kernel, self.uncounted = kernel, uncounted
        self.launches = 0

    def __getitem__(self, grid: tuple[int]) -> Callable[..., Any]:
        def launch(*arguments: Any, **options: Any) -> Any:
            self.launches += 1
            if self.uncounted:
                arguments[self.kernel.arg_names.index("arrived")].sub_(1)
            return self.kernel[grid if self.uncounted else (grid[0] - 1,)](*arguments, **options)

        return launch


def single_factors(batch: int = 2, positions: int = 4, states: int = 33, device: str = "cpu") -> Factors:
    """All of the full length, so that every position is asked for."""
    factors = convert(random_factors(3, batch, positions, states, device=device), dtype=torch.float32)
    return Factors(**{**vars(factors), "lengths": torch.full_like(factors.lengths, positions)})


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MAX_POLLS", FEW)


def prepared_of(factors: Factors) -> tuple[dense.Prepared, dense.Text]:
    return dense.prepare(factors.log_tiles[0], factors.log_inits, "highest"), dense.text_of(factors)


def never_meet(monkeypatch: pytest.MonkeyPatch, method: tilings.Method) -> None:
    modules = [resident_kernel, resident_kernel] if method == "resident" else [forward_kernel, backward_kernel]
    for name, module in zip(("forward_steps", "backward_steps"), modules, strict=True):
        monkeypatch.setattr(module, name, Changed(getattr(module, name), uncounted=method != "resident"))
    # In the interpreter one program runs after the other.
    monkeypatch.setattr(launches, "_programs_run_at_once", lambda device: True)


@overflows
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("method", "operation"),
    [("resident", "forward recursion, resident tile"), ("persistent", "forward recursion")],
)
def test_a_forward_pass_whose_programs_do_not_meet_ends_with_an_error_and_no_number(
    method: tilings.Method, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    factors = single_factors()
    with monkeypatch.context() as broken:
        never_meet(broken, method)
        run = forward(factors, "highest", method=method, tiling=SMALL)
        assert run.log_prob is not None
        assert run.log_prob.isnan().all()
        with pytest.raises(
            waiting.DeviceWaitError, match=rf"{operation}: program \d at step \d.*bound {FEW} polls.*no_coop"
        ):
            waiting.check(torch.device("cpu"))
    # Said once; what comes next is not concerned.
    waiting.check(torch.device("cpu"))
    assert forward(factors, "highest", method=method, tiling=SMALL).token_log_probs.isfinite().all()
    waiting.check(torch.device("cpu"))


@overflows
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("method", ["resident", "persistent"])
def test_a_backward_pass_whose_programs_do_not_meet_gives_no_gradient(
    method: tilings.Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    factors = single_factors()
    prepared, text = prepared_of(factors)
    run = dense.forward(prepared, text, "highest", keep=True, method=method, tiling=SMALL)
    asked = torch.ones_like(run.token_log_probs)
    never_meet(monkeypatch, method)
    found = dense.backward(prepared, text, run, asked, None, "highest", method=method, tiling=SMALL)
    assert found.log_emission.isnan().any(2).any(1).all()
    with pytest.raises(waiting.DeviceWaitError, match="backward recursion"):
        waiting.check(torch.device("cpu"))


@overflows
@pytest.mark.usefixtures("impatient")
def test_a_best_path_whose_programs_do_not_meet_has_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    factors = single_factors()
    monkeypatch.setattr(max_kernel, "max_steps", Changed(max_kernel.max_steps, uncounted=True))
    gains, _, _ = max_dense.max_product(factors, keep_backtrace=False, persistent=True, tiling=SMALL_MAX)
    assert not gains.sum(1).isfinite().any()
    # Before anything is said of texts: what is infinite here is not impossible.
    with pytest.raises(waiting.DeviceWaitError, match="max-product: program 0 at step 0"):
        raise_impossible(gains, 0, torch.arange(2), "viterbi")


@overflows
@pytest.mark.usefixtures("impatient")
def test_an_answer_is_not_given_where_a_kernel_gave_up(monkeypatch: pytest.MonkeyPatch) -> None:
    never_meet(monkeypatch, "persistent")
    monkeypatch.setattr(dense, "method_for", lambda *_: "persistent")
    with pytest.raises(waiting.DeviceWaitError, match="forward recursion"):
        recursion_by_kernels(single_factors(), "highest")


@pytest.mark.parametrize("states", [5, 16])
def test_a_program_that_owns_all_it_reads_waits_for_itself(states: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "_programs_run_at_once", lambda device: True)
    check(random_factors(states, 3, 5, states), "highest", "resident", SMALL)
    waiting.check(torch.device("cpu"))


def test_a_thread_without_cooperative_kernels_takes_none_for_best_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tilings, "multiprocessors", lambda device: 8)
    device = torch.device("cuda")
    assert tilings.meet(8, device)
    assert not tilings.meet(9, device)
    with tilings.no_cooperative_kernels():
        assert not tilings.meet(8, device)
    assert not tilings.meet(1, torch.device("cpu"))


def cooperative(method: str, states: int) -> Factors:
    return single_factors(batch=20, positions=16, states=states, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize(("method", "states"), [("resident", 128), ("resident", 512), ("persistent", 300)])
def test_on_a_gpu_programs_that_do_not_meet_end_with_an_error_and_no_number(
    method: tilings.Method, states: int, in_graph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    factors, device = cooperative(method, states), torch.device("cuda")
    precision = "bf16" if method == "resident" else "highest"
    prepared, text = dense.prepare(factors.log_tiles[0], factors.log_inits, precision), dense.text_of(factors)
    found: list[torch.Tensor] = []

    def work() -> None:
        run = dense.forward(prepared, text, precision, keep=True, method=method)
        assert run.log_prob is not None
        asked = torch.ones_like(run.token_log_probs)
        gradient = dense.backward(prepared, text, run, asked, None, precision, method=method)
        found[:] = [run.log_prob, gradient.log_emission]

    work()
    torch.cuda.synchronize()
    waiting.check(device)
    assert all(one.isfinite().all() for one in found)
    monkeypatch.setattr(waiting, "MAX_POLLS", 10_000)
    never_meet(monkeypatch, method)
    graphed = Graphed[None](device, enabled=in_graph, eager_calls=0)
    for _ in range(2):
        graphed(work)
        torch.cuda.synchronize()
        with pytest.raises(waiting.DeviceWaitError, match=r"forward recursion.*backward recursion"):
            waiting.check(device)
        # With its last row tile short of a program, or all of them.
        assert found[0].isnan().any()
        assert found[1].isnan().any()


@pytest.mark.gpu
@pytest.mark.parametrize("states", [65, 128, 200, 256])
def test_on_a_gpu_few_parts_of_a_resident_tile_never_part_the_warps_of_a_program(states: int) -> None:
    """Sums of few parts are read by every warp for itself. While each warp decided by its own, programs ended with wrong numbers, or not at all."""
    factors = single_factors(batch=200, positions=64, states=states, device="cuda")
    prepared, text = dense.prepare(factors.log_tiles[0], factors.log_inits, "bf16"), dense.text_of(factors)
    expected = dense.forward(prepared, text, "bf16", keep=False, method="cublas").log_prob
    assert expected is not None
    for _ in range(300):
        run = dense.forward(prepared, text, "bf16", keep=False, method="resident")
    torch.cuda.synchronize()
    waiting.check(torch.device("cuda"))
    torch.testing.assert_close(run.log_prob, expected, rtol=3e-4, atol=0)
