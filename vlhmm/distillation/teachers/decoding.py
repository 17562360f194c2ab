"""Texts that a causal language model of transformers writes, many side by side, a token a step.

`write_growing` takes any model: the key-value cache grows, and finished rows are removed from the batch. `StaticCacheGenerator` uses
static buffers (fixed sizes and addresses), so that a step on a GPU is one CUDA graph. Both draw the same tokens from the same generator.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.capture import CaptureError, Graphed

CHECK_STEPS = 8
"""Every so many steps it is asked which texts have ended."""
SLOT_MULTIPLE = 16
"""Attention reads rows of a mask without copying them if they are so aligned."""
ONE_QUERY_ATTENTION = "vlhmm_one_query"
"""The name under which transformers knows `one_query_attention`."""


class BrokenModelError(ValueError):
    """A model whose probabilities are no numbers."""


@dataclass(frozen=True)
class Drawn:
    """Texts that a teacher wrote, one a row."""

    tokens: Int[Tensor, "B T"]
    """0 past the length."""
    lengths: Int[Tensor, " B"]
    """EOS counted, where the text reached it."""
    log_probs: Float[Tensor, " B"]
    """log p(text | prompt) by the distribution it was drawn from."""


@dataclass(frozen=True)
class SamplingConfig:
    """How texts are drawn, whatever the prompts."""

    max_tokens: int
    vocab_size: int
    """An output layer may be wider; what is above is never drawn."""
    eos: int | None
    temperature: float


@dataclass(frozen=True)
class Prompts:
    """Padded on the left."""

    ids: Int[Tensor, "B W"]
    attended: Int[Tensor, "B W"]
    """1 where there is a token, else 0."""

    @property
    def positions(self) -> Int[Tensor, "B W"]:
        return (self.attended.cumsum(1) - 1).clamp(min=0)


@torch.no_grad()
def write_growing(model: Any, prompts: Prompts, sampling_config: SamplingConfig, generator: torch.Generator) -> Drawn:
    """One text for every prompt, with keys and values of the rows that are still being written."""
    from transformers import DynamicCache

    num, device = len(prompts.ids), prompts.ids.device
    tokens = torch.zeros(num, sampling_config.max_tokens, dtype=torch.int64, device=device)
    lengths = torch.zeros(num, dtype=torch.int64, device=device)
    log_probs = torch.zeros(num, dtype=torch.float64, device=device)
    # Rows of the results that the model still reads.
    rows = torch.arange(num, device=device)
    writing = torch.ones(num, dtype=torch.bool, device=device)
    cache = DynamicCache(config=model.config)
    read, attended, positions = prompts.ids, prompts.attended, prompts.positions
    for step in range(sampling_config.max_tokens):
        logits = _last_logits(model, read, attended, positions, cache)
        drawn, chosen_log_probs = draw_tokens(
            logits, sampling_config, arrivals_of(num, sampling_config, generator, device, rows)
        )
        tokens[rows, step] = torch.where(writing, drawn, 0)
        log_probs[rows] += torch.where(writing, chosen_log_probs, 0.0)
        lengths[rows] += writing
        if step == 0:
            require_numbers(log_probs)
        if sampling_config.eos is not None:
            writing = writing & (drawn != sampling_config.eos)
            if (step + 1) % CHECK_STEPS == 0:
                kept = writing.nonzero()[:, 0]
                if not len(kept):
                    break
                if len(kept) < len(rows):
                    cache.batch_select_indices(kept)
                    rows, drawn, attended, positions = rows[kept], drawn[kept], attended[kept], positions[kept]
                    writing = writing[kept]
        read = drawn[:, None]
        attended = torch.cat([attended, attended.new_ones(len(rows), 1)], dim=1)
        positions = positions[:, -1:] + 1
    require_numbers(log_probs)
    return Drawn(tokens, lengths, log_probs)


class StaticCacheGenerator:
    """Writes `num` texts at a time, after prompts of at most `width` tokens.

    What is captured for the first batch serves all that follow.
    """

    # `no_grad`, not inference mode: a first capture in inference mode makes the default generator unusable for graphs captured outside of it.
    @torch.no_grad()
    def __init__(self, model: Any, num: int, width: int, sampling_config: SamplingConfig) -> None:
        from transformers import StaticCache

        device = model.device
        slots = slots_of(width, sampling_config.max_tokens)
        self.num, self.width, self.sampling_config = num, slots - sampling_config.max_tokens, sampling_config
        self._model = model
        self._cache = StaticCache(config=model.config, max_cache_len=slots)
        self._read = torch.zeros(num, 1, dtype=torch.int64, device=device)
        self._positions = torch.zeros_like(self._read)
        # The additive attention mask: 0 where a key is read, else -inf.
        self._mask = torch.zeros(num, 1, 1, slots, dtype=model.dtype, device=device)
        self._slot = torch.zeros(1, dtype=torch.int64, device=device)
        """Where the keys of the token read next go."""
        self._count = torch.zeros(1, dtype=torch.int64, device=device)
        self._tokens = torch.zeros(num, sampling_config.max_tokens, dtype=torch.int64, device=device)
        self._lengths = torch.zeros(num, dtype=torch.int64, device=device)
        self._log_probs = torch.zeros(num, dtype=torch.float64, device=device)
        self._writing = torch.ones(num, dtype=torch.bool, device=device)
        # A CUDA graph is bound to the generator it was captured with.
        self._generator = torch.Generator(device)
        # Two eager steps: the first loads kernels, the second is monitored for host-device synchronisation.
        self._graphed = Graphed[None](device, eager_calls=2, generator=self._generator)

    def fits(self, prompts: Prompts) -> bool:
        return len(prompts.ids) == self.num and prompts.ids.shape[1] <= self.width

    @property
    def captured(self) -> bool:
        return self._graphed.has_graph()

    @torch.no_grad()
    def write(self, prompts: Prompts, generator: torch.Generator) -> Drawn:
        """One text for every prompt."""
        self._generator.set_state(generator.get_state())
        self._begin(prompts)
        require_numbers(self._log_probs)
        with one_query_attention_in(self._model):
            for count in range(1, self.sampling_config.max_tokens):
                if count % CHECK_STEPS == 0 and self.sampling_config.eos is not None and not bool(self._writing.any()):
                    break
                self._advance()
        generator.set_state(self._generator.get_state())
        require_numbers(self._log_probs)
        return Drawn(self._tokens.clone(), self._lengths.clone(), self._log_probs.clone())

    def _begin(self, prompts: Prompts) -> None:
        width = prompts.ids.shape[1]
        self._cache.reset()
        self._tokens.zero_()
        self._lengths.zero_()
        self._log_probs.zero_()
        self._writing.fill_(True)
        self._count.zero_()
        # `_record` increments them.
        self._slot.fill_(width - 1)
        self._positions.copy_(prompts.positions[:, -1:])
        self._mask.fill_(-math.inf)
        self._mask[:, 0, 0, :width].masked_fill_(prompts.attended.bool(), 0.0)
        self._record(_last_logits(self._model, prompts.ids, prompts.attended, prompts.positions, self._cache))

    def _advance(self) -> None:
        if self._graphed.enabled and self._graphed.eager_left() == 1:
            with _waits() as waits:
                self._graphed(self._step)
            if waits:
                self._give_up_graph(f"it waits for the device ({waits[0].message})")
            return
        try:
            self._graphed(self._step)
        except CaptureError as error:
            # A generator is unusable after a failed capture.
            state = self._generator.get_state()
            self._generator = torch.Generator(self._model.device)
            self._generator.set_state(state)
            self._give_up_graph(str(error).split("\n")[0])
            self._graphed(self._step)

    def _give_up_graph(self, reason: str) -> None:
        self._graphed.enabled = False
        warnings.warn(
            f"{type(self._model).__name__} cannot be captured as a CUDA graph, so drawing is slow: {reason}",
            stacklevel=2,
        )

    def _step(self) -> None:
        """Reads the token drawn last and draws the next."""
        self._mask.index_fill_(3, self._slot, 0.0)
        self._record(_last_logits(self._model, self._read, self._mask, self._positions, self._cache))

    def _record(self, logits: Float[Tensor, "B V"]) -> None:
        arrivals = arrivals_of(self.num, self.sampling_config, self._generator, logits.device)
        drawn, chosen_log_probs = draw_tokens(logits, self.sampling_config, arrivals)
        self._tokens.index_copy_(1, self._count, torch.where(self._writing, drawn, 0)[:, None])
        self._log_probs += torch.where(self._writing, chosen_log_probs, 0.0)
        self._lengths += self._writing
        if self.sampling_config.eos is not None:
            self._writing &= drawn != self.sampling_config.eos
        self._read.copy_(drawn[:, None])
        self._positions += 1
        self._slot += 1
        self._count += 1


def can_be_fixed(model: Any) -> bool:
    """Whether the model declares that it runs with static buffers, and has full attention only.

    Sliding-window attention or a recurrent state would need masks and buffers of their own.
    """
    from transformers import StaticCache
    from transformers.cache_utils import StaticLayer

    if not getattr(model, "_can_compile_fullgraph", False):
        return False
    layers = StaticCache(config=model.config, max_cache_len=1).layers
    # Earlier versions of transformers take the cache position from the host.
    return all(type(layer) is StaticLayer and hasattr(layer, "cumulative_length") for layer in layers)


def slots_of(width: int, max_tokens: int) -> int:
    """Keys of a row for prompts of that width."""
    return math.ceil((width + max_tokens) / SLOT_MULTIPLE) * SLOT_MULTIPLE


def bytes_per_row(model: Any, width: int, sampling_config: SamplingConfig) -> int:
    """What one text takes: keys and values, its prompt's widest layer, and logits with what is drawn from them, eagerly and
    again in a graph."""
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    keys_and_values = 2 * config.num_hidden_layers * heads * head_size * slots_of(width, sampling_config.max_tokens)
    widest_layer = 4 * width * (getattr(config, "intermediate_size", None) or 4 * config.hidden_size)
    float32, copies = 4, 2
    drawing = config.vocab_size * (model.dtype.itemsize + 3 * float32) * copies
    return int((keys_and_values + widest_layer) * model.dtype.itemsize + drawing + 8 * sampling_config.max_tokens)


def _last_logits(model: Any, read: Tensor, attended: Tensor, positions: Tensor, cache: Any) -> Float[Tensor, "B V"]:
    logits: Tensor = model(
        input_ids=read,
        attention_mask=attended,
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits[:, -1]
    return logits


def arrivals_of(
    num: int,
    sampling_config: SamplingConfig,
    generator: torch.Generator,
    device: torch.device,
    rows: Int[Tensor, " R"] | None = None,
) -> Float[Tensor, "R X"]:
    """Exponential random numbers (arrival times), drawn for all rows, so that those of a row do not depend on which others have ended."""
    arrivals = torch.empty(num, sampling_config.vocab_size, device=device).exponential_(generator=generator)
    return arrivals if rows is None or len(rows) == num else arrivals[rows]


def draw_tokens(
    logits: Float[Tensor, "R V"], sampling_config: SamplingConfig, arrivals: Float[Tensor, "R X"]
) -> tuple[Int[Tensor, " R"], Float[Tensor, " R"]]:
    """A token a row and its log-probability; `arrivals` is written over."""
    logits = logits[:, : sampling_config.vocab_size].float()
    probs = (logits if sampling_config.temperature == 1 else logits / sampling_config.temperature).softmax(dim=1)
    # The exponential race (Gumbel-max trick): with rates p the first arrival is token v with probability p_v. Unlike
    # `torch.multinomial` it has no limit on the number of words, and NaN causes no device-side assertion on a GPU.
    drawn = torch.div(probs, arrivals, out=arrivals).argmax(dim=1)
    return drawn, probs.gather(1, drawn[:, None])[:, 0].double().log()


def require_numbers(log_probs: Float[Tensor, " B"]) -> None:
    if not bool(log_probs.isfinite().all()):
        row = int((~log_probs.isfinite()).nonzero()[0, 0])
        raise BrokenModelError(
            f"the model gives a log-probability of {float(log_probs[row])} in row {row}: its weights are broken, or overflow in {log_probs.device.type} precision"
        )


def one_query_attention(
    module: Any,
    query: Float[Tensor, "B H 1 D"],
    key: Float[Tensor, "B G S D"],
    value: Float[Tensor, "B G S E"],
    attention_mask: Float[Tensor, "B 1 1 S"] | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Float[Tensor, "B 1 H E"], None]:
    """Attention of one position per row (decoding) with grouped queries: query heads that share a key head form its query axis.

    transformers expands keys and values to every query head instead, and so reads several times the memory.
    """
    unknown = [name for name in ("position_bias", "softcap") if options.get(name) is not None]
    if unknown:
        raise NotImplementedError(f"attention with {unknown[0]}")
    B, H, _, D = query.shape
    G = key.shape[1]
    mixed = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(B, G, H // G, D), key, value, attn_mask=attention_mask, scale=scaling
    )
    return mixed.reshape(B, 1, H, value.shape[-1]), None


@contextmanager
def one_query_attention_in(model: Any) -> Iterator[None]:
    """The model's attention is `one_query_attention` inside, if it is torch's outside."""
    from transformers import AttentionInterface

    before = model.config._attn_implementation
    if before != "sdpa" or not model._supports_attention_backend:
        yield
        return
    AttentionInterface.register(ONE_QUERY_ATTENTION, one_query_attention)
    model.set_attn_implementation(ONE_QUERY_ATTENTION)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def _waits() -> Iterator[list[warnings.WarningMessage]]:
    """Collects host-device synchronisations (CUDA sync debug mode). A capture that fails at one would make the generators unusable."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(before)
            found[:] = [warning for warning in found if "called a synchronizing" in str(warning.message)]
