"""A training step by the method of Chiu & Rush in eager PyTorch: every table whole, log space, the gradient by autograd.

In float32, on a GPU with tf32 products, it is the peer of the training step; in float64 it is the truth.
"""

from __future__ import annotations

import copy
from itertools import cycle

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bench.ours import STEPS_CHECKED, StepInputs, first_steps
from bench.workloads import Answer, Timed
from vlhmm.models import Model, StateSubset
from vlhmm.models.heads import BlockFactoredHead, FactoredEmission, SoftmaxHead
from vlhmm.precision import Numerics, float32_products

NAME = "the original's method, eager"


class EagerTraining:
    """Only the networks are shared with the package: what they feed is written out here."""

    def __init__(self, inputs: StepInputs, dtype: torch.dtype, whole_tables: bool = True) -> None:
        self.whole_tables = whole_tables
        self.model = copy.deepcopy(inputs.model).to(dtype)
        # The networks as in our own training.
        self.numerics = Numerics.training(self.model.settings.precision)
        settings = inputs.settings
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
        )
        self.previous: tuple[StateSubset, Tensor, Tensor] | None = None

    def step(self, tokens: Tensor, kept: StateSubset) -> float:
        model = self.model
        states = kept.states.flatten()
        features = model.encoder.features(states, numerics=self.numerics)
        num_blocks, per_block = kept.states.shape
        block = model.group_of_word[tokens]
        log_emission = _log_emission(model, features.emit, per_block)
        emitted = log_emission.view(num_blocks, per_block, -1)[block, :, tokens]
        tiles = self._log_tiles(features.out, features.into, num_blocks, block[:, :-1], block[:, 1:])
        if self.previous is None:
            log_start = model.start(states, features.start, None).view(num_blocks, per_block)
            message = log_start[block[:, 0]]
        else:
            before, last_block, log_belief = self.previous
            out = model.encoder.out(before.states.flatten(), self.numerics)
            entering = self._log_tiles(out, features.into, num_blocks, last_block, block[:, 0])
            message = (log_belief[:, :, None] + entering).logsumexp(1)
        message = _last_message(message, tiles, emitted)
        log_prob = message.logsumexp(1)
        loss = -log_prob.sum() / tokens.numel()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.previous = kept, block[:, -1], (message - log_prob[:, None]).detach()
        return float(loss.detach())

    def _log_tiles(
        self,
        out: Float[Tensor, "N H"],
        into: Float[Tensor, "Y H"],
        num_blocks: int,
        left: Int[Tensor, "*positions"],
        entered: Int[Tensor, "*positions"],
    ) -> Float[Tensor, "*positions K K"]:
        """log p(z' | z) from the states of a block to those of another."""
        head = self.model.transition
        if self.whole_tables or not isinstance(head, BlockFactoredHead):
            log_transition = _log_transition(self.model, out, into, num_blocks)
            return log_transition.view(num_blocks, -1, num_blocks, into.shape[0] // num_blocks)[left, :, entered]
        out, into = out.view(num_blocks, -1, out.shape[1]), into.view(num_blocks, -1, into.shape[1])
        within = ((out[left] * head.out_scale) @ into[entered].mT).log_softmax(-1)
        log_block: Tensor = head.block(out).log_softmax(-1)
        return log_block[left, :, entered][..., None] + within


@torch.no_grad()
def log_probs(model: Model, tokens: Int[Tensor, "B T"]) -> Float[Tensor, " B"]:
    """log p of each sequence, begun from the start distribution, with all states, in float64."""
    model = copy.deepcopy(model).double()
    states = model.all_states().states
    features = model.encoder.features(states.flatten())
    num_blocks, per_block = states.shape
    block = model.group_of_word[tokens]
    log_start = model.start(states.flatten(), features.start, None).view(num_blocks, per_block)
    log_transition = _log_transition(model, features.out, features.into, num_blocks)
    tiles = log_transition.view(num_blocks, per_block, num_blocks, per_block)[block[:, :-1], :, block[:, 1:]]
    log_emission = _log_emission(model, features.emit, per_block).view(num_blocks, per_block, -1)
    return _last_message(log_start[block[:, 0]], tiles, log_emission[block, :, tokens]).logsumexp(1)


def _last_message(
    message: Float[Tensor, "B K"], tiles: Float[Tensor, "B T-1 K K"], emitted: Float[Tensor, "B T K"]
) -> Float[Tensor, "B K"]:
    """log p(x, z_T), from what the states of position 0 are entered with."""
    message = message + emitted[:, 0]
    for t in range(1, emitted.shape[1]):
        message = (message[:, :, None] + tiles[:, t - 1]).logsumexp(1) + emitted[:, t]
    return message


def _log_transition(
    model: Model, out: Float[Tensor, "N H"], into: Float[Tensor, "Y H"], num_blocks: int
) -> Float[Tensor, "N Y"]:
    head = model.transition
    assert isinstance(head, SoftmaxHead | BlockFactoredHead)
    logits = (out * head.out_scale) @ into.T
    if isinstance(head, SoftmaxHead):
        return logits.log_softmax(1)
    log_block: Tensor = head.block(out).log_softmax(1)
    within = logits.view(out.shape[0], num_blocks, -1).log_softmax(2)
    return (log_block[:, :, None] + within).flatten(1)


def _log_emission(model: Model, emit: Float[Tensor, "N H"], per_block: int) -> Float[Tensor, "N X"]:
    assert isinstance(model.emission, FactoredEmission)
    block_of_state = torch.arange(emit.shape[0], device=emit.device) // per_block
    foreign = block_of_state[:, None] != model.group_of_word
    logits: Tensor = model.emission.words(emit).masked_fill(foreign, -torch.inf)
    return logits.log_softmax(1)


def losses(inputs: StepInputs, kept: list[StateSubset], dtype: torch.dtype) -> Float[Tensor, " S"]:
    """The losses of the first steps, with the states that each keeps given."""
    # The full transition table of 2^18 states would need 300 GB.
    training = EagerTraining(inputs, dtype, whole_tables=False)
    steps = zip(inputs.windows[:STEPS_CHECKED], kept, strict=True)
    return torch.tensor([training.step(window, states) for window, states in steps], dtype=torch.float64)


def timed_eager_step(inputs: StepInputs) -> Timed:
    training, device = EagerTraining(inputs, torch.float32), inputs.model.group_of_word.device
    generator = torch.Generator().manual_seed(inputs.settings.seed)
    windows = cycle(inputs.windows)

    def step() -> float:
        kept = training.model.kept_after_dropout(inputs.settings.state_dropout, generator)
        with float32_products("tf32", device):
            return training.step(next(windows), training.model.all_states() if kept is None else kept)

    def answer(_: object) -> Answer:
        kept = first_steps(inputs)[1]
        with float32_products("tf32", device):
            return {"losses": losses(inputs, kept, torch.float32)}

    return Timed(step, answer)


def step_error(inputs: StepInputs, answer: Answer) -> float:
    """The worst relative error of the first losses against float64."""
    expected = losses(inputs, first_steps(inputs)[1], torch.float64)
    found = ((answer["losses"] - expected).abs() / expected.abs()).max()
    return float(found) if bool(found.isfinite()) else float("inf")
