"""The next token: p(x_t+1 | x_<=t) over the whole vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.inference.errors import ImpossibleTextError
from vlhmm.inference.moves import MISSING, PRECISE, Moves
from vlhmm.memory import require_memory
from vlhmm.tables import Belief, Tables

ROW_BYTES = 1 << 26
"""Transition rows are made this many bytes at a time."""
MIN_CERTAIN = 1e-26
"""Sums of products that are at least as large as this have lost nothing that float32 would show to its underflow (2^-126)."""


def min_certain(dtype: torch.dtype) -> float:
    """The precision threshold: in sums of products at least this large, underflow of single terms is below rounding error."""
    return PRECISE if dtype == torch.float64 else MIN_CERTAIN


def transition_probs(tables: Tables) -> Float[Tensor, "Z Z"]:
    """p(z' | z) of all states."""
    _require_table(tables, "transition", tables.num_states, "read rows of it by hmm.tables.transition.log_rows(states)")
    return tables.transition.log_rows(torch.arange(tables.num_states, device=tables.device)).exp()


def emission_probs(tables: Tables) -> Float[Tensor, "Z X"]:
    """p(x | z) of all states and words."""
    _require_table(tables, "emission", tables.num_words, "hmm.tables.log_emission holds only the states of each word")
    states = tables.support.states_of(torch.arange(tables.num_words, device=tables.device))
    probs = tables.log_emission.new_zeros(tables.num_words, tables.num_states)
    return probs.scatter(1, states, tables.log_emission.exp()).T


def _require_table(tables: Tables, name: str, width: int, remedy: str) -> None:
    require_memory(
        2 * tables.num_states * width * tables.log_emission.element_size(),
        f"the {name} as a table of {tables.num_states:,} x {width:,} probabilities",
        remedy,
        tables.device,
    )


@torch.no_grad()
def next_state_probs(tables: Tables, belief: Belief | None) -> Float[Tensor, "B Z"]:
    """p(z_t+1 | x_<=t); 0 everywhere where the past is impossible. Without a belief: the start distribution."""
    if belief is None:
        return tables.log_start.exp()[None]
    support = tables.support
    probs = belief.probs
    if support.dense:
        return _begun_anew(tables, belief, tables.transition.pusher()(probs))
    following = probs.new_zeros(probs.shape[0], tables.num_states)
    group = support.group_of_word[belief.token]
    rows_at_once = max(1, ROW_BYTES // (tables.num_states * probs.element_size()))
    for one_group in group.unique():
        members = (group == one_group).nonzero()[:, 0]
        states = support.states_of_group[one_group]
        for slots in torch.arange(states.shape[0], device=states.device).split(rows_at_once):
            following[members] += probs[members][:, slots] @ tables.transition.log_rows(states[slots]).exp()
    return _begun_anew(tables, belief, following)


def _begun_anew(tables: Tables, belief: Belief, following: Float[Tensor, "B Z"]) -> Float[Tensor, "B Z"]:
    """After the reset token the start distribution follows."""
    if tables.reset_token is None:
        return following
    possible = (belief.log_probs > -torch.inf).any(1).to(following.dtype)
    begins_anew = (belief.token == tables.reset_token)[:, None]
    return torch.where(begins_anew, tables.log_start.exp() * possible[:, None], following)


@torch.no_grad()
def belief_at(tables: Tables, token: int, unknown: int) -> Belief | None:
    """p(z_t | x_t = token), the `unknown` tokens before it marginalised; None if the token is impossible there.

    For tables without a reset token: then a marginalised token does not affect the transition after it.
    """
    group = tables.support.group_of_word[token]
    states = tables.support.states_of_group[group]
    probs = tables.log_start.exp()[None]
    push = tables.transition.pusher()
    for _ in range(unknown - 1):
        probs = push(probs)
    ahead = (_entering(tables, probs, group) if unknown else probs[:, states])[0]
    if bool((ahead < min_certain(ahead.dtype)).any()):
        log_ahead = _log_ahead(tables, unknown)[states]
    else:
        log_ahead = ahead.double().log()
    log_joint = log_ahead + tables.log_emission[token].double()
    total = log_joint.logsumexp(0)
    if bool(total.isinf()):
        return None
    tokens = torch.tensor([token], device=tables.device)
    return Belief(tokens, (log_joint - total)[None].to(tables.dtype))


def _entering(tables: Tables, probs: Float[Tensor, "B Z"], group: Int[Tensor, ""]) -> Float[Tensor, "B K"]:
    """The product of messages with the columns of one group's states."""
    support = tables.support
    if support.dense or not support.partition:
        return tables.transition.pusher()(probs)[:, support.states_of_group[group]]
    entering = probs.new_zeros(probs.shape[0], support.states_per_word)
    tile_bytes = support.states_per_word**2 * probs.element_size()
    for sources in torch.arange(support.num_groups, device=probs.device).split(max(1, ROW_BYTES // tile_bytes)):
        tiles = tables.transition.log_tiles(support, sources, support, group.expand(len(sources))).exp()
        entering += probs[:, support.states_of_group[sources].flatten()] @ tiles.flatten(0, 1)
    return entering


def _log_ahead(tables: Tables, unknown: int) -> Float[Tensor, " Z"]:
    """log p(z) after so many marginalised tokens, in a range where probabilities may underflow the tables' dtype."""
    moves, log_probs = Moves(tables), tables.log_start.double()[None]
    anywhere = torch.full((1,), MISSING, device=tables.device)
    for _ in range(unknown):
        log_probs = moves.push(anywhere, anywhere, log_probs)
    return log_probs[0]


@torch.no_grad()
def next_token_probs(tables: Tables, belief: Belief | None) -> Float[Tensor, "B X"]:
    """p(x_t+1 = x | x_<=t) for every word x."""
    return emitted(tables, next_state_probs(tables, belief))


def emitted(tables: Tables, state_probs: Float[Tensor, "B Z"]) -> Float[Tensor, "B X"]:
    """p(x) of every word x where the states have these probabilities."""
    support = tables.support
    emission = tables.log_emission.exp()
    if support.num_groups == 1:
        return state_probs[:, support.states_of_group[0]] @ emission.T
    return torch.stack([(row[support.states_of_group][support.group_of_word] * emission).sum(1) for row in state_probs])


class PreciseNextTokens:
    """log p(x_t+1 | x_<=t) in float64, computed in log space where probabilities underflow.

    Args:
        tables: The HMM.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables, self._moves = tables, Moves(tables)

    @torch.no_grad()
    def __call__(self, belief: Belief | None) -> Float[Tensor, "B X"]:
        """Of every word, -inf everywhere where the past is impossible. Without a belief: of the first token, B = 1."""
        tables = self._tables
        if belief is None:
            return log_emitted(tables, tables.log_start.double()[None])
        before = tables.support.group_of_word[belief.token]
        log_states = self._moves.push(before, torch.full_like(before, MISSING), belief.log_probs.double())
        if tables.reset_token is not None:
            possible = (belief.log_probs > -torch.inf).any(1)
            begins_anew = (belief.token == tables.reset_token) & possible
            log_states = torch.where(begins_anew[:, None], tables.log_start.double(), log_states)
        return log_emitted(tables, log_states)


@torch.no_grad()
def log_emitted(tables: Tables, log_states: Float[Tensor, "B Z"]) -> Float[Tensor, "B X"]:
    """log p(x) of every word x where the states have these log-probabilities, in log space."""
    every_word = torch.arange(tables.num_words, device=tables.device)
    return torch.stack([log_emitted_words(tables, row, every_word) for row in log_states])


def log_emitted_words(tables: Tables, log_states: Float[Tensor, " Z"], words: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """The same of some words, for one distribution of states."""
    found = []
    for some in words.split(max(1, ROW_BYTES // (8 * tables.support.states_per_word))):
        log_joint = log_states[tables.support.states_of(some)].double() + tables.log_emission[some]
        found.append(torch.full_like(log_joint[:, 0], -torch.inf))
        # Most are impossible where there are zeros at all.
        possible = (log_joint > -torch.inf).any(1)
        found[-1][possible] = log_joint[possible].logsumexp(1)
    return torch.cat(found)


def without_token(
    probs: Float[Tensor, "B X"],
    token: int | None,
    places: Sequence[int] | None = None,
    precisely: Callable[[Int[Tensor, " R"]], Float[Tensor, "R X"]] | None = None,
) -> Float[Tensor, "B X"]:
    """p(x_t+1 | x_<=t, x_t+1 is not `token`); None: p(x_t+1 | x_<=t) as it is. Of an impossible past all are 0.

    `places`: of each row, its text's place in a list of texts. `precisely`: log p(x_t+1 | x_<=t) of some rows, whatever its
    range, for rows where the other tokens are so unlikely together that some of `probs` underflowed.
    """
    if token is None:
        return probs
    others = probs.clone()
    others[:, token] = 0
    total = others.sum(1, keepdim=True)
    small = ((total[:, 0] < min_certain(probs.dtype)) & (probs[:, token] > 0)).nonzero()[:, 0]
    if small.numel() and precisely is not None:
        log_others = precisely(small).clone()
        log_others[:, token] = -torch.inf
        log_total = log_others.logsumexp(1, keepdim=True)
        possible = log_total[:, 0] > -torch.inf
        others[small[possible]] = (log_others - log_total)[possible].exp().to(probs.dtype)
        total[small[possible]] = 1
    stuck = ((total[:, 0] == 0) & (probs[:, token] > 0)).nonzero()[:, 0].tolist()
    if stuck:
        which = "" if places is None else f"text {places[stuck[0]]} of the list (the first is 0): "
        raise ImpossibleTextError(f"{which}{nothing_but(token)}: ask for it too, with unk=True (--allow-unk)")
    return others / torch.where(total > 0, total, 1)


def nothing_but(token: int) -> str:
    """What is wrong with a text after which a token must follow that is left out."""
    return f"nothing but token {token} can follow, which is left out as unknown"


def likeliest_tokens(
    probs: Float[Tensor, "B X"],
    top: int,
    without: int | None = None,
    places: Sequence[int] | None = None,
    precisely: Callable[[Int[Tensor, " R"]], Float[Tensor, "R X"]] | None = None,
) -> tuple[Float[Tensor, "B N"], Int[Tensor, "B N"]]:
    """The most likely tokens with their probabilities, one of them left out."""
    num_words = probs.shape[1]
    if without is not None and num_words > 1:
        probs, num_words = without_token(probs, without, places, precisely), num_words - 1
        probs[:, without] = -1
    best = probs.topk(min(top, num_words), dim=1)
    return best.values, best.indices
