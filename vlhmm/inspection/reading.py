"""What a model sees in a text: each token's surprise, how open its state is, and how much each state is used."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.data import Tokens
from vlhmm.evaluate import WARM_TOKENS
from vlhmm.inference.errors import raise_impossible
from vlhmm.inference.gather import Batch, default_window, window_factors, windows
from vlhmm.inspection.parts import Parts, parts_of
from vlhmm.ops.recursion import filtered, recursion
from vlhmm.tables import Belief, Tables


@dataclass(frozen=True)
class Reading:
    token_log_probs: Float[Tensor, " N"]
    """log p(x_t | x_<t)."""
    filtered_entropy: Float[Tensor, " N"]
    """H(z_t | x_<=t) in nats."""
    smoothed_entropy: Float[Tensor, " N"]
    """H(z_t | x) in nats."""
    occupancy: Float[Tensor, " Z"]
    """The expected number of tokens that each state has emitted, given the text; sums to N. In float64."""
    likeliest_state: Int[Tensor, " N"]
    """argmax over z of p(z_t = z | x)."""
    likeliest_prob: Float[Tensor, " N"]
    """p(z_t | x) of that state."""


@torch.no_grad()
def read_text(
    tables: Tables, tokens: Tokens, streams: int = 1, window: int | None = None
) -> Generator[int, None, Reading]:
    """Reads the text to its end and back; yields how many of the 2 N tokens are done, and ends with the reading.

    One stream is exact. Several are an approximation for speed: each part is read with WARM_TOKENS before and after it.
    """
    tables = tables.with_precision("highest")
    # More streams than this would read more around their parts than these are long.
    streams = max(1, min(streams, len(tokens) // (2 * WARM_TOKENS)))
    parts = parts_of(tables, tokens, streams, before=WARM_TOKENS, after=WARM_TOKENS)
    window = window or default_window(tables, parts.batch.tokens.shape[0])
    record = _Record(tables, len(tokens))
    stretches = list(windows(parts.batch, window))
    entering: list[Belief | None] = []
    belief = Belief(
        parts.batch.tokens[:, 0].clone(),
        tables.log_emission.new_zeros(parts.batch.tokens.shape[0], tables.support.states_per_word),
    )
    done = 0
    for first, rows, part in stretches:
        carried = None if first == 0 else belief.of(rows)
        entering.append(carried)
        log_probs, log_filtered, after = filtered(window_factors(tables, part, carried), "highest")
        raise_impossible(log_probs, first, rows, "inspect")
        belief.log_probs[rows], belief.token[rows] = after, part.last_tokens()
        here = _Here(parts, first, rows, part)
        record.token_log_probs[here.position] = log_probs[here.counted]
        record.filtered_entropy[here.position] = torch.special.entr(log_filtered[here.counted].exp()).sum(1)
        done += here.position.shape[0]
        yield done
    last_cotangent = torch.zeros_like(belief.log_probs)
    for (first, rows, part), carried in zip(reversed(stretches), reversed(entering), strict=True):
        probs, last_cotangent[rows] = _smoothed(tables, part, carried, last_cotangent[rows])
        here = _Here(parts, first, rows, part)
        record.count(part.tokens[here.counted], here.position, probs[here.counted])
        done += here.position.shape[0]
        yield done
    return record.reading()


def _smoothed(
    tables: Tables, batch: Batch, carried: Belief | None, last_cotangent: Float[Tensor, "R K"]
) -> tuple[Float[Tensor, "R T K"], Float[Tensor, "R K"]]:
    """p(z_t | the whole text), and what the text from here on says about the state before it: gradients of log p(x)."""
    factors = window_factors(tables, batch, carried)
    with torch.enable_grad():
        log_emission = factors.log_emission.detach().requires_grad_()
        log_previous = factors.log_previous.detach().requires_grad_()
        outputs = recursion(replace(factors, log_emission=log_emission, log_previous=log_previous), "highest")
        from_emission, from_previous = torch.autograd.grad(
            outputs, (log_emission, log_previous), (torch.ones_like(outputs[0]), last_cotangent)
        )
    # Rounding may leave -1e-9 where a state is impossible.
    return from_emission.clamp_(min=0), from_previous


class _Here:
    """Where the tokens of a stretch stand in the text."""

    def __init__(self, parts: Parts, first: int, rows: Int[Tensor, " R"], part: Batch) -> None:
        columns = slice(first, first + part.num_positions)
        self.counted = parts.counted[rows, columns]
        self.position = parts.position[rows, columns][self.counted]


class _Record:
    """The reading while it is made."""

    def __init__(self, tables: Tables, num_tokens: int) -> None:
        self.support = tables.support
        zeros = tables.log_emission.new_zeros(num_tokens)
        self.token_log_probs, self.filtered_entropy, self.smoothed_entropy = zeros, zeros.clone(), zeros.clone()
        self.likeliest_prob = zeros.clone()
        self.likeliest_state = torch.zeros(num_tokens, dtype=torch.int64, device=tables.device)
        self.per_group = torch.zeros(self.support.states_of_group.shape, dtype=torch.float64, device=tables.device)

    def count(self, words: Int[Tensor, " N"], position: Int[Tensor, " N"], probs: Float[Tensor, "N K"]) -> None:
        self.smoothed_entropy[position] = torch.special.entr(probs).sum(1)
        group = self.support.group_of_word[words]
        self.per_group.index_add_(0, group, probs.double())
        best = probs.max(1)
        self.likeliest_prob[position] = best.values
        self.likeliest_state[position] = self.support.states_of_group[group, best.indices]

    def reading(self) -> Reading:
        occupancy = self.per_group.new_zeros(self.support.num_states)
        # Without a partition a state is in several groups.
        occupancy.index_add_(0, self.support.states_of_group.flatten(), self.per_group.flatten())
        return Reading(
            self.token_log_probs,
            self.filtered_entropy,
            self.smoothed_entropy,
            occupancy,
            self.likeliest_state,
            self.likeliest_prob,
        )
