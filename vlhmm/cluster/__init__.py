"""Words to blocks: which words share a group of states.

`bigrams` counts what stands next to what, `exchange` keeps those counts for blocks while words move, `brown` builds
blocks from nothing, `refine` improves them, and `blocks` is the record that all of it ends in.
"""

import time
from collections.abc import Callable, Generator

import numpy as np

from vlhmm.cluster.bigrams import (
    Bigrams,
    Eos,
    Floats,
    HasIds,
    Ints,
    TokenSource,
    count_bigrams,
    flat_ids,
    mutual_information,
    sum_by,
    word_counts,
)
from vlhmm.cluster.blocks import Blocks, one_block, one_word_per_block, random_blocks
from vlhmm.cluster.brown import agglomerate
from vlhmm.cluster.exchange import Exchange
from vlhmm.cluster.refine import Clock, refining
from vlhmm.distributed import ALONE, World, first_yields
from vlhmm.progress import Progress

__all__ = [
    "Bigrams",
    "Blocks",
    "Eos",
    "brown_clusters",
    "clustering",
    "count_bigrams",
    "mutual_information",
    "one_block",
    "one_word_per_block",
    "random_blocks",
    "word_counts",
]

MAX_BLOCKS = 2048
"""Beyond these the tables of block pairs would take more than 1 GiB."""


