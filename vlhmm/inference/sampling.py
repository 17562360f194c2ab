"""Drawing from the model: texts with their states, and state paths given a text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vlhmm.inference.errors import raise_impossible
from vlhmm.inference.gather import Batch, default_window, window_factors, windows
from vlhmm.memory import available_bytes, require_memory
from vlhmm.ops.recursion import filtered
from vlhmm.records import shown
from vlhmm.tables import Belief, Tables


class StateWords:
    """The words of each state: the emission table read by state instead of by word."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        support = tables.support
        if support.partition:
            key, count = support.group_of_word, support.num_groups
        else:
            key, count = support.states_of_group[support.group_of_word].flatten(), support.num_states
        self._order = key.argsort(stable=True)
        self._counts = torch.bincount(key, minlength=count)
        self._first = self._counts.cumsum(0) - self._counts

    @property
    def longest(self) -> int:
        """The most words that any state has."""
        return int(self._counts.max())

    def of(self, states: Int[Tensor, " N"]) -> tuple[Int[Tensor, "N W"], Float[Tensor, "N W"]]:
        """Words and log p(word | state); rows shorter than the longest are filled up with -inf."""
        support = self.tables.support
        key = states // support.states_per_word if support.partition else states
        rank = torch.arange(int(self._counts[key].max()), device=states.device)
        used = rank < self._counts[key, None]
        entry = self._order[torch.where(used, self._first[key, None] + rank, 0)]
        if support.partition:
            word, slot = entry, (states % support.states_per_word)[:, None].expand_as(entry)
        else:
            word, slot = entry // support.states_per_word, entry % support.states_per_word
        return word, torch.where(used, self.tables.log_emission[word, slot], -torch.inf)


def draw(log_probs: Float[Tensor, "... N"], generator: torch.Generator | None) -> Int[Tensor, ...]:
    """One index a row, by the Gumbel maximum; rows need not be normalised."""
    noise = torch.empty_like(log_probs).exponential_(generator=generator)
    return (log_probs - noise.log()).argmax(-1)


Generators = Sequence[torch.Generator | None]
"""Random numbers of several texts: one generator for all, or one for each."""


def exponential_noise(
    empty: Float[Tensor, "N W"], owner: Sequence[int], generators: Generators
) -> Float[Tensor, "N W"]:
    """Fills `empty` from the generators; `owner` says, in rising order, whose each row is where each text has one."""
    if len(generators) == 1:
        return empty.exponential_(generator=generators[0])
    first = 0
    for text, num in sorted(Counter(owner).items()):
        empty[first : first + num].exponential_(generator=generators[text])
        first += num
    return empty


def require_drawn(num: int, bytes_each: int, what: str, device: torch.device, fixed: int = 0) -> None:
    """Refuses `num` draws side by side that do not fit on `device` beside `fixed` bytes; says how many do."""
    fit = (available_bytes(device) - fixed) // bytes_each
    remedy = f"draw at most {fit:,} at a time" if fit > 0 else "draw shorter texts, or use a smaller model"
    require_memory(fixed + num * bytes_each, what, remedy, device)


