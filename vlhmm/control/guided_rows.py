"""The rows of a batch that a guide follows, and the scores of the token that comes next in each.

Two cases in which the HMM assigns probability zero are defined so that the text can always continue:

- after a token that is impossible by the HMM (D = 0) the belief is undefined, so it is reset to the start distribution,
  both in p(constraint | prefix, v) and at the next step;
- where the HMM gives every token that the language model may choose no chance to satisfy the constraint (N = 0), the
  automaton alone decides: its tokens keep the language model's score.

Letters are those of `vlhmm.control.guide`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.control.automaton import Automaton
from vlhmm.control.constraints import Constraint
from vlhmm.control.plan import Plan
from vlhmm.inference.errors import ImpossibleTextError
from vlhmm.inference.score import score
from vlhmm.tables import Belief
from vlhmm.validate import as_batch


@dataclass(frozen=True)
class Rows:
    """The state of the guide between two steps."""

    ids: Int[Tensor, "R T"]
    """On the CPU."""
    log_ahead: Float[Tensor, "R Z"]
    """log p(the next token's state | prefix)."""
    states: list[int]
    """Of each row's automaton; -1 where a token was taken that none of its edges reads."""
    left: int
    """Tokens left, the next one included."""


@dataclass(frozen=True)
class RowGuide:
    """How rows begin at their prompts, go on by a token, and are guided to their constraints."""

    plan: Plan
    constraints: list[Constraint | Automaton]
    """One for all rows, or one for each group of as many rows after one another."""

    def begun(
        self,
        ids: Int[Tensor, "R T"],
        opening: Belief | None,
        prompt_lengths: Callable[[Int[Tensor, "R T"]], list[int]] | None,
    ) -> Rows:
        """The rows after their prompts, which are `ids`; after `opening` alone where no lengths of prompts are to be had."""
        num_rows, num_positions = ids.shape
        states = [self.plan.start_of[self.constraint_of(row, num_rows)] for row in range(num_rows)]
        log_ahead = self.plan.following.log_ahead(opening).repeat(num_rows, 1)
        if prompt_lengths is not None:
            # Beams and sequences of one prompt share the belief after it, which is computed once.
            marked = torch.cat([torch.tensor(prompt_lengths(ids))[:, None], ids], dim=1)
            distinct, which = marked.unique(dim=0, return_inverse=True)
            for number, (length, *prompt) in enumerate(distinct.tolist()):
                if length:
                    rows = (which == number).nonzero()[:, 0]
                    read = self._after_prompt(prompt[num_positions - length :], int(rows[0]), opening)
                    log_ahead[rows.to(log_ahead.device)] = read
        return Rows(ids, log_ahead, states, self.plan.steps)

    def _after_prompt(self, ids: list[int], row: int, opening: Belief | None) -> Float[Tensor, "1 Z"]:
        tables = self.plan.following.tables
        num_words = tables.num_words
        outside = next((token for token in ids if not 0 <= token < num_words), None)
        if outside is not None:
            raise ValueError(
                f"the prompt of row {row} has token {outside}, but the HMM's vocabulary ends at {num_words - 1}: "
                "use read_prompt=False, or an HMM over the language model's own vocabulary"
            )
        scored = score(tables, as_batch([ids], None, tables), opening)
        impossible = scored.token_log_probs[0].isinf()
        if bool(impossible.any()):
            raise ImpossibleTextError(
                f"the prompt of row {row} has probability zero by the HMM from token {int(impossible.nonzero()[0, 0])} on: "
                "use read_prompt=False, or an HMM that was trained on such text"
            )
        return self.plan.following.log_ahead(scored.belief)

    def continued(self, before: Rows | None, ids: Int[Tensor, "R T"]) -> Rows | None:
        """The rows one token later; None if they do not continue those of the last call."""
        plan = self.plan
        if before is None or ids.shape != (before.ids.shape[0], before.ids.shape[1] + 1):
            return None
        if all(state in plan.ended for state in before.states):
            return None
        parents = self._parents(before.ids, ids[:, :-1])
        if parents is None:
            return None
        if before.left == 1:
            raise ValueError(
                f"token {plan.steps + 1} is asked for, but max_new_tokens is {plan.steps}: stop there, "
                "or call reset() where a text becomes the next prompt"
            )
        drawn = ids[:, -1]
        states = self._next_states([before.states[parent] for parent in parents], drawn.tolist())
        log_ahead = before.log_ahead if parents == list(range(len(parents))) else before.log_ahead[parents]
        # Finished rows, and rows with a token outside the HMM's vocabulary, stay in the batch; their beliefs are not read.
        known = drawn.clamp(max=plan.following.tables.num_words - 1).to(log_ahead.device)
        return Rows(ids, plan.following.log_ahead_after(log_ahead, known), states, before.left - 1)

    def _parents(self, before: Int[Tensor, "R T"], now: Int[Tensor, "R T"]) -> list[int] | None:
        """For each row one of the last call's with the same tokens and the same constraint; beams come in any order."""
        num_rows = before.shape[0]
        if torch.equal(before, now):
            return list(range(num_rows))
        group = torch.arange(num_rows) // self._rows_of_each(num_rows)
        marked = torch.cat([torch.cat([group, group])[:, None], torch.cat([before, now])], dim=1)
        labels: list[int] = marked.unique(dim=0, return_inverse=True)[1].tolist()
        row_of = {label: row for row, label in enumerate(labels[:num_rows])}
        parents = [row_of.get(label) for label in labels[num_rows:]]
        return None if None in parents else [parent for parent in parents if parent is not None]

    def _next_states(self, states: list[int], tokens: list[int]) -> list[int]:
        num_words, ended = self.plan.following.tables.num_words, self.plan.ended
        # A token outside the HMM's vocabulary has no edge (-1), except after EOS.
        following = [state if state in ended else -1 for state in states]
        known = [
            row
            for row, (state, token) in enumerate(zip(states, tokens, strict=True))
            if following[row] == -1 < state and token < num_words
        ]
        read = self.plan.following.next_states([states[row] for row in known], [tokens[row] for row in known])
        for row, state in zip(known, read, strict=True):
            following[row] = state
        return following

    def guided(
        self,
        log_ahead: Float[Tensor, "R Z"],
        rows: Rows,
        going: list[int],
        scores: Float[Tensor, "R X"],
        begins: bool,
    ) -> Float[Tensor, "R X"]:
        """The scores of the rows that go on, with the HMM's opinion."""
        following, states = self.plan.following, [rows.states[row] for row in going]
        found = following(log_ahead, states, rows.left)
        before = found.log_joint.logsumexp(1, keepdim=True)
        impossible = before.isinf()
        if begins and bool(impossible.any()):
            row = going[int(impossible[:, 0].nonzero()[0, 0])]
            self.plan.raise_impossible(
                self.constraint_of(row, len(rows.states)), rows.log_ahead[row : row + 1], rows.left
            )
        after = torch.where(
            found.log_prob.isinf(), following.log_met_anew(states, rows.left), found.log_joint - found.log_prob
        )
        # A token without an edge has N = 0, also with a reset belief: no mask is needed.
        opinion = after.clamp_(max=0).sub_(torch.where(impossible, torch.inf, before))
        guided = opinion.to(torch.float32) + scores
        unsettled = guided.amax(1, keepdim=True) == -torch.inf
        if bool(unsettled.any()):
            guided = torch.where(unsettled & following.allowed(states, rows.left), scores, guided)
            stuck = guided.amax(1) == -torch.inf
            if bool(stuck.any()):
                row = going[int(stuck.nonzero()[0, 0])]
                raise ValueError(
                    f"row {row} has no token left that satisfies {self.constraint_of(row, len(rows.states))!r}: the "
                    "language model, or another logits processor, gives all of them probability zero"
                )
        return guided

    def goes_on(self, state: int, left: int) -> bool:
        """Whether the row has not ended, and can still satisfy its constraint."""
        return state >= 0 and state not in self.plan.ended and bool(self.plan.following.ahead.reachable[left, state])

    def require_some(self, rows: list[int], num_rows: int) -> None:
        """Beams may be filled up with tokens of score -inf, but each constraint needs a row that holds to it."""
        rows_of_each = self._rows_of_each(num_rows)
        missing = set(range(len(self.constraints))) - {row // rows_of_each for row in rows}
        if missing:
            raise ValueError(
                f"all rows violate {self.constraints[min(missing)]!r}: tokens were chosen that had a score of -inf"
            )

    def warn_of_cut_off(self, rows: Rows) -> None:
        """Warns if no next token of these rows could have satisfied the constraint: a logits processor does not see how texts end."""
        if rows.left == 1:
            return
        reachable, ended = self.plan.following.ahead.reachable[1], self.plan.ended
        met = [row for row, s in enumerate(rows.states) if s in ended or (s >= 0 and bool(reachable[s]))]
        rows_of_each = self._rows_of_each(len(rows.states))
        missing = set(range(len(self.constraints))) - {row // rows_of_each for row in met}
        if missing:
            warnings.warn(
                f"the text before was cut off with {rows.left - 1} of {self.plan.steps} tokens left, and does not satisfy "
                f"{self.constraints[min(missing)]!r}: use guide.generate, or go on for {self.plan.steps} tokens",
                stacklevel=3,
            )

    def constraint_of(self, row: int, num_rows: int) -> Constraint | Automaton:
        return self.constraints[row // self._rows_of_each(num_rows)]

    def _rows_of_each(self, num_rows: int) -> int:
        """The rows of one constraint."""
        num_constraints = len(self.constraints)
        if num_rows % num_constraints:
            raise ValueError(
                f"{num_constraints} constraints for {num_rows} rows: give one constraint for all, or one a prompt"
            )
        return num_rows // num_constraints
