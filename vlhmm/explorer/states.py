"""The states of a model that a text uses most: their words, neighbours and examples, and where they stand on the map."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vlhmm.explorer.projection import neighbour_map
from vlhmm.inference.sampling import StateWords
from vlhmm.inspection.reading import Reading
from vlhmm.progress import Progress
from vlhmm.support import Support
from vlhmm.tables import Tables

RELEVANT_WORDS = 10
"""Of each state, at each weight of `LAMBDAS`."""
LAMBDAS = tuple(step / 10 for step in range(11))
"""Weights of log p(word | state) against log lift: the steps of the page's slider."""
NEIGHBOURS = 5
"""Likely states before and after each state."""
EXAMPLES = 3
"""Places of the text for each state."""
STATES_OF_WORD = 3
FEATURE_WORDS = 256
"""The map compares states by the probabilities of so many words: next ones, previous ones, and their own."""
OWN_WORDS = 0.5
"""Weight of a state's own words on the map, beside those before and after it."""
CHUNK_BYTES = 1 << 26
"""What is made for one use only is made this many bytes at a time."""


@dataclass(frozen=True)
class States:
    """The most used states, most used first; `rank` is a place in that order."""

    number: Int[np.ndarray, " S"]
    use: Float[np.ndarray, " S"]
    """Expected number of tokens of the text that each has emitted. In float32."""
    block: Int[np.ndarray, " S"]
    position: Float[np.ndarray, "S 2"]
    """On the map, in [-1, 1]: states are near that have the same words before and after them, and the same words."""
    first_word: Int[np.ndarray, " S1"]
    """Where each state's words begin in `word`, and the end."""
    word: Int[np.ndarray, " N"]
    """The words that are among the most relevant of a state at some weight."""
    word_log_prob: Float[np.ndarray, " N"]
    """log p(word | state)."""
    next: Int[np.ndarray, "S K"]
    """Ranks of the likeliest next states among these, -1 where there are no more."""
    next_prob: Float[np.ndarray, "S K"]
    """p(next state | state)."""
    previous: Int[np.ndarray, "S K"]
    """Ranks of the likeliest states before, among these."""
    previous_prob: Float[np.ndarray, "S K"]
    """p(state before | state), if states are as frequent as in the text and these are all."""
    example: Int[np.ndarray, "S E"]
    """Positions of the text whose likeliest state it is, most certain first; -1 where there are no more."""
    example_prob: Float[np.ndarray, "S E"]
    """p(state | text) there."""


@dataclass(frozen=True)
class Words:
    """The words as the states use them."""

    prob: Float[np.ndarray, " X"]
    """p(word), with states as frequent as in the text."""
    block: Int[np.ndarray, " X"]
    state: Int[np.ndarray, "X K"]
    """Ranks of the likeliest states of the word, -1 where there are no more."""
    state_prob: Float[np.ndarray, "X K"]
    """p(state | word), without context."""


@torch.no_grad()
def describing_states(
    tables: Tables, reading: Reading, max_states: int
) -> Generator[Progress, None, tuple[States, Words]]:
    """The `max_states` most used states of a text, and all words."""
    order = reading.occupancy.argsort(descending=True, stable=True)
    # A state that the text does not use has no place in a picture of its use.
    used = order[reading.occupancy[order] > 0]
    chosen = used[: min(max_states, len(used))]
    rank = torch.full((tables.num_states,), -1, dtype=torch.int64, device=tables.device)
    rank[chosen] = torch.arange(len(chosen), device=tables.device)
    share = (reading.occupancy / reading.occupancy.sum()).to(tables.dtype)
    words = _words(tables, share, rank)
    # A product of small numbers may underflow; a lift is finite.
    log_word = torch.from_numpy(words.prob).to(tables.device).clamp_min(torch.finfo(torch.float32).tiny).log()
    own, after, moves = yield from _moving(tables, chosen, log_word)
    next_prob, next_rank = _largest(moves, NEIGHBOURS)
    arrivals = moves.T * share[chosen]
    arrivals /= arrivals.sum(1, keepdim=True).clamp_min(torch.finfo(arrivals.dtype).tiny)
    # Square roots: the Euclidean distance is then that of Hellinger.
    features = torch.cat([after.sqrt(), (arrivals @ own).sqrt(), OWN_WORDS * own.sqrt()], dim=1)
    position = neighbour_map(features, torch.Generator().manual_seed(0))
    previous_prob, previous_rank = _largest(arrivals, NEIGHBOURS)
    first_word, word, word_log_prob = yield from _relevant_words(tables, chosen, log_word)
    example, example_prob = _examples(reading, rank, len(chosen))
    states = States(
        number=chosen.cpu().numpy(),
        use=_float32(reading.occupancy[chosen]),
        block=_block_of_state(tables.support, chosen).cpu().numpy(),
        position=_float32(position),
        first_word=first_word,
        word=word,
        word_log_prob=word_log_prob,
        next=next_rank,
        next_prob=next_prob,
        previous=previous_rank,
        previous_prob=previous_prob,
        example=example,
        example_prob=example_prob,
    )
    return states, words