def dirichlet_tables(
    num_states: int, num_words: int, concentration: float, generator: torch.Generator | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Start (Z,), transition (Z, Z) and emission (Z, X), each row from a symmetric Dirichlet distribution."""
    if not 0 < concentration < math.inf:
        raise ValueError(f"concentration is {concentration}, but must be above 0 and finite")
    # Drawn, checked and turned to logs in float64.
    require_memory(
        4 * 8 * num_states * (num_states + num_words),
        f"a random HMM of {num_states:,} states and {num_words:,} words",
        "use fewer states; models of many states store factors: see vlhmm.neural_hmm",
        torch.device("cpu"),
    )
    # NumPy draws from Dirichlet distributions of any concentration without underflow of whole rows.
    random = np.random.default_rng(int(torch.randint(1 << 62, (), generator=generator)))
    start = random.dirichlet(np.full(num_states, float(concentration)))
    transition = random.dirichlet(np.full(num_states, float(concentration)), num_states)
    return start, transition, random.dirichlet(np.full(num_words, float(concentration)), num_states)


@dataclass(frozen=True)
class Sample:
    """Texts drawn from the model, with the states that emitted them.

    Example:
        >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
        >>> drawn = hmm.sample(3, 4, seed=0)
        >>> drawn.tokens.shape, drawn.states.shape
        (torch.Size([3, 4]), torch.Size([3, 4]))
    """

    states: Int[Tensor, "N T"]
    """State numbers."""
    tokens: Int[Tensor, "N T"]
    """Token ids."""

    __repr__ = shown


@torch.no_grad()
def sample(
    tables: Tables,
    num: int,
    length: int,
    generator: torch.Generator | None = None,
    words: StateWords | None = None,
) -> Sample:
    """(z, x) ~ p(z, x), each `length` tokens long."""
    words = words or StateWords(tables)
    size = tables.log_emission.element_size()
    # Logits and noise over states; words, their places and their logits; states and tokens of all positions.
    per_text = 4 * tables.num_states * size + words.longest * (20 + 3 * size) + 4 * 8 * length
    require_drawn(num, per_text, f"{num:,} texts of {length:,} tokens with their states", tables.device)
    log_next = tables.log_start.expand(num, -1)
    states, tokens = [], []
    for _ in range(length):
        state = draw(log_next, generator)
        candidates, log_emission = words.of(state)
        token = candidates.gather(1, draw(log_emission, generator)[:, None])[:, 0]
        states.append(state)
        tokens.append(token)
        log_next = tables.transition.log_rows(state)
        if tables.reset_token is not None:
            log_next = torch.where((token == tables.reset_token)[:, None], tables.log_start, log_next)
    return Sample(torch.stack(states, dim=1), torch.stack(tokens, dim=1))


@torch.no_grad()
def sample_posterior(
    tables: Tables,
    batch: Batch,
    num: int,
    generator: torch.Generator | None = None,
    window: int | None = None,
) -> Int[Tensor, "B N T"]:
    """State paths z ~ p(z | x), -1 past the length: filter forward, then draw backward."""
    window = window or default_window(tables, batch.tokens.shape[0])
    size, num_positions = batch.tokens.shape
    states_per_word = tables.support.states_per_word
    # Logits and noise over the states of one position; the paths.
    per_path = size * (6 * states_per_word * tables.log_emission.element_size() + 4 * 8 * num_positions)
    what = f"{num:,} state paths for each of {size:,} texts of {num_positions:,} tokens"
    require_drawn(num, per_path, what, tables.device)
    parts, entering = list(windows(batch, window)), []
    log_last, token = tables.log_emission.new_zeros(size, states_per_word), batch.tokens[:, 0].clone()
    for first, rows, part in parts:
        carried = None if first == 0 else Belief(token[rows], log_last[rows])
        entering.append(carried)
        token_log_probs, _, log_last[rows] = filtered(window_factors(tables, part, carried), tables.precision)
        raise_impossible(token_log_probs, first, rows, "sample_posterior")
        token[rows] = part.last_tokens()
    slots = torch.full((size, num, num_positions), -1, device=batch.tokens.device)
    # log A[:, z_t+1], or 0 at the last position.
    log_following = tables.log_emission.new_zeros(size, num, states_per_word)
    for (first, rows, part), carried in zip(reversed(parts), reversed(entering), strict=True):
        factors = window_factors(tables, part, carried)
        _, log_filtered, _ = filtered(factors, tables.precision)
        following = log_following[rows]
        within: Bool[Tensor, "R T"] = part.within()
        for t in range(part.num_positions - 1, -1, -1):
            slot = draw(torch.where(within[:, t, None, None], log_filtered[:, t, None] + following, 0.0), generator)
            log_column = factors.log_tiles[factors.tile_of[:, t, None], :, slot]
            log_column = torch.where(factors.init_of[:, t, None, None] >= 0, 0.0, log_column)
            following = torch.where(within[:, t, None, None], log_column, following)
            slots[rows, :, first + t] = torch.where(within[:, t, None], slot, -1)
        log_following[rows] = following
    states = tables.support.states_of(batch.tokens)[:, None].expand(-1, num, -1, -1)
    drawn = states.gather(3, slots.clamp(min=0)[..., None])[..., 0]
    return torch.where(slots >= 0, drawn, -1)
