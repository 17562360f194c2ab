"""From a constraint to the automaton that generation follows, and why none can be followed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

import torch
from jaxtyping import Bool
from torch import Tensor

from vlhmm.control.automaton import Automaton
from vlhmm.control.constraints import Constraint, all_of
from vlhmm.control.explain import explain_empty
from vlhmm.control.product import reachable_states
from vlhmm.control.time_limit import TimeLimitError, limited_to
from vlhmm.control.token_texts import TokenTexts


class ImpossibleConstraintError(ValueError):
    """No continuation satisfies the constraint, so none can be drawn."""


def ending_at(automaton: Automaton, eos_ids: Sequence[int], *, required: bool) -> Automaton:
    """Texts that end at any of `eos_ids`; without one, the automaton itself."""
    if not eos_ids:
        return automaton
    ending = automaton.ending_at(eos_ids[0], required=required)
    for eos_id in eos_ids[1:]:
        if not 0 <= eos_id < automaton.num_tokens:
            raise ValueError(f"the end-of-text token is {eos_id}, outside 0..{automaton.num_tokens - 1}")
        class_of_token = ending.class_of_token.clone()
        class_of_token[eos_id] = class_of_token[eos_ids[0]]
        ending = replace(ending, class_of_token=class_of_token)
    return ending


def without(automaton: Automaton, token: int | None) -> Automaton:
    """Those of the texts that have no `token`; None: all of them."""
    if token is None:
        return automaton
    class_of_token, own = automaton.class_of_token.clone(), automaton.num_classes
    class_of_token[token] = own
    # The token's old class may be empty now: classes are renumbered without it.
    kept, class_of_token = class_of_token.unique(return_inverse=True)
    dead = automaton.dead_state()
    next_state, accepting = automaton.next_state, automaton.accepting
    if dead is None:
        dead = automaton.num_states
        next_state = torch.cat([next_state, torch.full((1, own), dead)])
        accepting = torch.cat([accepting, torch.zeros(1, dtype=torch.bool)])
    next_state = torch.cat([next_state, torch.full((len(next_state), 1), dead)], dim=1)
    return Automaton(class_of_token, next_state[:, kept], automaton.start, accepting)


def ended_states(automaton: Automaton) -> Bool[Tensor, " S"]:
    """Of an automaton made by `ending_at`, the states of texts that ended well: they accept and are never left."""
    stays = (automaton.next_state == torch.arange(automaton.num_states)[:, None]).all(1)
    return stays & automaton.accepting


def raise_impossible(
    constraint: Constraint | Automaton,
    texts: TokenTexts | None,
    compiled: Callable[[Constraint | Automaton], Automaton],
    possible: Callable[[Automaton], bool],
    steps: int,
    time_limit: float | None,
) -> NoReturn:
    """Says why the constraint has probability zero, and which of its parts are to blame.

    `compiled` gives the automaton of a constraint, EOS included; `possible` whether the HMM can satisfy it in `steps` tokens.
    Where the parts are not found within the time limit, all of them are named.
    """
    if isinstance(constraint, Constraint) and texts is not None:
        with suppress(TimeLimitError):
            reason = explain_empty(constraint, texts, steps, time_limit=time_limit)
            if reason is not None:
                raise ImpossibleConstraintError(reason)
    automaton = compiled(constraint)
    name = "the automaton" if isinstance(constraint, Automaton) else repr(constraint)
    if not reachable_states(automaton, steps)[-1, automaton.start]:
        least = float(automaton.shortest()[automaton.start])
        needs = f"it takes at least {least:g}, EOS included" if least > steps else "it takes another number of them"
        raise ImpossibleConstraintError(f"no text of {steps} tokens satisfies {name}: {needs}; allow more")
    if isinstance(constraint, Constraint):
        with suppress(TimeLimitError), limited_to(time_limit):
            name = repr(_guilty(constraint, lambda parts: possible(compiled(parts))))
    raise ImpossibleConstraintError(
        f"the HMM gives {name} probability zero within {steps} tokens from here: it cannot emit the tokens needed, in this "
        "order or at all; change the constraint or the text before it, or use a model that was trained on such text"
    )


def _guilty(constraint: Constraint, possible: Callable[[Constraint], bool]) -> Constraint:
    """The parts that are impossible together, and possible as soon as any one of them is left out."""
    guilty = list(constraint.parts())
    for part in constraint.parts():
        others = [other for other in guilty if other is not part]
        if others and not possible(all_of(others)):
            guilty = others
    return all_of(guilty)
