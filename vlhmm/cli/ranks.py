"""Commands that torchrun starts: which commands ranks may run, and output from the first rank alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

Answer = TypeVar("Answer")

SHARED_COMMANDS = frozenset(
    {"train", "distill", "eval", "inspect", "score", "next", "posterior", "viterbi", "prepare", "cluster"}
)
"""Commands whose work ranks share; any other is for one process."""
TEXTS_A_RANK = 32
"""Texts that a rank answers before answers are printed."""


def _launched() -> bool:
    # What `vlhmm.distributed.launched` asks, which takes a second to import.
    return "WORLD_SIZE" in os.environ and "RANK" in os.environ


@contextmanager
def joined_ranks() -> Iterator[None]:
    """Joins the ranks that torchrun has started. All but the first print nothing, except an error that is theirs alone."""
    if not _launched():
        yield
        return
    from vlhmm.distributed import joined

    with joined() as here:
        if here.is_first:
            yield
            return
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield


def require_shared(command: str | None) -> None:
    """Refuses a command under torchrun whose work cannot be shared: every rank would do, and write, the same."""
    if command is None or command in SHARED_COMMANDS or not _launched() or int(os.environ["WORLD_SIZE"]) == 1:
        return
    raise ValueError(
        f"{command} runs as one process, but torchrun has started {os.environ['WORLD_SIZE']}: start it without torchrun"
    )


def said_nothing(error: BaseException) -> bool:
    """Whether another rank has told, or will tell, what happened."""
    distributed = sys.modules.get("vlhmm.distributed")
    return distributed is not None and isinstance(error, distributed.OtherRankError)


def lost_rank(error: BaseException) -> bool:
    """Whether a rank was killed or hangs."""
    distributed = sys.modules.get("vlhmm.distributed")
    return distributed is not None and isinstance(error, distributed.LostRankError)


def first_rank() -> bool:
    """Whether this process writes files."""
    from vlhmm.distributed import world

    return world().is_first


def local_gpu() -> torch.device:
    """The GPU of this rank: of several ranks on a machine each has the one of its number."""
    import torch

    from vlhmm.distributed import world

    here = world()
    if here.size == 1:
        return torch.device("cuda")
    if here.local_rank >= torch.cuda.device_count():
        raise ValueError(
            f"rank {here.local_rank} of this machine has no GPU of its own, torch finds {torch.cuda.device_count()}: "
            "let torchrun start --nproc-per-node gpu, or use --device cpu"
        )
    torch.cuda.set_device(here.local_rank)
    return torch.device("cuda", here.local_rank)


def answered(texts: Callable[[], Iterable[str]], answer: Callable[[str], Answer]) -> Iterator[tuple[str, Answer]]:
    """Each text with its answer, in order. Ranks answer texts by turns; each text by itself, as one process does."""
    from vlhmm.distributed import broadcast_object, gather_when_done, shard, world

    here = world()
    if here.size == 1:
        yield from ((text, answer(text)) for text in texts())
        return
    # One of them reads stdin.
    left = iter(texts()) if here.is_first else iter(())
    block = 0
    while some := broadcast_object(list(islice(left, TEXTS_A_RANK * here.size)), here, f"texts {block}"):
        own = [answer(text) for text in shard(some, here)]
        answers = gather_when_done(own, here, f"answers {block}")
        yield from zip(some, (one for part in answers for one in part), strict=True)
        block += 1


def lines_of_all(lines: Iterable[str]) -> list[str]:
    """Lines of stdin, which only the first rank reads, on all ranks."""
    from vlhmm.distributed import broadcast_object, world

    here = world()
    return broadcast_object(list(lines) if here.is_first else [], here, "reading stdin")
