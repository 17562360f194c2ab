"""What a guide needs before its first token: constraints compiled, looked ahead, and found to be possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

from vlhmm.control.automaton import Automaton
from vlhmm.control.constraints import Constraint
from vlhmm.control.possible import ended_states, ending_at, raise_impossible
from vlhmm.control.product import TransitionMatrix, lookahead, reachable_states
from vlhmm.control.time_limit import TIME_LIMIT
from vlhmm.control.token_texts import TokenTexts
from vlhmm.control.tokens import ConstrainedTokens
from vlhmm.data import Tokenizer
from vlhmm.tables import Tables


@dataclass(frozen=True)
class Plan:
    """The automata of several constraints as one, ready to be followed for `steps` tokens."""

    following: ConstrainedTokens
    start_of: dict[Constraint | Automaton, int]
    """Where each constraint's automaton begins."""
    ended: frozenset[int]
    """The states of texts that ended well."""
    compiler: Compiler
    steps: int

    def raise_impossible(
        self, constraint: Constraint | Automaton, log_ahead: Float[Tensor, "1 Z"], steps: int
    ) -> NoReturn:
        """Why `constraint` has probability zero within `steps` tokens, where the next token's state is known so far."""
        tables, transition = self.following.tables, self.following.transition

        def possible(automaton: Automaton) -> bool:
            following = ConstrainedTokens(tables, lookahead(tables, automaton, steps, transition), transition)
            return not bool(following(log_ahead, [automaton.start], steps).log_joint.isinf().all())

        compiler = self.compiler
        raise_impossible(constraint, compiler.texts, compiler, possible, steps, compiler.time_limit)


@dataclass(frozen=True)
class Compiler:
    """Constraints to automata over the HMM's tokens that end at EOS."""

    texts: TokenTexts | None
    num_tokens: int
    eos_ids: tuple[int, ...]
    must_end: bool
    time_limit: float | None = TIME_LIMIT
    """Seconds for each constraint."""

    def __call__(self, constraint: Constraint | Automaton) -> Automaton:
        if isinstance(constraint, Constraint):
            if self.texts is None:
                raise ValueError(
                    "an HMM alone does not know what its tokens spell: give the language model's tokenizer="
                )
            if self.texts.num_tokens > self.num_tokens:
                raise ValueError(
                    f"the tokenizer has {self.texts.num_tokens} tokens, but the HMM has {self.num_tokens}: "
                    "use an HMM over the language model's own vocabulary"
                )
            constraint = constraint.compile(self.texts.padded_to(self.num_tokens), time_limit=self.time_limit)
        return ending_at(constraint, self.eos_ids, required=self.must_end)


def make_plan(tables: Tables, constraints: Sequence[Constraint | Automaton], compiler: Compiler, steps: int) -> Plan:
    """The plan for constraints that some text of at most `steps` tokens satisfies; the others are refused."""
    compiled = {constraint: compiler(constraint) for constraint in constraints}
    for constraint, automaton in compiled.items():
        # Checked first: the look-ahead takes longer.
        if not reachable_states(automaton, steps)[-1, automaton.start]:
            raise_impossible(constraint, compiler.texts, compiler, lambda _: True, steps, compiler.time_limit)
    joint, starts = side_by_side(list(compiled.values()))
    transition = TransitionMatrix(tables)
    ahead = lookahead(tables, joint, steps, transition)
    plan = Plan(
        ConstrainedTokens(tables, ahead, transition),
        dict(zip(compiled, starts, strict=True)),
        frozenset(ended_states(joint).nonzero()[:, 0].tolist() if compiler.eos_ids else ()),
        compiler,
        steps,
    )
    for constraint, start in plan.start_of.items():
        if bool(ahead.log_met[-1, start].isinf().all()) and bool(ahead.log_met_anew[-1, start].isinf()):
            # Impossible from every state: any distribution over states gives the same explanation.
            plan.raise_impossible(constraint, torch.zeros_like(tables.log_start)[None], steps)
    return plan


def side_by_side(automata: Sequence[Automaton]) -> tuple[Automaton, list[int]]:
    """The disjoint union of the automata, with the common refinement of their token classes, and the start state of each."""
    columns = torch.stack([automaton.class_of_token for automaton in automata])
    classes, class_of_token = columns.unique(dim=1, return_inverse=True)
    first, starts, parts = 0, [], []
    for automaton, own_class in zip(automata, classes, strict=True):
        parts.append(automaton.next_state[:, own_class] + first)
        starts.append(automaton.start + first)
        first += automaton.num_states
    accepting = torch.cat([automaton.accepting for automaton in automata])
    return Automaton(class_of_token, torch.cat(parts), starts[0], accepting), starts


def require_same_vocabulary(own: Tokenizer, other: Any) -> None:
    """Every token of the HMM must be the language model's token of the same id."""
    if isinstance(other, Tokenizer):
        names: dict[int, str] = dict(enumerate(other.tokens()))
    else:
        names = {token: name for name, token in other.get_vocab().items()}
    for token, name in enumerate(own.tokens()):
        # An id without a token is a gap on either side.
        if own.token_id(name) is not None and names.get(token) != name:
            raise ValueError(
                f"the tokenizers differ: token {token} is {name!r} to the HMM and {names.get(token)!r} to the language model "
                f"({own.vocab_size} and {len(names)} tokens): use an HMM over the language model's own vocabulary"
            )
