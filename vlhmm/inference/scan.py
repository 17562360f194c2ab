"""The time-parallel forward pass: all stretches of a text at once.

Each stretch of positions is a matrix from the state before it to the state at its end. The stretches' matrices are made side by
side, the beliefs between them follow one after the other, and then every stretch is scored side by side from its belief: as many
dependent steps as two stretches are long plus their number, so about sqrt(T), for K times the work. It pays for few states and long texts.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vlhmm.inference.gather import Batch, window_factors
from vlhmm.inference.score import score
from vlhmm.ops.recursion import scaled
from vlhmm.ops.recursion.factors import Factors
from vlhmm.tables import Belief, Tables

MAX_STATES = 32
"""With more states per word the K-fold work outweighs the shorter chain (measured on two CPU cores)."""


def pays(tables: Tables, size: int, num_positions: int) -> bool:
    """Whether the scan is expected to be faster than the serial pass over so many sequences of this length."""
    return tables.support.states_per_word <= MAX_STATES and num_positions >= 1024 * size


@torch.no_grad()
def parallel_token_log_probs(tables: Tables, batch: Batch, belief: Belief | None) -> Float[Tensor, "B T"]:
    """log p(x_t | x_<t), equal to the serial result."""
    rows = [
        _one_sequence(
            tables,
            _stretches(batch.of(slice(row, row + 1)), 0, length, length),
            None if belief is None else belief.of(slice(row, row + 1)),
        )
        for row, length in enumerate(batch.lengths.tolist())
    ]
    token_log_probs = tables.log_emission.new_zeros(batch.tokens.shape)
    for row, log_probs in enumerate(rows):
        token_log_probs[row, : log_probs.shape[0]] = log_probs
    return token_log_probs


def _stretches(sequence: Batch, first: int, end: int, length: int) -> Batch:
    """One sequence from `first` to `end`, in stretches of `length`."""
    tokens, evidence = sequence.tokens[0, first:end].view(-1, length), sequence.log_evidence
    if evidence is not None:
        evidence = evidence[0, first:end].view(*tokens.shape, -1)
    return Batch(tokens, torch.full_like(tokens[:, 0], length), log_evidence=evidence)


def _one_sequence(tables: Tables, whole: Batch, belief: Belief | None) -> Float[Tensor, " T"]:
    length = whole.num_positions
    stretch = max(1, int(length**0.5))
    head_length = length % stretch or stretch
    # The first stretch, the remainder, is scored by itself: all others have one length and continue from a belief.
    head = score(tables, _stretches(whole, 0, head_length, head_length), belief)
    if head_length == length:
        return head.token_log_probs[0]
    stretches = _stretches(whole, head_length, length, stretch)
    before = torch.cat([whole.tokens[0, head_length - 1 : head_length], stretches.tokens[:-1, -1]])
    states = tables.support.states_per_word
    unknown = Belief(before, tables.log_emission.new_zeros(before.shape[0], states))
    factors = window_factors(tables, stretches, unknown)
    transfers, trusted, least_sum = _transfers(factors)
    log_beliefs = [head.belief.log_probs[0]]
    for transfer in transfers[:-1]:
        following = log_beliefs[-1].exp() @ transfer
        total = following.sum()
        trusted = trusted & (total >= least_sum)
        log_beliefs.append((following / total).log())
    if not bool(trusted):
        # Possible underflow or an impossible text: fall back to the serial pass.
        return score(tables, whole, belief).token_log_probs[0]
    scored = score(tables, stretches, Belief(before, torch.stack(log_beliefs)))
    return torch.cat([head.token_log_probs[0], scored.token_log_probs.flatten()])


def _transfers(factors: Factors) -> tuple[Float[Tensor, "N K K"], Bool[Tensor, ""], Float[Tensor, ""]]:
    """For each stretch the product of its transitions and emissions, up to a factor: a matrix from the message before it to its last one.
    Also whether there was no underflow, and the smallest sum of a message that is safe."""
    factor = scaled.scale(factors)
    info = torch.finfo(factors.log_emission.dtype)
    # Underflow in a sum must be far below what the smallest transition probability contributes at the next step: see `scaled`.
    least_sum = info.tiny / info.eps / factor.tiles.amin()
    trusted = least_sum.isfinite()
    states = factors.log_emission.shape[2]
    transfer = torch.eye(states, dtype=factors.log_emission.dtype, device=factors.log_emission.device)
    transfer = transfer.expand(factors.lengths.shape[0], -1, -1)
    for t in range(factors.num_positions):
        moved = transfer @ factor.tiles[factors.tile_of[:, t]]
        init_of = factors.init_of[:, t]
        begun = transfer.sum(2, keepdim=True) * factor.inits[init_of.clamp(min=0)][:, None]
        transfer = torch.where(init_of[:, None, None] >= 0, begun, moved) * factor.emission[:, t, None]
        # One sum for each state before the stretch; for an impossible text it is 0, which fails the test too.
        sums = transfer.sum(2)
        trusted = trusted & (sums.amin() >= least_sum)
        transfer = transfer / sums.sum(1)[:, None, None]
    return transfer, trusted, least_sum
