"""The belief that a text goes on from."""

from __future__ import annotations

import torch

from vlhmm.arguments import check_tensor
from vlhmm.inference.evidence import NO_TOKEN
from vlhmm.inference.gather import Batch
from vlhmm.tables import Belief, Tables
from vlhmm.validate.numbers import check_logs


def check_belief(belief: Belief | None, batch: Batch | None, tables: Tables) -> None:
    """A belief of these tables, and of as many sequences as `batch` has."""
    if belief is None:
        return
    if not isinstance(belief, Belief):
        raise ValueError(
            f"belief is a {type(belief).__name__}, but a Belief is needed: that of hmm.filter(...) is its .belief"
        )
    check_tensor("the belief's token", belief.token)
    check_tensor("the belief's log_probs", belief.log_probs)
    if belief.token.ndim != 1 or belief.token.dtype.is_floating_point or belief.token.dtype == torch.bool:
        raise ValueError(
            f"the belief's token is {belief.token.dtype} of shape {tuple(belief.token.shape)}, but one integer a sequence is needed"
        )
    for name, part in (("token", belief.token), ("log_probs", belief.log_probs)):
        if part.device != tables.device:
            raise ValueError(
                f"the belief's {name} is on {part.device}, but the tables are on {tables.device}: move it there with .to()"
            )
    if belief.log_probs.dtype != tables.dtype:
        raise ValueError(
            f"the belief's log_probs are {belief.log_probs.dtype}, but the tables {tables.dtype}: "
            "carry the belief of the same model, or convert it with .to()"
        )
    size = belief.token.shape[0] if batch is None else batch.tokens.shape[0]
    # After log-likelihoods, where there is no token, every state is possible.
    soft = belief.token == NO_TOKEN
    expected = (size, tables.num_states if bool(soft.any()) else tables.support.states_per_word)
    if tuple(belief.log_probs.shape) != expected or belief.token.shape[0] != size:
        raise ValueError(
            f"the belief has shape {tuple(belief.log_probs.shape)} (sequences, states), but tokens and tables need {expected}: "
            "carry the belief of the same sequences and the same model"
        )
    bad = ((belief.token < 0) & ~soft) | (belief.token >= tables.num_words)
    if bool(bad.any()):
        row = int(bad.nonzero()[0, 0])
        raise ValueError(
            f"the belief's token {row} is {int(belief.token[row])}, but ids must be between 0 and {tables.num_words - 1}: "
            "carry the belief of the same model"
        )
    check_logs("the belief", belief.log_probs)
