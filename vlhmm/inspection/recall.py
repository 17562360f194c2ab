"""How far back a model remembers: log p(x_t | the c tokens before it) for every c, of windows begun anew at every token."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vlhmm.data import Tokens
from vlhmm.inference.gather import default_window, window_factors, windows
from vlhmm.inspection.parts import parts_of
from vlhmm.tables import Belief, Tables

ROW_BYTES = 1 << 26
"""Transition rows are made this many bytes at a time."""


MIN_LOG_PRODUCT = -600.0
"""A product of probabilities that is larger is precise in float64, whose smallest number is exp(-708)."""


@dataclass(frozen=True)
class Stationary:
    probs: Float[Tensor, " Z"]
    """p(z) at a place of which nothing is known. In float64."""
    iterations: int
    change: float
    """The sum of absolute changes in the last iteration."""


@torch.no_grad()
def stationary(
    tables: Tables, guess: Float[Tensor, " Z"], *, tolerance: float = 1e-3, most: int = 100
) -> Generator[tuple[int, int], None, Stationary]:
    """The distribution that a step of the model leaves as it is, sought from `guess`; yields the iteration, and how many
    states it has moved.

    After the reset token, if there is one, a step leads to the start distribution.
    """
    support, probs = tables.support, guess.double() / guess.sum()
    resets = torch.zeros_like(probs)
    if tables.reset_token is not None:
        token = torch.tensor(tables.reset_token, device=tables.device)
        resets[support.states_of(token)] = tables.log_emission[token].double().exp()
    states_at_once = max(1, ROW_BYTES // (tables.num_states * tables.log_emission.element_size()))
    every_state = torch.arange(tables.num_states, device=tables.device)
    change, iteration = float("inf"), 0
    while change > tolerance and iteration < most:
        following = (probs @ resets) * tables.log_start.double().exp()
        going_on = (probs * (1 - resets)).to(tables.dtype)
        for states in every_state.split(states_at_once):
            following += (going_on[states] @ tables.transition.log_rows(states).exp()).double()
            yield iteration + 1, int(states[-1]) + 1
        following /= following.sum()
        before, change = change, float((following - probs).abs().sum())
        # A chain that alternates never settles, but the mean of two steps does.
        probs = following if change < 0.9 * before else (probs + following) / 2
        iteration += 1
    return Stationary(probs, iteration, change)


@dataclass(frozen=True)
class Recall:
    log_probs: Float[Tensor, " C1"]
    """The sum over tokens of log p(x_t | the c tokens before it), for c = 0, 1, ..., longest."""
    num_tokens: int
    """All but the first `longest` of the text, which have no such context."""

    @property
    def longest(self) -> int:
        return self.log_probs.shape[0] - 1


@torch.no_grad()
def recall(
    tables: Tables, tokens: Tokens, begin: Float[Tensor, " Z"], longest: int, streams: int = 1
) -> Generator[int, None, Recall]:
    """Exact for any number of streams; yields how many tokens are done. `begin` is p(z) before anything is known.

    Row c of the messages has read the last c + 1 tokens. All rows of a position move by the same tile, so all contexts together
    cost one matrix product a token.
    """
    if longest < 1:
        raise ValueError(f"the longest context is {longest} tokens, but at least 1 is needed")
    if len(tokens) <= longest:
        raise ValueError(
            f"contexts of {longest} tokens need a longer text than {len(tokens)}: ask for shorter ones, or give more text"
        )
    tables = tables.with_precision("highest")
    support = tables.support
    # A part shorter than its context would be read for that alone.
    streams = max(1, min(streams, len(tokens) // (2 * longest)))
    parts = parts_of(tables, tokens, streams, before=longest, after=0)
    counted = parts.counted & (parts.position >= longest)
    size = parts.batch.tokens.shape[0]
    # In float64, and in logs but for products that cannot underflow: what is too small may be all there is.
    log_messages = torch.full(
        (size, longest, support.states_per_word), -torch.inf, dtype=torch.float64, device=tables.device
    )
    token = parts.batch.tokens[:, 0].clone()
    begin_by_group = begin.double().log()[support.states_of_group]
    total_log_probs, done = torch.zeros(longest + 1, dtype=torch.float64, device=tables.device), 0
    # Tiles lie in memory in both types.
    for first, rows, part in windows(parts.batch, max(1, default_window(tables, size) // 2)):
        carried = None
        if first > 0:
            carried = Belief(token[rows], tables.log_emission.new_zeros(len(rows), support.states_per_word))
        factors = window_factors(tables, part, carried)
        log_tiles, log_inits = factors.log_tiles.double(), factors.log_inits.double()
        tiles, least = log_tiles.exp(), _least(log_tiles)
        begun = factors.init_of >= 0
        unknown = begin_by_group[support.group_of_word[part.tokens]]
        counted_here = counted[rows, first : first + part.num_positions]
        for t in range(part.num_positions):
            which = factors.tile_of[:1, t] if len(tiles) == 1 else factors.tile_of[:, t]
            before = log_messages[rows]
            if float(_least(before) + least) > MIN_LOG_PRODUCT:
                entered = (before.exp() @ tiles[which]).log()
            else:
                entered = _log_product(before, log_tiles[which])
            # After a reset all contexts know the same. Where the text begins nothing is counted yet.
            entered = torch.where(
                begun[:, t, None, None], log_inits[factors.init_of[:, t].clamp(min=0)][:, None], entered
            )
            log_joint = torch.cat([unknown[:, t, None], entered], dim=1) + factors.log_emission[:, t, None].double()
            log_sums = log_joint.logsumexp(2, keepdim=True)
            # A window that has not begun yet has no mass.
            log_messages[rows] = (log_joint - torch.where(log_sums == -torch.inf, 0.0, log_sums))[:, :longest]
            total_log_probs += torch.where(counted_here[:, t, None], log_sums[:, :, 0], 0.0).sum(0)
        token[rows] = part.last_tokens()
        done += int(parts.counted[rows, first : first + part.num_positions].sum())
        yield done
    return Recall(total_log_probs, len(tokens) - longest)


def _least(log_probs: Float[Tensor, "*N"]) -> Float[Tensor, ""]:
    """The smallest that is possible."""
    return torch.where(log_probs == -torch.inf, 0.0, log_probs).amin()


def _log_product(log_messages: Float[Tensor, "B C K"], log_tiles: Float[Tensor, "U K K"]) -> Float[Tensor, "B C K"]:
    """log of messages times tiles, a few contexts at a time."""
    size, _, states = log_messages.shape
    at_once = max(1, ROW_BYTES // (8 * size * states**2))
    parts = [(part[..., None] + log_tiles[:, None]).logsumexp(2) for part in log_messages.split(at_once, dim=1)]
    return torch.cat(parts, dim=1)
