"""Models: trainable modules that make tables. Presets named as in the papers."""

from __future__ import annotations

from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from vlhmm.memory import require_memory
from vlhmm.models.dropout import ColumnMask, StateSubset, draw_columns, draw_kept
from vlhmm.models.growth import split_blocks, split_states
from vlhmm.models.model import Model
from vlhmm.models.settings import ModelSettings
from vlhmm.models.transfer import body_settings, load_body, set_state_embeddings, set_word_embeddings, split_frozen
from vlhmm.models.window import Window
from vlhmm.support import Support, blocked_support

__all__ = [
    "ColumnMask",
    "Model",
    "ModelSettings",
    "Reset",
    "StateSubset",
    "Window",
    "WordBlocks",
    "body_settings",
    "build",
    "build_blocked",
    "draw_columns",
    "draw_kept",
    "linear_hmm",
    "load_body",
    "neural_hmm",
    "scalar_hmm",
    "set_state_embeddings",
    "set_word_embeddings",
    "split_blocks",
    "split_frozen",
    "split_states",
]

Reset = Literal["eos", "carry"]
"""eos: after an EOS the state is drawn from the start distribution; carry: from the EOS's own transition."""


@runtime_checkable
class WordBlocks(Protocol):
    """Words in blocks, as `vlhmm.cluster.Blocks` has them."""

    @property
    def block_of_word(self) -> NDArray[np.int64]: ...

    @property
    def num_blocks(self) -> int: ...


def neural_hmm(
    blocks: WordBlocks,
    states_per_block: int = 256,
    dim: int = 256,
    *,
    transition: Literal["softmax", "block-factored", "low-rank"] = "softmax",
    eos_id: int | None = None,
    reset: Reset = "carry",
    generator: torch.Generator | None = None,
    **settings: Any,
) -> Model:
    """Make the VL-HMM of Chiu & Rush (2020): residual networks of state embeddings.

    Args:
        blocks: Words in blocks; each block has its own states.
        states_per_block: K, the states that can emit a word.
        dim: Width of embeddings and networks.
        transition: "softmax" over all states, or "block-factored": over blocks, then over the states of a block.
        eos_id: The EOS token; needed for `reset="eos"`.
        reset: "eos": after an EOS the state is drawn from the start distribution; "carry": from the transition.
        generator: Random numbers of the initialisation; None: seed 0.
        **settings: Other fields of `ModelSettings`.

    Returns:
        The model, on the CPU.

    Raises:
        ValueError: A setting is unknown or out of range, or the model does not fit in memory.

    Example:
        >>> import numpy as np
        >>> blocks = vlhmm.Blocks(np.array([0, 0, 1, 1, 1]), num_blocks=2)
        >>> model = vlhmm.neural_hmm(blocks, states_per_block=4, dim=8)
        >>> model.support.num_states, model.num_parameters
        (8, 598)
    """
    return build_blocked(
        _settings("neural", settings, states_per_block=states_per_block, dim=dim, transition=transition),
        blocks,
        eos_id=eos_id,
        reset=reset,
        generator=generator,
    )


def linear_hmm(
    blocks: WordBlocks,
    states_per_block: int = 256,
    dim: int = 256,
    *,
    transition: Literal["softmax", "block-factored", "low-rank"] = "softmax",
    eos_id: int | None = None,
    reset: Reset = "carry",
    generator: torch.Generator | None = None,
    **settings: Any,
) -> Model:
    """Make a model with low-rank logits: products of embeddings, without networks.

    Args:
        blocks: Words in blocks; each block has its own states.
        states_per_block: K, the states that can emit a word.
        dim: Width of the embeddings, the rank.
        transition: "softmax" over all states, or "block-factored": over blocks, then over the states of a block.
        eos_id: The EOS token; needed for `reset="eos"`.
        reset: "eos": after an EOS the state is drawn from the start distribution; "carry": from the transition.
        generator: Random numbers of the initialisation; None: seed 0.
        **settings: Other fields of `ModelSettings`. `embeddings` is "split" unless given.

    Returns:
        The model, on the CPU.

    Raises:
        ValueError: A setting is unknown or out of range, or the model does not fit in memory.

    Example:
        >>> import numpy as np
        >>> blocks = vlhmm.Blocks(np.array([0, 0, 1, 1, 1]), num_blocks=2)
        >>> vlhmm.linear_hmm(blocks, states_per_block=4, dim=8).num_parameters
        246
    """
    settings = {"embeddings": "split", **settings}
    return build_blocked(
        _settings("linear", settings, states_per_block=states_per_block, dim=dim, transition=transition),
        blocks,
        eos_id=eos_id,
        reset=reset,
        generator=generator,
    )