def _block_of_state(support: Support, states: Int[Tensor, " S"]) -> Int[Tensor, " S"]:
    # As `LanguageModel.name_state` numbers them.
    return states // support.states_per_word


def _words(tables: Tables, share: Float[Tensor, " Z"], rank: Int[Tensor, " Z"]) -> Words:
    support, count = tables.support, min(STATES_OF_WORD, tables.support.states_per_word)
    probs, states, state_probs = [], [], []
    every_word = torch.arange(tables.num_words, device=tables.device)
    for words in every_word.split(max(1, CHUNK_BYTES // (16 * support.states_per_word))):
        of_word = support.states_of(words)
        joint = tables.log_emission[words].exp() * share[of_word]
        total = joint.sum(1)
        best = joint.topk(count, dim=1)
        here = rank[of_word.gather(1, best.indices)]
        share_of_best = best.values / total[:, None].clamp_min(torch.finfo(total.dtype).tiny)
        probs.append(total)
        states.append(torch.where(share_of_best > 0, here, -1))
        state_probs.append(share_of_best)
    return Words(
        prob=_float32(torch.cat(probs)),
        block=support.group_of_word.cpu().numpy(),
        state=torch.cat(states).cpu().numpy(),
        state_prob=_float32(torch.cat(state_probs)),
    )


def _moving(
    tables: Tables, chosen: Int[Tensor, " S"], log_word: Float[Tensor, " X"]
) -> Generator[Progress, None, tuple[Float[Tensor, "S D"], Float[Tensor, "S D"], Float[Tensor, "S S"]]]:
    """p(word | state) and p(next word | state) for the most frequent words, and p(next state | state) among the chosen."""
    words = log_word.topk(min(FEATURE_WORDS, len(log_word))).indices
    emits = torch.zeros(tables.num_states, len(words), dtype=tables.dtype, device=tables.device)
    of_word = tables.support.states_of(words)
    emits[of_word, torch.arange(len(words), device=tables.device)[:, None]] = tables.log_emission[words].exp()
    after, moves = [], []
    size = tables.num_states * tables.log_emission.element_size()
    for states in chosen.split(max(1, CHUNK_BYTES // size)):
        rows = tables.transition.log_rows(states).exp()
        after.append(rows @ emits)
        moves.append(rows[:, chosen])
        yield Progress("placing states", sum(len(part) for part in moves), len(chosen))
    return emits[chosen], torch.cat(after), torch.cat(moves)


def _largest(probs: Float[Tensor, "S S"], count: int) -> tuple[Float[np.ndarray, "S K"], Int[np.ndarray, "S K"]]:
    best = probs.topk(min(count, probs.shape[1]), dim=1)
    return _float32(best.values), torch.where(best.values > 0, best.indices, -1).cpu().numpy()


def _relevant_words(
    tables: Tables, chosen: Int[Tensor, " S"], log_word: Float[Tensor, " X"]
) -> Generator[Progress, None, tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]]:
    """For each state the words that are among the most relevant at some weight, likeliest first."""
    state_words = StateWords(tables)
    first, words, log_probs = [0], list[Tensor](), list[Tensor]()
    done = 0
    for states in chosen.split(max(1, CHUNK_BYTES // (64 * state_words.longest))):
        word, log_prob = state_words.of(states)
        possible = log_prob > -torch.inf
        # -inf - (-inf) where no state emits a word.
        log_lift = torch.where(possible, log_prob - log_word[word], -torch.inf)
        wanted = torch.zeros_like(possible)
        for weight in LAMBDAS:
            relevance = torch.where(possible, weight * log_prob + (1 - weight) * log_lift, -torch.inf)
            best = relevance.topk(min(RELEVANT_WORDS, relevance.shape[1]), dim=1).indices
            wanted.scatter_(1, best, True)
        wanted &= possible
        ranked = log_prob.masked_fill(~wanted, -torch.inf).sort(dim=1, descending=True, stable=True)
        width = wanted.sum(1)
        for row, count in enumerate(width.tolist()):
            words.append(word[row, ranked.indices[row, :count]])
            log_probs.append(ranked.values[row, :count])
            first.append(first[-1] + count)
        done += len(states)
        yield Progress("naming states", done, len(chosen))
    return np.array(first), torch.cat(words).cpu().numpy(), _float32(torch.cat(log_probs))


def _examples(
    reading: Reading, rank: Int[Tensor, " Z"], num_states: int
) -> tuple[Int[np.ndarray, "S E"], Float[np.ndarray, "S E"]]:
    places = np.full((num_states, EXAMPLES), -1, dtype=np.int64)
    probs = np.zeros((num_states, EXAMPLES), dtype=np.float32)
    taken = np.zeros(num_states, dtype=np.int64)
    state_of_token = rank[reading.likeliest_state].cpu().numpy()
    prob_of_token = _float32(reading.likeliest_prob)
    for position in np.argsort(-prob_of_token, kind="stable").tolist():
        state = int(state_of_token[position])
        if state >= 0 and taken[state] < EXAMPLES:
            places[state, taken[state]], probs[state, taken[state]] = position, prob_of_token[position]
            taken[state] += 1
    return places, probs


def _float32(values: Tensor) -> NDArray[np.float32]:
    return values.detach().cpu().float().numpy()
