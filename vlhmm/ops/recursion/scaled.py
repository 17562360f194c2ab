"""The recursion on normalised probabilities: one matrix product a position, forward and backward.

The gradient is written by hand. With alpha_t the filtered probabilities, u_t = (alpha_t-1 A) e_t the joint before it is
normalised, c_t its sum, g_t = dL / dlog c_t, and Q_t = dL / dlog u_t (for L = log p(x) the posterior of z_t):

    v_t = b_t + (g_t - sum of alpha_t b_t)                 dL / dlog e_t      = Q_t = alpha_t v_t
    r_t = v_t e_t / c_t, 0 where alpha_t is                dL / dlog A[z, z'] = alpha_t-1(z) A[z, z'] r_t(z')
    b_t-1 = A r_t

The sum of Q_t is g_t, and so is that of alpha_t-1 b_t-1: where g does not change, v_t is b_t.

Q is bounded, so nothing overflows however long the text, and only alpha and c are kept for the backward pass.

Positions are taken one by one, so whatever has a (B, T, K) lies in memory with T first, and loops write in place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlhmm.ops.recursion.factors import Factors
from vlhmm.ops.recursion.kept import kept
from vlhmm.ops.recursion.moves import moves, packs
from vlhmm.pauses import pause

SHIFT_EVERY = 16
"""At least so often v_t is not taken to be b_t."""


@dataclass(frozen=True)
class Scaled:
    """The factors as probabilities, each shifted in log space so that its largest entry is 1."""

    inits: Float[Tensor, "I K"]
    tiles: Float[Tensor, "U K K"]
    emission: Float[Tensor, "B T K"]
    """In memory as `by_position` has it."""
    log_shift: Float[Tensor, "B T"]
    """What the shifts took from log c_t."""

    def tensors(self) -> tuple[Tensor, ...]:
        return self.inits, self.tiles, self.emission, self.log_shift


@dataclass(frozen=True)
class Run:
    """What the forward pass saves for the backward pass."""

    token_log_probs: Float[Tensor, "B T"]
    alpha: Float[Tensor, "B T K"]
    """p(z_t | x_<=t); past the length that of the last position."""
    scale: Float[Tensor, "B T"]
    """c_t of the scaled factors; 1 past the length."""
    underflow: Bool[Tensor, " B"]
    """A probability that matters may have been too small for its type."""


def by_position(factors: Factors) -> Float[Tensor, "B T K"]:
    """Room for one number per sequence, position and state.

    With one tile that is not packed a position is a K x B matrix in memory: a CPU multiplies a large matrix by few columns a
    third faster than few rows by a large matrix. Else the states of a sequence lie together.
    """
    columns = factors.log_tiles.shape[0] == 1 and not packs(factors)
    emission = factors.log_emission
    order = (1, 2, 0) if columns else (1, 0, 2)
    return torch.empty_permuted(emission.shape, order, dtype=emission.dtype, device=emission.device)


def scale(factors: Factors) -> Scaled:
    def shifted_exp(log_values: Tensor, dims: list[int], out: Tensor) -> tuple[Tensor, Tensor]:
        peak = log_values.amax(dims, keepdim=True)
        peak = torch.where(peak.isinf(), 0.0, peak)
        return torch.sub(log_values, peak, out=out).exp_(), peak.squeeze(dims)

    inits, init_peak = shifted_exp(factors.log_inits, [1], torch.empty_like(factors.log_inits))

    def make_tiles() -> tuple[Tensor, Tensor]:
        return shifted_exp(factors.log_tiles, [1, 2], torch.empty_like(factors.log_tiles))

    tiles, tile_peak = kept(factors.log_tiles, "scaled", make_tiles) if packs(factors) else make_tiles()
    emission, emission_peak = shifted_exp(factors.log_emission, [2], by_position(factors))
    transition_peak = tile_peak[factors.tile_of]
    if factors.log_inits.shape[0]:
        begin_peak = init_peak[factors.init_of.clamp(min=0)]
        transition_peak = torch.where(factors.init_of >= 0, begin_peak, transition_peak)
    return Scaled(inits, tiles, emission, emission_peak + transition_peak)


class Steps:
    """Which positions need which work, read to the host once: the loop over time is then sync-free."""

    def __init__(self, factors: Factors) -> None:
        begun = factors.init_of >= 0
        self.any_begun: list[bool] = begun.any(0).tolist()
        self.all_begun: list[bool] = begun.all(0).tolist()
        first_tile = factors.tile_of[0]
        self.common_tile: list[int] = torch.where((factors.tile_of == first_tile).all(0), first_tile, -1).tolist()
        """The tile that every sequence takes at this position, or -1."""
        self.shortest = int(factors.lengths.min())


def forward(factors: Factors, scaled: Scaled) -> Run:
    steps = Steps(factors)
    move = moves(factors, scaled.tiles, steps.common_tile)
    alpha = by_position(factors)
    totals = alpha.new_empty(factors.num_positions, alpha.shape[0], 1)
    tiny = torch.finfo(alpha.dtype).tiny
    message = factors.log_previous.exp()
    each_position = zip(alpha.unbind(1), scaled.emission.unbind(1), totals, strict=True)
    for t, (joint, emission, total) in enumerate(each_position):
        pause()
        moved = message if steps.all_begun[t] else move(message, t)
        if steps.any_begun[t]:
            init_of = factors.init_of[:, t]
            # A sequence of probability zero stays impossible, also after a restart from an initial row.
            alive = factors.begins_alive()[:, None] if t == 0 else totals[t - 1] > 0
            begun = scaled.inits[init_of.clamp(min=0)] * alive
            moved = torch.where(init_of[:, None] >= 0, begun, moved)
        torch.mul(moved, emission, out=joint)
        torch.sum(joint, 1, keepdim=True, out=total)
        # A total below `tiny` is either 0, with a message of zeros, or the sequence is marked as underflow.
        joint.div_(total.clamp(min=tiny))
        if t >= steps.shortest:
            within_length = (t < factors.lengths)[:, None]
            joint.copy_(torch.where(within_length, joint, message))
            total.masked_fill_(~within_length, 1.0)
        message = joint
    scale = totals[:, :, 0].T
    within = factors.within()
    token_log_probs = torch.where(within, scale.log() + scaled.log_shift, 0.0)
    return Run(token_log_probs, alpha, scale, _suspect(factors, scaled, alpha, scale, within))


def _suspect(
    factors: Factors,
    scaled: Scaled,
    alpha: Float[Tensor, "B T K"],
    totals: Float[Tensor, "B T"],
    within: Bool[Tensor, "B T"],
) -> Bool[Tensor, " B"]:
    """The underflow check: a step's total is below the threshold, or a single message entry underflows and may matter.

    Underflow at a step costs an entry at most the smallest normal number over the step's total. The next step gives every state at
    least the smallest transition probability. If that is not far more, a state set to 0 could have had a large posterior. The same
    holds where the next step is unknown: in the last message, if tiles other than these may follow.
    """
    info = torch.finfo(totals.dtype)
    # Sums of products above this have full precision: underflow of their terms is below rounding error.
    precise = info.tiny / info.eps
    least_total = totals.masked_fill(~within, 1.0).amin(1).clamp(max=1.0)
    # The underflow threshold: a quarter of the exponent range is a margin above the smallest normal number.
    underflow: Tensor = least_total < info.tiny**0.75
    if scaled.tiles.numel():
        doubtful = least_total * _smallest_move(factors, scaled) < precise
        if not factors.same_ahead:
            last = (factors.lengths - 1)[:, None]
            emits = factors.log_emission.gather(1, last[:, :, None].expand(-1, -1, alpha.shape[2]))[:, 0] > -torch.inf
            doubtful = doubtful | (emits & (alpha[:, -1] * totals.gather(1, last) < precise)).any(1)
        rows = (~underflow & doubtful).nonzero()[:, 0]
        if rows.numel() == underflow.shape[0]:
            # The usual case is all rows at once: sequences share the tiles, and so their zeros.
            underflow = _lost(factors, scaled, alpha, totals, precise)
        elif rows.numel():
            part = replace(scaled, emission=scaled.emission[rows], log_shift=scaled.log_shift[rows])
            underflow[rows] = _lost(factors.sequences(rows), part, alpha[rows], totals[rows], precise)
    return underflow


def _smallest_move(factors: Factors, scaled: Scaled) -> Float[Tensor, ""]:
    """The smallest transition probability into any state that can be entered."""
    smallest = scaled.tiles.amin()
    if bool(smallest > 0):
        return smallest
    entered = (factors.log_tiles > -torch.inf).any(1)
    return scaled.tiles.amin(1).masked_fill(~entered, torch.inf).amin()


def _lost(
    factors: Factors, scaled: Scaled, alpha: Float[Tensor, "B T K"], totals: Float[Tensor, "B T"], precise: float
) -> Bool[Tensor, " B"]:
    """Whether some state is possible whose probability, before it is normalised, came out below `precise`."""

    def least(values: Tensor, log_values: Tensor | None, dims: list[int]) -> Tensor:
        """Of those that are possible; without logs, of those that are not zero."""
        smallest = values.amin(dims)
        if bool((smallest > 0).all()):
            return smallest
        impossible = values <= 0 if log_values is None else log_values == -torch.inf
        return values.masked_fill(impossible, torch.inf).amin(dims)

    # A cheap bound first: the product of the smallest factors of a position usually rules out underflow.
    previous = least(factors.log_previous.exp(), factors.log_previous, [1])
    before = torch.cat([previous[:, None], least(alpha, None, [2])[:, :-1]], dim=1)
    came = before * least(scaled.tiles, factors.log_tiles, [1, 2])[factors.tile_of]
    if factors.log_inits.shape[0]:
        begun = least(scaled.inits, factors.log_inits, [1])[factors.init_of.clamp(min=0)]
        came = torch.where(factors.init_of >= 0, begun, came)
    smallest = came * least(scaled.emission, factors.log_emission, [2])
    lost = ~((smallest >= precise) | ~factors.within()).all(1)
    rows = lost.nonzero()[:, 0]
    if rows.numel():
        lost[rows] = _possible_below(factors.sequences(rows), alpha[rows] * totals[rows, :, None], precise)
    return lost


def _possible_below(factors: Factors, joint: Float[Tensor, "B T K"], precise: float) -> Bool[Tensor, " B"]:
    """The same, exactly: which states are possible follows from the zeros of the factors alone."""
    open_tiles = (factors.log_tiles > -torch.inf).to(joint.dtype)
    possible = factors.log_previous > -torch.inf
    below = torch.zeros_like(possible[:, 0])
    for t in range(factors.num_positions):
        if open_tiles.shape[0] == 1:
            reached = possible.to(joint.dtype) @ open_tiles[0] > 0
        else:
            own = open_tiles.index_select(0, factors.tile_of[:, t])
            reached = torch.bmm(possible[:, None].to(joint.dtype), own)[:, 0] > 0
        init_of = factors.init_of[:, t, None]
        if factors.log_inits.shape[0]:
            reached = torch.where(init_of >= 0, factors.log_inits[init_of[:, 0].clamp(min=0)] > -torch.inf, reached)
        within = (t < factors.lengths)[:, None]
        following = reached & (factors.log_emission[:, t] > -torch.inf)
        below = below | (following & (joint[:, t] < precise) & within).any(1)
        possible = torch.where(within, following, possible)
    return below


@dataclass(frozen=True)
class Gradient:
    log_previous: Float[Tensor, "B K"]
    log_inits: Float[Tensor, "I K"]
    log_tiles: Float[Tensor, "U K K"]
    log_emission: Float[Tensor, "B T K"]


def backward(
    factors: Factors,
    scaled: Scaled,
    alpha: Float[Tensor, "B T K"],
    totals: Float[Tensor, "B T"],
    token_cotangent: Float[Tensor, "B T"],
    last_cotangent: Float[Tensor, "B K"],
    *,
    tile_gradient: bool = True,
) -> Gradient:
    """The vector-Jacobian product, for cotangents of the log-probabilities of the tokens and of the last state.

    Without `tile_gradient` that of the tiles is left empty: posteriors need no product of all positions.
    """
    steps = Steps(factors)
    tiny = torch.finfo(alpha.dtype).tiny
    move_back = moves(factors, scaled.tiles, steps.common_tile, back=True)
    moved = (factors.within() & (factors.init_of < 0))[:, :, None]
    # e / c where the state was reached; the loop multiplies it by v_t in place, which gives r_t.
    ratio = torch.div(scaled.emission, totals.clamp(min=tiny)[:, :, None], out=by_position(factors))
    if bool(alpha.amin() <= 0):
        ratio.masked_fill_(alpha <= 0, 0.0)
    posterior = by_position(factors)
    # Past the length alpha is that of the last position, so this is the cotangent of the last state divided by alpha.
    ends = (last_cotangent / alpha[:, -1].clamp(min=tiny)).masked_fill_(alpha[:, -1] <= 0, 0.0)
    ratios, alphas, posteriors = ratio.unbind(1), alpha.unbind(1), posterior.unbind(1)
    needs_no_shift = _needs_no_shift(steps, token_cotangent)

    def came_back(t: int) -> Tensor:
        """The backward message A r_t, or past the length the cotangent of the last state divided by alpha."""
        if t < factors.num_positions and not steps.all_begun[t]:
            back = move_back(ratios[t], t)
        else:
            back = torch.zeros_like(ends)
        return back if t < steps.shortest else torch.where((t < factors.lengths)[:, None], back, ends)

    for t in range(factors.num_positions - 1, -1, -1):
        pause()
        value = came_back(t + 1)
        flow = torch.mul(alphas[t], value, out=posteriors[t])
        if not needs_no_shift[t]:
            shift = token_cotangent[:, t, None] - flow.sum(1, keepdim=True)
            flow.addcmul_(alphas[t], shift)
            value = value + shift
        r = ratios[t].mul_(value)
        if steps.any_begun[t] or t >= steps.shortest:
            r.mul_(moved[:, t])
    before_first = came_back(0)
    previous = factors.log_previous.exp()
    # In the caller's (B, T, K) layout, not with T first.
    posterior = posterior.contiguous()
    if steps.shortest < factors.num_positions:
        posterior.mul_(factors.within()[:, :, None])
    from_tiles = scaled.tiles.new_empty(0, *scaled.tiles.shape[1:])
    if tile_gradient:
        if scaled.tiles.shape[0] == 1:
            from_tiles = _one_sum_of_outer_products(previous, alpha, ratio)
        else:
            before = torch.cat([previous[:, None], alpha[:, :-1]], dim=1)
            from_tiles = _sum_of_outer_products(before, ratio, factors.tile_of, scaled.tiles.shape[0])
        from_tiles.mul_(scaled.tiles)
    return Gradient(before_first * previous, _init_gradient(factors, posterior), from_tiles, posterior)


def _needs_no_shift(steps: Steps, token_cotangent: Float[Tensor, "B T"]) -> list[bool]:
    """Positions where g_t minus the sum of alpha_t b_t is 0 but for rounding.

    Where every sequence has a transition that sum is g_t+1. Every SHIFT_EVERY positions it is computed all the same, so that rounding errors
    do not accumulate.
    """
    alike = (token_cotangent[:, :-1] == token_cotangent[:, 1:]).all(0).tolist()
    return [
        same and t % SHIFT_EVERY != 0 and t + 1 < steps.shortest and not steps.any_begun[t + 1]
        for t, same in enumerate(alike)
    ] + [False]


def _init_gradient(factors: Factors, posterior: Float[Tensor, "B T K"]) -> Float[Tensor, "I K"]:
    rows = factors.init_of.flatten()
    begun = rows >= 0
    gradient = torch.zeros_like(factors.log_inits)
    return gradient.index_add_(0, rows[begun], posterior.flatten(0, 1)[begun])


def _one_sum_of_outer_products(
    previous: Float[Tensor, "B K"], alpha: Float[Tensor, "B T K"], ratio: Float[Tensor, "B T K"]
) -> Float[Tensor, "1 K K"]:
    """The sum over all positions of (message before)^T r, as one product: in memory positions lie side by side."""
    states = previous.shape[1]
    left, right = (side.transpose(0, 1).reshape(-1, states) for side in (alpha[:, :-1], ratio[:, 1:]))
    return torch.addmm(left.T @ right, previous.T, ratio[:, 0])[None]


def _sum_of_outer_products(
    left: Float[Tensor, "B T K"],
    right: Float[Tensor, "B T K"],
    tile_of: Int[Tensor, "B T"],
    num_tiles: int,
) -> Float[Tensor, "U K K"]:
    """For each tile the sum over its positions of left^T right."""
    states = left.shape[2]
    left, right, tile_of = left.reshape(-1, states), right.reshape(-1, states), tile_of.flatten()
    # Tiles that stand at up to 1, 2, 4, ... positions go together, the positions padded to that number: a few batched
    # products, less than twice the work, no sort of large tensors and no atomic (scatter) additions.
    order = tile_of.argsort(stable=True)
    counts = torch.bincount(tile_of, minlength=num_tiles)
    first = counts.cumsum(0) - counts
    gradient = left.new_zeros(num_tiles, states, states)
    width, narrower = 1, 0
    while narrower < left.shape[0]:
        tiles = ((counts > narrower) & (counts <= width)).nonzero()[:, 0]
        if tiles.numel():
            rank = torch.arange(width, device=left.device)
            used = rank < counts[tiles, None]
            position = order[torch.where(used, first[tiles, None] + rank, 0)].flatten()
            own_left, own_right = (side.index_select(0, position).view(*used.shape, states) for side in (left, right))
            gradient[tiles] = torch.bmm((own_left * used[:, :, None]).mT, own_right)
        narrower, width = width, 2 * width
    return gradient
