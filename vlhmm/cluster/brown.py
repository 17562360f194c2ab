"""Brown clustering: every word starts as a block, the two blocks whose union costs least information are merged.

As usual (Liang 2005) over a window: the most frequent words are the first blocks; then, word by word in order of count,
the next one is added as a block and the best pair merged. Unlike there, words not yet added count too, as one block
that cannot be merged, so that all costs are costs to the information of the whole text.

The pair merged soon always has the new word in it: a rare word costs less to place than two large blocks to unite. The
window is kept for the first words only; later ones join, a few at a time, the block that keeps most information.
"""

import numpy as np

from vlhmm.cluster.bigrams import Floats, Ints, n_log_n
from vlhmm.cluster.exchange import Exchange

MAX_WINDOW = 512
"""Blocks beyond which no window is kept: the first table of costs takes time in the third power of them."""
MAX_WINDOW_CELLS = 1 << 25
"""Bounds the cost tables computed, and so the time: a few seconds."""

JOINING_SHARE = 4e-3
"""Later words of at most this share of the text join together."""


def agglomerate(state: Exchange) -> None:
    """Sets the blocks of `state`, whatever they were, to Brown clusters."""
    blocks = state.open_blocks
    steps = min(3 * blocks, MAX_WINDOW_CELLS // blocks**2) if 1 < blocks <= MAX_WINDOW else 0
    merged = min(blocks + steps, state.num_movable)
    state.set_blocks(_merge_in_window(state, merged))
    for start, stop in state.batches(JOINING_SHARE):
        joining = np.arange(max(start, merged), stop)
        if len(joining):
            state.move(joining, state.gains(int(joining[0]), stop).argmax(1))
    # Without the block of those that waited, empty now, and with that of the word apart right after the open ones.
    state.set_blocks(np.minimum(state.block_of_word, blocks))


def _merge_in_window(state: Exchange, num_words: int) -> Ints:
    """Slots of all words once the first `num_words` are in blocks; the others are apart or wait."""
    blocks = state.open_blocks
    # Slots: the blocks, the newcomer, the word that stays apart (perhaps none), the words still waiting.
    newcomer, apart, waiting = blocks, blocks + 1, blocks + 2
    slot_of_word = np.full(state.bigrams.vocab_size, waiting)
    slot_of_word[:blocks] = np.arange(blocks)
    slot_of_word[state.num_movable :] = apart
    if num_words > blocks:
        window = Window(state, slot_of_word, waiting + 1)
        for word in range(blocks, num_words):
            following = state.following.by_block(word, word + 1, slot_of_word, waiting + 1)[0]
            preceding = state.preceding.by_block(word, word + 1, slot_of_word, waiting + 1)[0]
            window.extract(waiting, newcomer, following, preceding, float(state.with_itself[word]))
            slot_of_word[word] = newcomer
            kept, gone = window.cheapest_merge(newcomer + 1)
            window.merge(kept, gone)
            slot_of_word[slot_of_word == gone] = kept
            if gone != newcomer:
                window.swap(gone, newcomer)
                slot_of_word[slot_of_word == newcomer] = gone
    return slot_of_word


class Window:
    """Bigram counts of the slots, and what merging two of them would cost.

    With h(x, y) = f(x) + f(y) - f(x + y) and f(n) = n log n, most of that cost is
    `shared[a, b]` = sum_g h(n(a, g), n(b, g)) + h(n(g, a), n(g, b)). h is 0 where a count is 0, so a new row or column
    changes few of the sums; they are kept up to date.
    """

    def __init__(self, state: Exchange, slot_of_word: Ints, num_slots: int) -> None:
        self.joint = state.bigrams.joint(slot_of_word, num_slots)
        self.shared = np.stack([self._shared_with(slot) for slot in range(num_slots)])

    def extract(self, source: int, target: int, following: Floats, preceding: Floats, alone: float) -> None:
        """Takes a word out of a slot, which must never be merged, into an empty one.

        `following` and `preceding` are the word's counts next to the slots. `shared` of the source is left behind.
        """
        row, column = self.joint[source] - following, self.joint[:, source] - preceding
        row[source] = column[source] = self.joint[source, source] - following[source] - preceding[source] - alone
        self._replace(source, row, column)
        row, column = following.copy(), preceding.copy()
        row[target] = column[target] = alone
        self._replace(target, row, column)
        self.shared[target] = self.shared[:, target] = self._shared_with(target)

    def cheapest_merge(self, num_slots: int) -> tuple[int, int]:
        """The two of the first slots whose union costs least, the lower one first."""
        cost = self.merge_costs()[:num_slots, :num_slots]
        np.fill_diagonal(cost, np.inf)
        pair = divmod(int(cost.argmin()), num_slots)
        return min(pair), max(pair)

    def merge_costs(self) -> Floats:
        """What F (see exchange.py) loses if two slots become one; the diagonal has no meaning."""
        f, n = n_log_n, self.joint
        cells = f(n)
        diagonal = np.diagonal(n)
        own, other = diagonal[:, None], diagonal[None, :]
        # The four cells of a pair are in `shared` twice, and end in one cell.
        cost = self.shared - cells - cells.T - np.diagonal(cells)[:, None] - np.diagonal(cells)
        cost += f(own + n.T) + f(n + other) + f(own + n) + f(n.T + other) - f(own + n + n.T + other)
        for total in (n.sum(0), n.sum(1)):
            f_total = f(total)
            cost -= f_total[:, None] + f_total - f(total[:, None] + total)
        return cost

    def merge(self, kept: int, gone: int) -> None:
        row, column = self.joint[kept] + self.joint[gone], self.joint[:, kept] + self.joint[:, gone]
        row[kept] = column[kept] = row[kept] + row[gone]
        row[gone] = column[gone] = 0
        nothing = np.zeros(len(row))
        self._replace(gone, nothing, nothing)
        self._replace(kept, row, column)
        self.shared[kept] = self.shared[:, kept] = self._shared_with(kept)

    def swap(self, first: int, second: int) -> None:
        for table in (self.joint, self.shared):
            table[[first, second]] = table[[second, first]]
            table[:, [first, second]] = table[:, [second, first]]

    def _replace(self, slot: int, row: Floats, column: Floats) -> None:
        self._update_shared(self.joint[slot], row)
        self._update_shared(self.joint[:, slot], column)
        self.joint[slot], self.joint[:, slot] = row, column

    def _update_shared(self, old: Floats, new: Floats) -> None:
        """One term of the sums changes from h(old(a), old(b)) to h(new(a), new(b)), for all pairs."""
        changed = np.flatnonzero(old != new)
        single = n_log_n(new) - n_log_n(old)
        change = single[changed, None] + single
        change -= n_log_n(new[changed, None] + new) - n_log_n(old[changed, None] + old)
        self.shared[changed] += change
        # Pairs of two changed slots have had theirs.
        change[:, changed] = 0
        self.shared[:, changed] += change.T

    def _shared_with(self, slot: int) -> Floats:
        n, f = self.joint, n_log_n
        row, column = n[slot], n[:, slot]
        cells = f(n)
        total = cells.sum(1) + cells.sum(0) + f(row).sum() + f(column).sum()
        return np.asarray(total - f(n + row).sum(1) - f(n + column[:, None]).sum(0))
