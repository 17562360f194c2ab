"""Ranks that work together, and what each is told when one fails."""

import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import vlhmm.distributed.joining
from tests.distributed.launch import on_ranks, torchrun
from tests.distributed.laws import all_hold
from vlhmm.distributed import (
    ALONE,
    LostRankError,
    World,
    any_rank,
    barrier,
    broadcast_object,
    broadcast_tensors,
    chosen_time_limit,
    first_does,
    gather_objects,
    gather_when_done,
    joined,
    remember,
    remembered,
    require_alike,
    shard,
    sum_in_order,
    world,
)
from vlhmm.distributed.faults import claim, final_error
from vlhmm.training.trainer import DivergedError


def test_the_laws_hold_on_processes_of_torchrun() -> None:
    status, out, errors = torchrun("-m", "tests.distributed.laws", ranks=2)
    assert (status, out) == (0, "all hold\n" * 2), errors


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_laws_hold_on_any_number_of_ranks(ranks: int) -> None:
    assert on_ranks(all_hold, ranks) == ["None"] * ranks


def test_one_process_gets_back_what_it_gave() -> None:
    values = torch.ones(3)
    assert world() == World(0, 1) == ALONE
    with joined() as here:
        assert here == ALONE
    assert sum_in_order(values, ALONE) is values
    assert broadcast_object(values, ALONE) is values
    assert gather_objects(values, ALONE)[0] is values
    assert broadcast_tensors({"a": values}, ALONE)["a"] is values
    assert shard([1, 2, 3], ALONE) == [1, 2, 3]
    assert any_rank([True, False], ALONE) == [True, False]
    assert first_does(lambda: 5, ALONE) == 5
    barrier(ALONE)
    require_alike({"seed": 0}, ALONE)


def test_an_error_of_one_rank_is_raised_by_it_and_told_to_the_others() -> None:
    def fails(here: World) -> None:
        if here.rank == 1:
            raise ValueError("no such file")
        sum_in_order(torch.ones(3), here, "step 5")

    others = "OtherRankError: rank 1: no such file"
    assert on_ranks(fails, 3) == [others, "ValueError: no such file", others]


def test_an_error_of_work_that_the_others_wait_for_ends_them() -> None:
    def fails() -> None:
        raise OSError("the disk is full")

    told = on_ranks(lambda here: first_does(fails, here, "saving"), 2)
    assert told == ["OSError: the disk is full", "OtherRankError: rank 0: the disk is full"]


def test_an_error_of_all_ranks_is_raised_by_one() -> None:
    told = on_ranks(lambda here: require_alike({"seed": here.rank // 2, "text": "ab"}, here), 3)
    text = "seed is 0 on rank 0, but 1 on rank 2: start all ranks with the same code, settings and text"
    assert sorted(told)[:2] == [f"OtherRankError: rank {told.index(f'ValueError: {text}')}: {text}"] * 2


def in_a_process(work: Callable[[World], object], process: str) -> Callable[[World], object]:
    """The first rank as a process of that name; a fork has the name of no other."""

    def named(here: World) -> object:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(vlhmm.distributed.joining, "_process", lambda pid: process)
            return work(here)

    return named


def test_what_the_first_rank_remembers_is_heard_by_all_processes_after_it(tmp_path: Path) -> None:
    """Whatever torchrun on its machine says of restarts."""

    def begun(here: World) -> tuple[bool, bool]:
        before = remembered("a run", here)
        remember("a run", here)
        # It has not begun anew.
        return before, remembered("a run", here)

    def both(here: World) -> list[tuple[bool, bool]]:
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(here.rank)
        return [in_a_process(begun, process)(here) for process in ("first", "second", "third")]

    assert on_ranks(both, 2) == [str([(False, False), (True, False), (True, False)])] * 2


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (ValueError("a setting"), True),
        (DivergedError("a loss of NaN"), True),
        (OSError(errno.ENOSPC, "no space left"), True),
        (FileNotFoundError(errno.ENOENT, "no such file"), True),
        (OSError(errno.EIO, "input/output error"), False),
        (ConnectionResetError("by peer"), False),
        (RuntimeError("cuda"), False),
        (LostRankError("rank 1"), False),
    ],
)
def test_errors_that_would_come_again_end_the_processes_that_follow(error: Exception, final: bool) -> None:
    def fails(here: World) -> str:
        # As a process that torchrun starts after this one asks.
        claim(here, error, "process.attempt")
        return f"{final_error('another.attempt')} / {final_error('process.attempt')}"

    assert on_ranks(fails, 1) == [f"{f'rank 0: {error}' if final else None} / None"]


def test_a_rank_that_was_killed_is_named() -> None:
    def killed(here: World) -> None:
        if here.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        sum_in_order(torch.ones(3), here, "step 7")

    told = on_ranks(killed, 3)
    text = "rank 1 was lost in step 7: it was killed, or its machine cannot be reached"
    assert told[1] == "killed"
    assert {told[0].partition(": ")[0], told[2].partition(": ")[0]} == {"LostRankError", "OtherRankError"}
    assert told[0].endswith(text)
    assert told[2].endswith(text)


def test_ranks_that_wait_without_a_limit_hear_that_the_first_was_killed() -> None:
    def killed() -> None:
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)

    told = on_ranks(lambda here: first_does(killed, here, "writing"), 2)
    text = "rank 0 was lost in writing: it was killed, or its machine cannot be reached"
    assert told == ["killed", f"LostRankError: {text}"]


def test_a_rank_that_hangs_is_named_after_the_time_limit() -> None:
    def hangs(here: World) -> None:
        if here.rank == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        sum_in_order(torch.ones(3), here, "step 9")

    told = on_ranks(hangs, 3, time_limit=1.0, seconds=15)
    assert told[2] == "hangs"
    for other in told[:2]:
        assert other.endswith("rank 2 did not answer for 1 s in step 9: it hangs, or the time limit is too short")


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_rank_that_is_stopped_while_others_wait_for_its_work_is_named(stopped: int) -> None:
    def hangs(here: World) -> None:
        def work() -> None:
            if here.rank == stopped:
                os.kill(os.getpid(), signal.SIGSTOP)

        if stopped == 0:
            first_does(work, here, "writing to out")
        else:
            work()
            gather_when_done(here.rank, here, "scoring")

    told = on_ranks(hangs, 2, time_limit=1.0, seconds=15)
    where = "writing to out" if stopped == 0 else "scoring"
    assert told[stopped] == "hangs"
    assert told[1 - stopped] == (
        f"LostRankError: rank {stopped} gave no sign of life for 1 s in {where}: the process is stopped, or its machine cannot "
        "be reached"
    )


def test_work_may_take_longer_than_the_time_limit() -> None:
    def works(here: World) -> list[int]:
        first_does(lambda: time.sleep(2.5), here)
        time.sleep(2.5 * here.rank)
        return gather_when_done(here.rank, here, "scoring")

    assert on_ranks(works, 2, time_limit=1.0) == ["[0, 1]"] * 2


def test_the_time_limit_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_time_limit() == 600
    monkeypatch.setenv("VLHMM_RANK_TIMEOUT", "90.5")
    assert chosen_time_limit() == 90.5
    for wrong in ("ten", "0", "inf", "nan"):
        monkeypatch.setenv("VLHMM_RANK_TIMEOUT", wrong)
        with pytest.raises(
            ValueError, match=f"VLHMM_RANK_TIMEOUT is '{wrong}', but must be a number of seconds above 0"
        ):
            chosen_time_limit()
