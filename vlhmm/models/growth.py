"""Larger models that begin as good as a trained one: each state, or the words of each block, in several parts."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.models.heads import ScalarStart, TableHead, UnmaskedEmission
from vlhmm.models.model import Model
from vlhmm.support import Support, blocked_support

AXES = {
    "encoder.embedding.weight": (0,),
    "encoder.out_embedding.weight": (0,),
    "encoder.emit_embedding.weight": (0,),
}
"""Axes of states, of parameters that mean the same in every model that has them."""


@torch.no_grad()
def split_states(model: Model, parts: int, *, noise: float = 0.0, generator: torch.Generator | None = None) -> Model:
    r"""Make a model with every state in several parts: A'[(z, i), (z', j)] = A[z, z'] / parts.

    Each part has the embedding, or the free logits, of its state; whatever is normalised over states gives each part its share.
    Every text has the probability that it had before, up to rounding. Parts that are equal have equal gradients: what tells them
    apart is state dropout, which leaves out one and not the other, or noise.

    Args:
        model: The model, which stays as it is.
        parts: Number of states in place of each.
        noise: Standard deviation of what is added to each part, as a multiple of that of the parameter; 0: nothing, and the
            likelihood is preserved.
        generator: Random numbers of the noise; None: seed 0.

    Returns:
        The larger model, on the device of `model`.

    Raises:
        ValueError: `parts` or `noise` is out of range, or a network of the model reads all states together.

    Example:
        >>> import numpy as np
        >>> from vlhmm.models import split_states
        >>> model = vlhmm.neural_hmm(vlhmm.Blocks(np.array([0, 0, 1]), num_blocks=2), states_per_block=4, dim=8)
        >>> larger = split_states(model, 2)
        >>> larger.support.num_states
        16
        >>> text = [[0, 2, 1, 1]]
        >>> torch.allclose(vlhmm.HMM(larger.tables()).log_prob(text), vlhmm.HMM(model.tables()).log_prob(text))
        True
    """
    _check(model, parts, noise)
    if model.settings.parameterization == "transformer":
        raise ValueError(
            'the decoder of parameterization "transformer" reads the embeddings of all states as one sequence, so parts of a state '
            "would change the features of all: split a model of another parameterization"
        )
    support = model.support
    first = support.states_of_group[..., None] * parts
    states = (first + torch.arange(parts, device=first.device)).flatten(1)
    settings = replace(model.settings, states_per_block=model.settings.states_per_block * parts)
    grown = Support(support.group_of_word, states, support.num_states * parts, support.partition)
    taken = {
        name: _repeated(tensor, _state_axes(model).get(name, ()), parts) for name, tensor in _weights(model).items()
    }
    return _made(model, settings.to_dict(), grown, _disturbed(taken, _state_axes(model), noise, generator))


@torch.no_grad()
def split_blocks(
    model: Model,
    parts: int,
    *,
    part_of_word: Int[Tensor, " X"] | None = None,
    noise: float = 0.0,
    generator: torch.Generator | None = None,
) -> Model:
    r"""Make a model with the words of every block in several blocks, each with a copy of the block's states.

    The copy of state z for the words W has emission p(x | z) / p(W | z) and is entered with probability A[., z] p(W | z), so
    every text has the probability that it had before, up to rounding. That takes a transition and a start distribution whose
    every entry is free: features of states cannot take p(W | z) in.

    Args:
        model: The model, which stays as it is.
        parts: Number of blocks in place of each; a block of fewer words becomes as many as it has words.
        part_of_word: Which part of its block each word goes to, 0 to parts - 1; None: the words of a block are dealt out in turn.
        noise: Standard deviation of what is added to each part, as a multiple of that of the parameter; 0: nothing, and the
            likelihood is preserved.
        generator: Random numbers of the noise; None: seed 0.

    Returns:
        The larger model, on the device of `model`.

    Raises:
        ValueError: `parts`, `noise` or `part_of_word` is out of range, or the model's start, transition or emission cannot take
            the shares of the parts.

    Example:
        >>> import numpy as np
        >>> from vlhmm.models import split_blocks
        >>> model = vlhmm.scalar_hmm(vlhmm.Blocks(np.array([0, 0, 0, 1]), num_blocks=2), states_per_block=2)
        >>> larger = split_blocks(model, 2)
        >>> larger.support.num_groups, larger.support.num_states
        (3, 6)
        >>> text = [[0, 2, 1, 3]]
        >>> torch.allclose(vlhmm.HMM(larger.tables()).log_prob(text), vlhmm.HMM(model.tables()).log_prob(text))
        True
    """
    _check(model, parts, noise)
    _check_blocks_can_split(model)
    support = model.support
    old_of_new, block_of_word = _parts_of_blocks(support, parts, part_of_word)
    states_per_block = support.states_per_word
    grown = blocked_support(block_of_word, len(old_of_new), states_per_block)
    log_share = _log_shares(model, block_of_word, len(old_of_new))
    old_states = support.states_of_group[old_of_new].flatten()
    axes = _state_axes(model)
    taken = {}
    for name, tensor in _weights(model).items():
        # Columns of the free emission are the states of a block, whose number does not change.
        own = () if name == "emission.logits" else axes.get(name, ())
        for axis in own:
            tensor = tensor.index_select(axis, old_states)
        if name == "encoder.block_embedding.weight":
            tensor = tensor.index_select(0, old_of_new)
        if name in ("start.logits", "transition.logits"):
            tensor = tensor + log_share.flatten().to(tensor)
        elif name == "emission.logits":
            # A copy with emission probability 0 for all its words is never entered; a softmax over -inf alone would be NaN.
            tensor = tensor.masked_fill(log_share.isneginf()[block_of_word], 0.0)
        taken[name] = tensor
    return _made(model, model.settings.to_dict(), grown, _disturbed(taken, axes, noise, generator))


def _check(model: Model, parts: int, noise: float) -> None:
    if parts < 2:
        raise ValueError(f"{parts} parts: at least 2 are needed to split anything")
    if not 0 <= noise < float("inf"):
        raise ValueError(f"noise is {noise}, but must be finite and at least 0")


def _check_blocks_can_split(model: Model) -> None:
    settings = model.settings
    remedy = "split states, or a model with free tables (preset scalar)"
    if not isinstance(model.transition, TableHead):
        raise ValueError(
            f"blocks of a model with transition {settings.transition!r} cannot be split at equal likelihood: the features of a "
            f"state would have to take in how its words are shared between the parts; {remedy}"
        )
    if not isinstance(model.start, ScalarStart):
        raise ValueError(
            f"blocks of a model with start {settings.start!r} cannot be split at equal likelihood: its start distribution is made "
            f'of features; use start "free", or {remedy}'
        )
    if isinstance(model.emission, UnmaskedEmission):
        raise ValueError(
            'blocks of a model with emission "unmasked" cannot be split at equal likelihood: each state emits words of other '
            'blocks, whose probability is lost; use emission "blocked"'
        )
    if settings.emission_floor:
        raise ValueError(
            f"blocks of a model with emission_floor {settings.emission_floor:g} cannot be split at equal likelihood: the floor is "
            "even over the words of a block; use emission_floor 0"
        )
    if not model.support.partition:
        raise ValueError("the words of this model are in no blocks that could be split: split states")


def _state_axes(model: Model) -> dict[str, tuple[int, ...]]:
    """The axes of states of each parameter that has any."""
    axes: dict[str, tuple[int, ...]] = dict(AXES)
    for name in ("start", "transition", "emission"):
        axes |= {f"{name}.{parameter}": of_states for parameter, of_states in getattr(model, name).state_axes.items()}
    return axes


def _weights(model: Model) -> dict[str, Tensor]:
    """All trainable parameters; the support differs between the models."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _repeated(tensor: Tensor, axes: tuple[int, ...], parts: int) -> Tensor:
    """The parts of a state beside each other."""
    for axis in axes:
        tensor = tensor.repeat_interleave(parts, dim=axis)
    return tensor


def _disturbed(
    tensors: dict[str, Tensor], axes: dict[str, tuple[int, ...]], noise: float, generator: torch.Generator | None
) -> dict[str, Tensor]:
    if not noise:
        return tensors
    generator = generator or torch.Generator().manual_seed(0)
    disturbed = dict(tensors)
    for name in sorted(axes.keys() & tensors.keys()):
        tensor = tensors[name]
        # A logit of -inf stays one.
        spread = tensor[tensor.isfinite()].std(correction=0)
        drawn = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype, device=generator.device)
        disturbed[name] = tensor + noise * spread * drawn.to(tensor.device)
    return disturbed


