"""Why the model reads a text as it does: each token's surprise, its likely states, and where these came from and lead to."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.hmm import HMM
from vlhmm.inference.gather import Batch
from vlhmm.inference.moves import Moves
from vlhmm.inference.score import log_filtered_states
from vlhmm.tables import Belief, Tables
from vlhmm.text.answers import ExplainedState, ExplainedToken, Explanation, NamedState
from vlhmm.text.batching import TextBatch


def explain(
    hmm: HMM,
    batch: TextBatch,
    belief: Belief | None,
    top: int,
    neighbours: int,
    name_token: Callable[[int], str],
    name_state: Callable[[int], NamedState],
) -> list[Explanation]:
    """The `top` likeliest states of each token with as many `neighbours` each."""
    with torch.no_grad():
        log_probs = hmm.token_log_probs(batch.tokens, batch.lengths, belief)
    entropy = hmm.posterior_entropy(batch.tokens, batch.lengths, belief)
    device = hmm.tables.device
    log_filtered, _ = log_filtered_states(hmm.tables, Batch(batch.tokens.to(device), batch.lengths.to(device)), belief)
    smoothed = hmm.posterior(batch.tokens, batch.lengths, belief)

    def named(states: Int[Tensor, " K"], probs: Float[Tensor, " K"]) -> list[tuple[NamedState, float]]:
        likely = probs.topk(min(neighbours, probs.shape[0]))
        pairs = zip(states[likely.indices].tolist(), likely.values.tolist(), strict=True)
        return [(name_state(state), prob) for state, prob in pairs if prob > 0]

    def explained(row: int, length: int) -> Explanation:
        walk = _Walk(
            hmm.tables,
            moves,
            None if belief is None else belief.of([row]),
            batch.tokens[row, :length].to(hmm.tables.device),
            log_filtered[row, :length].double(),
            smoothed.probs[row, :length].double(),
            smoothed.states[row, :length],
        )
        tokens = []
        for t, token in enumerate(batch.tokens[row, :length].tolist()):
            best = walk.posterior[t].topk(min(top, walk.posterior.shape[1]))
            before, after = walk.before(t, best.indices), walk.after(t, best.indices)
            states = [
                ExplainedState(
                    name_state(int(walk.states[t, slot])),
                    prob,
                    [] if before is None else named(before[0], before[1][rank]),
                    named(after[0], after[1][rank]),
                )
                for rank, (slot, prob) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True))
            ]
            position = float(entropy.position[row, t])
            tokens.append(ExplainedToken(name_token(token), float(log_probs[row, t]), position, states))
        return Explanation(tokens, float(entropy.path[row]))

    moves = Moves(hmm.tables)
    return [explained(row, length) for row, length in enumerate(batch.lengths.tolist())]


class _Walk:
    """Pairs of neighbouring states given one text, one pair of positions at a time."""

    def __init__(
        self,
        tables: Tables,
        moves: Moves,
        belief: Belief | None,
        tokens: Int[Tensor, " T"],
        log_filtered: Float[Tensor, "T K"],
        posterior: Float[Tensor, "T K"],
        states: Int[Tensor, "T K"],
    ) -> None:
        self._tables, self._moves, self._belief = tables, moves, belief
        self._tokens, self._log_filtered = tokens, log_filtered
        self._group = tables.support.group_of_word[tokens]
        self.posterior, self.states = posterior, states

    def before(self, t: int, slots: Int[Tensor, " N"]) -> tuple[Int[Tensor, " K"], Float[Tensor, "N K"]] | None:
        """The states before those in `slots` and p(state before | state, text); None where there are none."""
        if t == 0 and self._belief is None:
            return None
        if t == 0:
            assert self._belief is not None
            token, log_filtered = self._belief.token[0], self._belief.log_probs[0].double()
        else:
            token, log_filtered = self._tokens[t - 1], self._log_filtered[t - 1]
        states = self._tables.support.states_of(token)
        if int(token) == self._tables.reset_token:
            return states, log_filtered.exp().expand(slots.shape[0], -1)
        group = self._tables.support.group_of_word[token]
        log_joint = log_filtered.new_full((log_filtered.shape[0], slots.shape[0]), -torch.inf)
        for block in self._moves.blocks(group[None], self._group[t, None]):
            log_joint[block.source] = log_filtered[block.source, None] + block.matrix.log_probs[:, slots]
        return states, _normalized(log_joint.T)

    def after(self, t: int, slots: Int[Tensor, " N"]) -> tuple[Int[Tensor, " K"], Float[Tensor, "N K"]]:
        """The states after those in `slots` and p(state after | state, text)."""
        tables, last = self._tables, t + 1 == self._tokens.shape[0]
        if int(self._tokens[t]) == tables.reset_token:
            after = tables.log_start.double().exp() if last else self.posterior[t + 1]
            return self._moves.every_state if last else self.states[t + 1], after.expand(slots.shape[0], -1)
        if last:
            return self._moves.every_state, tables.transition.log_rows(self.states[t, slots]).double().exp()
        before, after_group = self._group[t, None], self._group[t + 1, None]
        log_expected = self._moves.push(before, after_group, self._log_filtered[t, None])[0]
        # What the text from t + 1 on says about the state there, beyond what the text up to t says.
        log_evidence = torch.where(log_expected > -torch.inf, self.posterior[t + 1].log() - log_expected, -torch.inf)
        log_pairs = log_evidence.new_full((self._log_filtered.shape[1], log_evidence.shape[0]), -torch.inf)
        for block in self._moves.blocks(before, after_group):
            log_pairs[block.source] = block.matrix.log_probs + log_evidence
        return self.states[t + 1], _normalized(log_pairs[slots])


def _normalized(log_weights: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
    """Rows that sum to one; 0 where a row has nothing."""
    possible = (log_weights > -torch.inf).any(1, keepdim=True)
    return torch.where(possible, log_weights.softmax(1), 0.0)