def brown_clusters(
    tokens: TokenSource,
    num_blocks: int,
    *,
    eos: Eos = "own",
    eos_id: int | None = None,
    vocab_size: int | None = None,
    refine: bool = True,
    seed: int = 0,
    max_seconds: float | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Blocks:
    """Cluster words so that the mutual information of the blocks of adjacent words is large.

    First Brown clustering (Brown et al. 1992): a window over the frequent words, then every other word joins the best block. Then
    exchange: words change blocks by simulated annealing, at the end only where that raises the information. Blocks are numbered by
    falling token count. On one machine the same seed gives the same blocks, unless `max_seconds` cuts the search short.

    Args:
        tokens: A split of a corpus, or an array of token ids.
        num_blocks: Number of blocks, that of EOS included.
        eos: What becomes of EOS. own: the last block holds it alone; word: it is clustered like a word, and the lines are read
            as one text; last: the words are clustered without it, and it joins the last block; none: the words are clustered
            without it, and it joins the block with the most words.
        eos_id: The EOS token; None: the last token of a split. An array needs it for own and last.
        vocab_size: Size of the vocabulary; None: the largest id plus 1.
        refine: Do the exchange.
        seed: Seed of the exchange.
        max_seconds: Time limit of the exchange; None: no limit. Counting and Brown clustering come first and have no limit.
        progress: Called with steps done, steps in all and a description.

    Returns:
        The blocks, with their mutual information.

    Raises:
        ValueError: There are fewer words than blocks, or a setting is out of range.

    Example:
        >>> text = [1, 3, 0, 2, 4, 0, 1, 4, 0, 2, 3, 0] * 5  # 0 is EOS; 1 and 2 are alike, and so are 3 and 4
        >>> vlhmm.brown_clusters(text, 3, eos_id=0).block_of_word.tolist()
        [2, 1, 1, 0, 0]
    """
    steps = clustering(
        tokens,
        num_blocks,
        eos=eos,
        eos_id=eos_id,
        vocab_size=vocab_size,
        refine=refine,
        seed=seed,
        max_seconds=max_seconds,
    )
    while True:
        try:
            step = next(steps)
        except StopIteration as stop:
            blocks: Blocks = stop.value
            return blocks
        if progress is not None:
            progress(step.done, step.total or 0, step.note)


def clustering(
    tokens: TokenSource,
    num_blocks: int,
    *,
    eos: Eos = "own",
    eos_id: int | None = None,
    vocab_size: int | None = None,
    refine: bool = True,
    seed: int = 0,
    max_seconds: float | None = None,
    here: World = ALONE,
) -> Generator[Progress, None, Blocks]:
    """`brown_clusters`, telling how far the exchange is. Ranks share the counting; the search, a move at a time, is the first's."""
    clock = Clock.start(max_seconds)
    ids = flat_ids(tokens)
    # A split ends with the end of a line; a bare array says nothing of the kind.
    if eos_id is None and isinstance(tokens, HasIds) and len(ids):
        eos_id = int(ids[-1])
    check_settings(num_blocks, eos, eos_id, seed)
    bigrams = count_bigrams(ids, eos=eos, eos_id=eos_id, vocab_size=vocab_size, here=here)
    block_of_word = yield from first_yields(
        lambda: _searching(bigrams, num_blocks, eos, eos_id, refine, seed, clock), here, "clustering words"
    )
    return Blocks(
        block_of_word,
        num_blocks,
        information=mutual_information(bigrams, block_of_word),
        seconds=time.monotonic() - clock.started,
    )


def _searching(
    bigrams: Bigrams, num_blocks: int, eos: Eos, eos_id: int | None, refine: bool, seed: int, clock: Clock
) -> Generator[Progress, None, Ints]:
    """The block of each word."""
    num_words = bigrams.vocab_size
    apart = eos_id if eos in ("own", "last", "none") else None
    clustered = np.setdiff1d(np.arange(num_words), [] if apart is None else [apart])
    open_blocks = num_blocks - 1 if eos == "own" else num_blocks
    if open_blocks > len(clustered):
        raise ValueError(
            f"{open_blocks} blocks for {len(clustered)} words would leave some empty; "
            f"ask for at most {len(clustered) + num_blocks - open_blocks} blocks"
        )

    # Ranked by count, so that words met together in a sweep are about equally frequent. EOS, when it is counted but
    # stays where it is, stands after them.
    counts = bigrams.count_as_left + bigrams.count_as_right
    by_count = clustered[np.argsort(-counts[clustered], kind="stable")]
    seen = by_count[: np.count_nonzero(counts[by_count])]
    block_of_word = np.zeros(num_words, np.int64)
    if len(seen) <= open_blocks:
        block_of_word[by_count] = np.minimum(np.arange(len(by_count)), open_blocks - 1)
    else:
        if open_blocks > MAX_BLOCKS:
            raise ValueError(
                f"{open_blocks} blocks of {len(seen)} words that occur; the search takes at most {MAX_BLOCKS}, "
                "or one_word_per_block"
            )
        ranked = np.append(seen, [eos_id]) if eos == "own" else seen
        state = Exchange(bigrams.select(ranked), num_movable=len(seen), open_blocks=open_blocks)
        agglomerate(state)
        if refine:
            yield from refining(state, np.random.default_rng(seed), clock)
        block_of_word[ranked] = state.block_of_word
        # A word without neighbours says nothing; it goes where single words matter least.
        largest = np.bincount(block_of_word[seen], minlength=open_blocks).argmax()
        block_of_word[by_count[len(seen) :]] = largest
    block_of_word[clustered] = _by_falling_count(block_of_word[clustered], counts[clustered], open_blocks)
    if apart is not None:
        sizes = np.bincount(block_of_word[clustered], minlength=num_blocks)
        block_of_word[apart] = sizes.argmax() if eos == "none" else num_blocks - 1
    return block_of_word


def check_settings(num_blocks: int, eos: str, eos_id: int | None, seed: int) -> None:
    if eos not in ("own", "word", "last", "none"):
        raise ValueError(f"eos is {eos!r}; it must be one of own, word, last, none")
    if eos in ("own", "last") and eos_id is None:
        raise ValueError(f"eos={eos!r} needs eos_id, the id of the end-of-line token; or use eos='word'")
    least = 2 if eos == "own" else 1
    if num_blocks < least:
        raise ValueError(f"{num_blocks} blocks; eos={eos!r} needs at least {least}")
    if seed < 0:
        raise ValueError(f"seed {seed} is negative; it must be 0 or more")


def _by_falling_count(block_of_word: Ints, counts: Floats, num_blocks: int) -> Ints:
    totals = sum_by(block_of_word, counts, num_blocks)
    new_name = np.empty(num_blocks, np.int64)
    new_name[np.argsort(-totals, kind="stable")] = np.arange(num_blocks)
    return np.asarray(new_name[block_of_word])