def _made(model: Model, settings: dict[str, object], support: Support, weights: dict[str, Tensor]) -> Model:
    device = support.group_of_word.device
    made = Model(type(model.settings).from_dict(settings), support, model.reset_token, torch.Generator().manual_seed(0))
    made.to(device=device, dtype=next(iter(weights.values())).dtype)
    own = dict(made.named_parameters())
    assert own.keys() == weights.keys()
    for name, parameter in own.items():
        parameter.copy_(weights[name])
    return made


def _parts_of_blocks(
    support: Support, parts: int, part_of_word: Int[Tensor, " X"] | None
) -> tuple[Int[Tensor, " M"], Int[Tensor, " X"]]:
    """The old block of each new one, parts of a block beside each other; the new block of each word."""
    old = support.group_of_word
    if part_of_word is None:
        part_of_word = torch.empty_like(old)
        for block in range(support.num_groups):
            words = (old == block).nonzero()[:, 0]
            part_of_word[words] = torch.arange(len(words), device=old.device) % parts
    elif part_of_word.shape != old.shape or not bool(((part_of_word >= 0) & (part_of_word < parts)).all()):
        raise ValueError(
            f"part_of_word must give {len(old)} words a part from 0 to {parts - 1}; it has shape {tuple(part_of_word.shape)}"
        )
    # A part without words is no block; a block without words stays one.
    cells = torch.cat([old * parts + part_of_word.to(old), _without_words(support) * parts])
    used, numbers = cells.unique(return_inverse=True)
    return used // parts, numbers[: len(old)]


def _without_words(support: Support) -> Int[Tensor, " n"]:
    words = torch.bincount(support.group_of_word, minlength=support.num_groups)
    return (words == 0).nonzero()[:, 0]


def _log_shares(model: Model, block_of_word: Int[Tensor, " X"], num_blocks: int) -> Float[Tensor, "M K"]:
    """log p(the words of a new block | state), for the states of its old one."""
    log_probs = model.tables().log_emission.double()
    block = block_of_word[:, None].expand_as(log_probs)
    # log-sum-exp relative to the block's maximum: the probabilities of all words of a block may underflow together.
    peaks = log_probs.new_full((num_blocks, log_probs.shape[1]), -torch.inf).scatter_reduce(0, block, log_probs, "amax")
    shift = torch.where(peaks.isinf(), 0.0, peaks)
    sums = torch.zeros_like(peaks).scatter_add(0, block, (log_probs - shift.gather(0, block)).exp())
    # States of a block without words are never entered anyway.
    without = (torch.bincount(block_of_word, minlength=num_blocks) == 0)[:, None]
    return torch.where(without, 0.0, sums.log() + shift)
