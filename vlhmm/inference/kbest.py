"""The k most likely state paths: list Viterbi, which keeps the k best paths into every state of every position."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlhmm.inference.errors import raise_impossible
from vlhmm.inference.gather import Batch, default_window, window_factors, windows
from vlhmm.inference.viterbi import Paths, begun_from_past
from vlhmm.memory import require_memory
from vlhmm.ops.recursion import Factors
from vlhmm.pauses import pause
from vlhmm.tables import Belief, Tables

POINTER_BYTES = 1 << 28
"""What the back-pointers of one window may take."""
STEP_BYTES = {"cpu": 1 << 22, "cuda": 1 << 28}
"""Candidates made at a time, by the kind of device."""


@torch.no_grad()
def k_best(tables: Tables, batch: Batch, k: int, belief: Belief | None = None, window: int | None = None) -> Paths:
    """The k paths of largest p(x, z), sorted; of equal ones always the same come first.

    As in `viterbi`, forward once for the lists between windows, then each window again, last first, for the backtrace.
    """
    size, num_positions = batch.tokens.shape
    states = tables.support.states_per_word
    list_bytes = size * states * k * tables.log_emission.element_size()
    window = window or max(1, min(default_window(tables, size), POINTER_BYTES // (2 * list_bytes)))
    parts = list(windows(batch, window))
    require_memory(
        len(parts) * list_bytes,
        f"the {k} best paths into {states} states between {len(parts)} windows of {size} sequences",
        "ask for fewer paths, or for fewer tokens at a time",
        tables.device,
    )
    # Before the text there is one path, the empty one.
    log_lists = tables.log_emission.new_full((size, states, k), -torch.inf)
    log_lists[:, 0, 0] = 0.0
    total = torch.zeros(size, dtype=torch.float64, device=tables.device)
    token = batch.tokens[:, 0].clone()
    entering: list[tuple[Belief | None, Tensor]] = []
    for first, rows, part in parts:
        carried = belief if first == 0 else Belief(token[rows], log_lists[rows, :, 0])
        entering.append((carried, log_lists[rows]))
        factors = _factors(tables, part, carried, first)
        gains, log_lists[rows], pointers = _forward(factors, log_lists[rows], len(entering) == len(parts))
        raise_impossible(gains, first, rows, "viterbi")
        total[rows] += gains.double().sum(1)
        token[rows] = part.last_tokens()
    log_prob, place = stable_top(log_lists.flatten(1), k)
    slots = torch.full((size, k, num_positions), -1, device=tables.device)
    for (first, rows, part), (carried, log_before) in zip(reversed(parts), reversed(entering), strict=True):
        if pointers is None:
            pointers = _forward(_factors(tables, part, carried, first), log_before, keep_backtrace=True)[2]
        assert pointers is not None
        slots[rows, :, first : first + part.num_positions], place[rows] = _trace(pointers, place[rows], part, k)
        pointers = None
    slots.masked_fill_(log_prob.isneginf()[:, :, None], -1)
    candidates = tables.support.states_of(batch.tokens)[:, None].expand(-1, k, -1, -1)
    chosen = candidates.gather(3, slots.clamp(min=0)[..., None])[..., 0]
    return Paths(torch.where(slots >= 0, chosen, -1), (total[:, None] + log_prob).to(tables.dtype))


def _factors(tables: Tables, part: Batch, carried: Belief | None, first: int) -> Factors:
    factors = window_factors(tables, part, carried)
    return begun_from_past(factors) if first == 0 and carried is not None else factors


def _forward(
    factors: Factors, log_lists: Float[Tensor, "B K k"], keep_backtrace: bool
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B K k"], Int[Tensor, "T B Kk"] | None]:
    """The gain of the best score at each position, the last lists (their best is 0), and where each entry came from.

    An entry's place is its slot times k plus its rank.
    """
    size, states, k = log_lists.shape
    log_tiles_into = factors.log_tiles.mT
    begun = factors.init_of >= 0
    any_begun, all_begun = begun.any(0).tolist(), begun.all(0).tolist()
    gains = torch.empty_like(factors.log_emission[:, :, 0])
    pointers = None
    if keep_backtrace:
        pointers = torch.empty(
            factors.num_positions, size, states * k, dtype=torch.int32, device=factors.log_emission.device
        )
    for t in range(factors.num_positions):
        pause()
        scores, came_from = log_lists, factors.tile_of.new_zeros(size, states, k)
        if not all_begun[t]:
            scores, came_from = _best_moves(log_lists, log_tiles_into, factors.tile_of[:, t])
        if any_begun[t]:
            log_past, place = stable_top(log_lists.flatten(1), k)
            log_init = factors.log_inits[factors.init_of[:, t].clamp(min=0)]
            anew = begun[:, t, None, None]
            scores = torch.where(anew, log_init[:, :, None] + log_past[:, None], scores)
            came_from = torch.where(anew, place[:, None], came_from)
        scores = scores + factors.log_emission[:, t, :, None]
        gain = scores.amax((1, 2))
        within: Bool[Tensor, " B"] = t < factors.lengths
        scores = scores - torch.where(gain > -torch.inf, gain, 0.0)[:, None, None]
        log_lists = torch.where(within[:, None, None], scores, log_lists)
        gains[:, t] = torch.where(within, gain, 0.0)
        if pointers is not None:
            pointers[t] = came_from.flatten(1)
    return gains, log_lists, pointers


def _best_moves(
    log_lists: Float[Tensor, "B K k"], log_tiles_into: Float[Tensor, "U K K"], tile_of: Int[Tensor, " B"]
) -> tuple[Float[Tensor, "B K k"], Int[Tensor, "B K k"]]:
    """For each target the k best of all sources' entries, each moved to it, and the places they came from.

    Of the sources, ordered by their best entry once moved, the j-th can place its r-th entry only if j + r - 1 <= k: the best
    entries of the j - 1 sources before it and the r - 1 before it in its own list are at least as good. Nothing more is known,
    as the second entries of two sources may lie in either order. So at most k (k + 1) / 2 candidates are compared, not K k.
    """
    size, states, k = log_lists.shape
    device = log_lists.device
    num_sources = min(k, states)
    source_rank, entry_rank = (
        torch.tensor(column, device=device)
        for column in zip(*((j, r) for j in range(num_sources) for r in range(k - j)), strict=True)
    )
    # Numbers, indices and masks of one target, most of them made in `stable_top`.
    target_bytes = 64 * (states + source_rank.shape[0])
    targets_at_once = max(1, STEP_BYTES[device.type] // target_bytes)
    rows_at_once = max(1, targets_at_once // states)
    scores, came_from = torch.empty_like(log_lists), tile_of.new_empty(log_lists.shape)
    for rows in torch.arange(size, device=device).split(rows_at_once):
        for targets in torch.arange(states, device=device).split(targets_at_once):
            pause()
            log_tile = log_tiles_into[tile_of[rows, None], targets[None]]
            _, sources = stable_top(log_tile + log_lists[rows, None, :, 0], num_sources)
            source, log_move = sources[..., source_rank], log_tile.gather(2, sources)[..., source_rank]
            candidates = log_move + log_lists[rows[:, None, None], source, entry_rank]
            best, index = stable_top(candidates, k)
            scores[rows[:, None], targets] = best
            came_from[rows[:, None], targets] = source.gather(2, index) * k + entry_rank[index]
    return scores, came_from


def stable_top(values: Float[Tensor, "... N"], k: int) -> tuple[Float[Tensor, "... k"], Int[Tensor, "... k"]]:
    """The k largest values, sorted, and their indices; of equal values the first ones, on every device."""
    least = values.topk(k).values[..., -1:]
    above, equal = values > least, values == least
    room = k - above.sum(-1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(-1) <= room))
    # Entries that are not selected are written to one extra slot, which is dropped.
    slot = torch.where(chosen, chosen.cumsum(-1) - 1, k)
    every = torch.arange(values.shape[-1], device=values.device).expand_as(slot)
    index = slot.new_empty(*values.shape[:-1], k + 1).scatter_(-1, slot, every)[..., :k]
    best, order = values.gather(-1, index).sort(stable=True, dim=-1, descending=True)
    return best, index.gather(-1, order)


def _trace(
    pointers: Int[Tensor, "T B Kk"], place: Int[Tensor, "B k"], part: Batch, k: int
) -> tuple[Int[Tensor, "B k T"], Int[Tensor, "B k"]]:
    """The slots of the paths that end in `place`, -1 past the length, and their places before position 0."""
    within = part.within()
    slots = torch.empty(*place.shape, part.num_positions, dtype=torch.int64, device=place.device)
    for t in range(part.num_positions - 1, -1, -1):
        pause()
        slots[:, :, t] = torch.where(within[:, t, None], place // k, -1)
        before = pointers[t].gather(1, place).long()
        place = torch.where(within[:, t, None], before, place)
    return slots, place
