"""Missing tokens: log p of what is left of a text, summed exactly over the words that may have stood there.

Of a missing token its block stays known, in a dense HMM nothing: sum over x of p(x | z) over the words of a block is 1 for the
states of that block, so the position has factor 1 and the recursion is the same. A reset token is never missing, since what comes
after it begins anew; the sum is then over the other words of its block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlhmm.inference.gather import Batch
from vlhmm.support import Support
from vlhmm.tables import AnyTables, Tables, WindowTables


def draw_missing(
    tokens: Int[Tensor, "R T"],
    rate: float,
    reset_token: int | None,
    generator: torch.Generator,
    rows: range | None = None,
    batch_size: int | None = None,
) -> Bool[Tensor, "R T"]:
    """Each token is missing with this probability, but for the reset token; drawn where the generator is.

    `rows`: the rows of these tokens in a batch of `batch_size`. The mask is drawn for the whole batch, so that ranks draw what a single
    process draws, and their generators stay in the same state.
    """
    size = tokens.shape[0] if batch_size is None else batch_size
    keys = torch.rand(size, tokens.shape[1], generator=generator, device=generator.device)
    own = keys if rows is None else keys[rows.start : rows.stop]
    missing = own.to(tokens.device) < rate
    return missing if reset_token is None else missing & (tokens != reset_token)


def without(tables: AnyTables, batch: Batch, missing: Bool[Tensor, "B T"]) -> tuple[AnyTables, Batch]:
    """Tables and a batch to `score` instead: log p of the tokens that are there, and of the blocks of those that are missing.

    The belief after the batch is that of the tables; its token may be none of theirs, where the last one is missing.

    Args:
        tables: The tables, over blocks, of emissions that are normalised over the words of a block. `WindowTables` are read once, for
            all of the batch.
        batch: The tokens, those that are missing included: they tell the block.
        missing: Where tokens are missing; never at the reset token.
    """
    if isinstance(tables, WindowTables):
        return replace(tables, emissions_of=_masked(tables, missing)), batch
    support = tables.support
    # One extra word for each block, "some word of this block", behind the vocabulary: code that indexes tables by token needs no change.
    groups = torch.arange(support.num_groups, device=tables.device)
    of_block = _log_some_word(tables, support)
    words = Support(
        torch.cat([support.group_of_word, groups]), support.states_of_group, support.num_states, support.partition
    )
    tokens = torch.where(missing, support.num_words + support.group_of_word[batch.tokens], batch.tokens)
    log_emission = torch.cat([tables.log_emission, of_block])
    return replace(tables, support=words, log_emission=log_emission), replace(batch, tokens=tokens)


def _log_some_word(tables: Tables, support: Support) -> Float[Tensor, "G K"]:
    """log of the sum over the words of a block, but for the reset token, of p(x | z)."""
    certain = tables.log_emission.new_zeros(support.num_groups, support.states_per_word)
    if tables.reset_token is None:
        return certain
    # Indexed by a Python integer: an index on the device would need a host-device synchronisation.
    log_reset = tables.log_emission[tables.reset_token]
    group = support.group_of_word[tables.reset_token : tables.reset_token + 1]
    return certain.index_copy(0, group, _log_one_minus(log_reset)[None])


def _masked(tables: WindowTables, missing: Bool[Tensor, "B T"]) -> Callable[[Tensor], Tensor]:
    def emissions_of(tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T K"]:
        read = tokens
        if tables.reset_token is not None:
            # One row more, for its own emission.
            row = torch.full_like(tokens[:1], tables.reset_token)
            read = torch.cat([tokens, row])
        found = tables.emissions_of(read)
        own = found[: tokens.shape[0]]
        instead = torch.zeros_like(own[0, 0])
        if tables.reset_token is not None:
            instead = _log_one_minus(found[-1, 0])
        return torch.where(missing[..., None], instead, own)

    return emissions_of


def _log_one_minus(log_probs: Float[Tensor, " K"]) -> Float[Tensor, " K"]:
    """log(1 - p), clamped at the log of the rounding error. If a block has no other word the value is not read, but its gradient must
    not be NaN."""
    return (-torch.expm1(log_probs.clamp(max=-torch.finfo(log_probs.dtype).eps))).log()