def scalar_hmm(
    blocks: WordBlocks,
    states_per_block: int = 256,
    *,
    eos_id: int | None = None,
    reset: Reset = "carry",
    generator: torch.Generator | None = None,
    **settings: Any,
) -> Model:
    """Make a model with a free logit for every entry of start, transition and emission: Z^2 parameters.

    Args:
        blocks: Words in blocks; each block has its own states.
        states_per_block: K, the states that can emit a word.
        eos_id: The EOS token; needed for `reset="eos"`.
        reset: "eos": after an EOS the state is drawn from the start distribution; "carry": from the transition.
        generator: Random numbers of the initialisation; None: seed 0.
        **settings: Other fields of `ModelSettings`.

    Returns:
        The model, on the CPU.

    Raises:
        ValueError: A setting is unknown or out of range, or the model does not fit in memory.

    Example:
        >>> import numpy as np
        >>> blocks = vlhmm.Blocks(np.array([0, 0, 1, 1, 1]), num_blocks=2)
        >>> vlhmm.scalar_hmm(blocks, states_per_block=4).num_parameters  # 8 + 8 x 8 + 5 x 4
        92
    """
    return build_blocked(
        _settings("scalar", settings, states_per_block=states_per_block, transition="table"),
        blocks,
        eos_id=eos_id,
        reset=reset,
        generator=generator,
    )


def build_blocked(
    settings: ModelSettings,
    blocks: WordBlocks,
    *,
    eos_id: int | None = None,
    reset: Reset = "carry",
    generator: torch.Generator | None = None,
) -> Model:
    """The model of `settings` over words in blocks, each with states of its own."""
    if reset not in ("eos", "carry"):
        raise ValueError(f'reset is {reset!r}; known are: "eos", "carry"')
    if reset == "eos" and eos_id is None:
        raise ValueError('reset is "eos", but eos_id is None: name the EOS token, or carry the state over it')
    block_of_word = torch.as_tensor(np.asarray(blocks.block_of_word, dtype=np.int64))
    num_states = blocks.num_blocks * settings.states_per_block
    # The least a model has of each state: its number, and an embedding where there are any.
    width = 0 if settings.parameterization == "scalar" else settings.dim
    require_memory(
        num_states * (8 + width * torch.get_default_dtype().itemsize),
        f"a model of {num_states:,} states of width {width:,}",
        "make states_per_block, num_blocks or dim smaller",
        block_of_word.device,
    )
    support = blocked_support(block_of_word, blocks.num_blocks, settings.states_per_block)
    return build(settings, support, eos_id if reset == "eos" else None, generator)


def build(
    settings: ModelSettings,
    support: Support,
    reset_token: int | None = None,
    generator: torch.Generator | None = None,
) -> Model:
    """The model of `settings` over any support. Without a generator: seed 0."""
    return Model(settings, support, reset_token, generator or torch.Generator().manual_seed(0))


def _settings(parameterization: str, given: dict[str, Any], **fixed: Any) -> ModelSettings:
    return ModelSettings.from_dict({**given, "parameterization": parameterization, **fixed})
