"""Belief states of several texts that are continued as one batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlhmm.tables import Belief, Tables


@dataclass(frozen=True)
class Past:
    """The beliefs after several texts. For texts without tokens the start distribution applies."""

    begun: Bool[Tensor, " N"]
    belief: Belief
    """Rows of texts that have not begun are never read."""

    @classmethod
    def opened(cls, tables: Tables, belief: Belief | None, num: int = 1) -> Past:
        """Texts with no token yet, all with the same opening belief."""
        begun = torch.full((num,), belief is not None, device=tables.device)
        if belief is None:
            states = tables.log_emission.new_zeros(num, tables.support.states_per_word)
            return cls(begun, Belief(torch.zeros(num, dtype=torch.int64, device=tables.device), states))
        return cls(begun, Belief(belief.token.expand(num), belief.log_probs.expand(num, -1)))

    @property
    def num(self) -> int:
        return self.begun.shape[0]

    def of(self, rows: Int[Tensor, " R"] | list[int] | slice) -> Past:
        """Of some of the texts."""
        return Past(self.begun[rows], self.belief.of(rows))

    def of_rows(
        self, question: Callable[[Belief | None], Float[Tensor, "R W"]]
    ) -> Callable[[Int[Tensor, " R"]], Float[Tensor, "R W"]]:
        """A function that evaluates `question` for some of the texts; without a belief its one row is expanded to all."""
        return lambda rows: self.of(rows).ask(lambda some, belief: question(belief).expand(len(some), -1))

    def ask(self, question: Callable[[Int[Tensor, " R"], Belief | None], Float[Tensor, "R W"]]) -> Float[Tensor, "N W"]:
        """`question` evaluated for each text: one call for all texts with tokens, and one, without a belief, for the others."""
        begun, fresh = self.begun.nonzero()[:, 0], (~self.begun).nonzero()[:, 0]
        if not begun.numel():
            return question(fresh, None)
        if not fresh.numel():
            return question(begun, self.belief)
        answers = torch.cat([question(begun, self.belief.of(begun)), question(fresh, None)])
        return answers[torch.cat([begun, fresh]).argsort()]
