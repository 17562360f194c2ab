"""One step of training: loss and gradients of a window, then the update; on a GPU two CUDA graphs. The loss is that of
p(x), or of p(x, z) where states z are given.

All that a step reads and writes lies in buffers of fixed size and place, so that the same code runs eagerly or as a captured
graph. Gradients and update are separate: `reduce_gradients` stands in between, where several ranks sum what each has found of
its rows of the batch.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.capture import Graphed
from vlhmm.distributed import ALONE, World, all_rows, any_rank, shard, sum_in_order
from vlhmm.inference.gather import Batch, Boundary
from vlhmm.inference.joint import path_log_probs
from vlhmm.inference.missing import draw_missing, without
from vlhmm.inference.score import can_be_captured, reads_positions, score
from vlhmm.models import Model, StateSubset, Window, split_frozen
from vlhmm.ops import parameter_update
from vlhmm.ops.clipping import clip_gradients
from vlhmm.precision import Numerics, network_products
from vlhmm.tables import Belief
from vlhmm.training.reduction import FlatGradients
from vlhmm.training.saved_state import part_of, restore_optimizer
from vlhmm.training.settings import TrainSettings
from vlhmm.training.sharding import SHARDED_FROM, OwnParts, require_fitting
from vlhmm.training.underflow import UnderflowWatch, in_capture, revived
from vlhmm.training.update import adam_by_kernels, move_averages


class Step:
    """The model with everything that changes at every step."""

    def __init__(self, model: Model, settings: TrainSettings, here: World = ALONE, local: bool = False) -> None:
        """`local`: ranks take steps of their own, until `average_ranks`."""
        _check_token_dropout(model, settings)
        self.model, self.settings, self._here = model, settings, here
        self._local = local and here.size > 1
        self.rows = shard(range(settings.batch_size), here)
        """Of the batch: those of this rank."""
        self._numerics = Numerics.training(model.settings.precision)
        device = model.group_of_word.device
        on_gpu = device.type == "cuda"
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        frozen, others = list[torch.nn.Parameter](), self.parameters
        if settings.freeze_embeddings > 0:
            frozen, others = split_frozen(model, settings.frozen)
        self._flat: FlatGradients | None = None
        self._parts: OwnParts | None = None
        if here.size > 1:
            # A step of its own needs the whole state.
            sharded = not self._local and sum(parameter.numel() for parameter in self.parameters) >= SHARDED_FROM
            require_fitting(self.parameters, here, bool(settings.ema), sharded)
            self._flat = FlatGradients(self.parameters, here)
            self._parts = OwnParts(others + frozen, here, self._flat.group) if sharded else None
        # A captured update reads its rate from memory, that of each group from a place of its own.
        rates = [
            torch.tensor(settings.learning_rate, device=device) if on_gpu else settings.learning_rate for _ in range(2)
        ]
        updated = [others, frozen] if self._parts is None else [self._parts.of(others), self._parts.of(frozen)]
        groups = [{"params": some, "lr": rate} for some, rate in zip(updated, rates, strict=True)]
        self.optimizer = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=rates[0],
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
            fused=True,
            capturable=on_gpu,
        )
        self.averaged = copy.deepcopy(model).requires_grad_(False) if settings.ema else model
        self._average_weight = torch.ones((), device=device)
        # Seeded alike on all ranks, which must keep the same states.
        self.generator = torch.Generator(device).manual_seed(settings.seed)
        self._tokens = torch.zeros(len(self.rows), settings.window, dtype=torch.int64, device=device)
        self._lengths = torch.full((len(self.rows),), settings.window, device=device)
        self.loss = torch.zeros((), dtype=self.parameters[0].dtype, device=device)
        """Of the last step, in nats per token."""
        if self._flat is not None and not self._local:
            self.loss = self._flat.loss
        self.gradient_norm = torch.zeros((), device=device)
        self.token_log_probs = self._zeros(len(self.rows), settings.window)
        scored = settings.window - settings.context
        self._num_tokens = scored * (len(self.rows) if self._local else settings.batch_size)
        """That are scored, of all ranks where what each finds is its part of a sum."""
        self._token_cotangent = torch.full_like(self.token_log_probs, -1 / self._num_tokens)
        """Of the loss."""
        self._token_cotangent[:, : settings.context] = 0.0
        self.static_shapes = False
        """Whether the last step can be captured in a graph: nothing of it waited for the device."""
        self.count = 0
        self.underflow = UnderflowWatch(device)
        self._last_loss = math.inf
        """That was read."""
        self._states: Tensor | None = None
        """Given ones, while steps maximize p(x, z): that of the last window's last token, then those of this window."""
        self._kept: Tensor | None
        self._belief: Belief
        # What the networks' products read, while they are launched or captured.
        launching = partial(network_products, model.settings.precision, device)
        self._gradients = Graphed[list[Tensor | None]](
            device, enabled=settings.graphs, generator=self.generator, launching=launching
        )
        # It reads the gradients that the other leaves in its memory, so it has memory of its own.
        self._update = Graphed[None](device, enabled=settings.graphs, eager_calls=0, launching=launching)
        self._begin_dropout(settings.state_dropout)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(*shape, dtype=self.parameters[0].dtype, device=self.loss.device)

    def _begin_dropout(self, dropout: float) -> None:
        """Buffers for as many states as this dropout leaves."""
        self._forget_graphs()
        self.dropout, device = dropout, self.loss.device
        first = self._draw(torch.Generator(device))
        self._kept = first.states if isinstance(first, StateSubset) else None
        states = self.model.support.states_per_word if self._kept is None else self._kept.shape[1]
        size = len(self.rows)
        self._belief = Belief(torch.zeros(size, dtype=torch.int64, device=device), self._zeros(size, states))

    def _forget_graphs(self) -> None:
        """What is captured from now on has other shapes, or another objective."""
        self._gradients.forget()
        self._update.forget()

    def set_dropout(self, dropout: float) -> None:
        """Another part of the states is left out from now on; the next window has to begin afresh."""
        if dropout != self.dropout:
            self._begin_dropout(dropout)

    def _draw(self, generator: torch.Generator, into: Tensor | None = None) -> Window:
        if self.settings.dropout == "columns":
            return self.model.columns_after_dropout(self.dropout, generator)
        return self.model.kept_after_dropout(self.dropout, generator, into)

    def __call__(
        self,
        tokens: Int[Tensor, "R T"],
        rate: float,
        fresh: bool,
        *,
        frozen: bool = False,
        label: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """One step on this rank's rows of a window; `fresh`: it begins from the start distribution instead of the last window's belief;
        `frozen`: the embeddings of `settings.frozen` stay as they are; `label`: gives every token (R, T) its state, and the
        step maximizes log p(x, z) instead of log p(x)."""
        self._tokens.copy_(pinned(tokens, self._tokens.device), non_blocking=True)
        if (label is None) != (self._states is None):
            self._change_objective()
        if label is not None and self._states is not None:
            self._states[:, 0] = self._states[:, -1]
            self._states[:, 1:] = label(self._tokens)
        for number, group in enumerate(self.optimizer.param_groups):
            # At rate 0 weight decay leaves them alone too.
            group_rate = 0.0 if number == 1 and frozen else rate
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(group_rate)
            else:
                group["lr"] = group_rate
        if self.settings.ema:
            # Early on the average is short, so that it does not remember the random start.
            decay = min(self.settings.ema, (2 + self.count) / (11 + self.count))
            self._average_weight.fill_(1 - decay)
        self._run(fresh)
        self.count += 1

    def _run(self, fresh: bool) -> None:
        """Gradients and update. The steady step is two graphs, where its shapes allow; windows that begin a stream anew, once an
        epoch, run eagerly."""

        def gradients() -> list[Tensor | None]:
            self.make_gradients(fresh)
            made = [parameter.grad for parameter in self.parameters]
            return made if self._flat is None or self._local else self._flat.copy(made)

        steady = fresh == (self.settings.windows == "independent")
        grads = self._gradients(gradients, eagerly=not steady or self.underflow.eagerly)
        if steady and not self.static_shapes:
            # As this step has found: a fresh window may be static where one that goes on from another is not.
            self._forget_graphs()
        # An eager step has made gradients elsewhere.
        for parameter, grad in zip(self.parameters, grads, strict=True):
            parameter.grad = grad
        self.reduce_gradients()
        self._update(self.update, eagerly=not self._gradients.replayed)
        if self._parts is not None:
            self._parts.share(f"step {self.count + 1}")
            move_averages(self._averages(), self._average_weight)

    def _change_objective(self) -> None:
        """From p(x) to p(x, z) or back; a graph holds one of them."""
        size, window = self._tokens.shape
        self._states = self._tokens.new_zeros(size, window + 1) if self._states is None else None
        self._forget_graphs()

    def make_gradients(self, fresh: bool) -> None:
        """The gradient of minus log p(window | what came before) per token, into the parameters' `grad`."""
        if self._states is not None:
            self._backward(self._joint_log_probs(fresh, self._states))
            # What p(x) goes on from: the last token, and nothing known of its state, which dropout may have left out.
            self._belief.token.copy_(self._tokens[:, -1])
            self._belief.log_probs.fill_(-math.log(self._belief.log_probs.shape[1]))
            return
        # Of the states kept for the last window only those that the beliefs speak of are left.
        previous = None
        if not fresh and self._kept is not None:
            previous = StateSubset(self._kept[self.model.group_of_word[self._belief.token]])
        window = self._draw(self.generator, self._kept)
        # A window that goes on from a belief and never resets asks nothing of the start.
        begins = fresh or self.model.reset_token is not None
        batch = Batch(self._tokens, self._lengths, full=True)
        # Of all states: with some left out it fits all the more.
        alone = reads_positions(self.model.support, self.loss.dtype, batch)
        make = self.model.window_tables if alone else self.model
        tables, transition = make(previous, window, with_start=begins, numerics=self._numerics)
        boundary = None if transition is None else Boundary(transition)
        if self.settings.token_dropout:
            rate, reset = self.settings.token_dropout, self.model.reset_token
            missing = draw_missing(self._tokens, rate, reset, self.generator, self.rows, self.settings.batch_size)
            tables, batch = without(tables, batch, missing)
        belief = None if fresh else self._belief
        self.static_shapes = can_be_captured(tables, batch)
        scored = score(tables, batch, belief, boundary)
        self._backward(scored.token_log_probs)
        self.underflow.add(scored.underflow)
        log_last = scored.belief.log_probs.detach()
        # Those of the text: of the score they may stand for missing ones.
        self._belief.token.copy_(self._tokens[:, -1])
        self._belief.log_probs.copy_(revived(log_last) if in_capture(log_last.device) else log_last)

    def _joint_log_probs(self, fresh: bool, states: Int[Tensor, "B N"]) -> Float[Tensor, "B T"]:
        """log p(x_t, z_t | z_t-1). All states take part, whatever the dropout: a token's own must not be missing."""
        self.static_shapes = True
        tables = self.model.tables(numerics=self._numerics)
        if fresh:
            return path_log_probs(tables, Batch(self._tokens, self._lengths), states[:, 1:])
        tokens = torch.cat([self._belief.token[:, None], self._tokens], dim=1)
        return path_log_probs(tables, Batch(tokens, self._lengths + 1), states, first_given=True)[:, 1:]

    def _backward(self, token_log_probs: Float[Tensor, "B T"]) -> None:
        # A gradient that is not added to another needs neither zeros before nor a sum after.
        for parameter in self.parameters:
            parameter.grad = None
        # Not from the loss: that would be made of these numbers, and taken apart again.
        token_log_probs.backward(self._token_cotangent)
        unused = [parameter for parameter in self.parameters if parameter.grad is None]
        sizes = [parameter.numel() for parameter in unused]
        for parameter, zeros in zip(unused, self._zeros(sum(sizes)).split(sizes), strict=True):
            parameter.grad = zeros.view_as(parameter)
        self.token_log_probs.copy_(token_log_probs.detach())
        torch.sum(self.token_log_probs[:, self.settings.context :], dim=(0, 1), out=self.loss).div_(-self._num_tokens)

    def reduce_gradients(self) -> None:
        """Between `make_gradients` and `update`, eagerly and between the two graphs alike."""
        if self._flat is None or self._local:
            reduce_gradients(self.parameters)
        else:
            self._flat.reduce(f"step {self.count + 1}")

    @torch.no_grad()
    def average_ranks(self) -> None:
        """After local steps: the mean over ranks of weights, of their running average and of the optimizer's state."""
        if not self._local or self._flat is None:
            return
        what = f"the average after step {self.count}"
        self._flat.average([parameter.detach() for parameter in self.parameters], what)
        if self.settings.ema:
            pairs = zip(self.averaged.parameters(), self.model.parameters(), strict=True)
            self._flat.average([average for average, parameter in pairs if parameter.requires_grad], what)
        for name in ("exp_avg", "exp_avg_sq"):
            self._flat.average([self.optimizer.state[parameter][name] for parameter in self.parameters], what)

    def update(self) -> None:
        """The optimizer's step and the running average."""
        largest_norm, pairs = self.settings.clip or math.inf, self._averages()
        if self._parts is None and parameter_update.kernels_take(self.parameters):
            self.gradient_norm.copy_(adam_by_kernels(self.optimizer, pairs, largest_norm, self._average_weight))
            # Those that no gradient reaches.
            move_averages([pair for pair in pairs if not pair[1].requires_grad], self._average_weight)
            return
        self.gradient_norm.copy_(clip_gradients(self.parameters, largest_norm))
        if self._parts is not None:
            # What follows waits for the other ranks' parts.
            self._parts.take_gradients()
        self.optimizer.step()
        if self._parts is None:
            move_averages(pairs, self._average_weight)

    def _averages(self) -> list[tuple[Tensor, Tensor]]:
        """Every parameter behind its running average; none without averages."""
        if not self.settings.ema:
            return []
        return list(zip(self.averaged.parameters(), self.model.parameters(), strict=True))

    def read_loss(self) -> float:
        """The loss of the last step, and how many sequences have underflowed so far: waits for the device.

        In a graph what underflows looks like what is impossible. There such sequences do not count, and the next steps are eager, which tells.
        """
        loss = float(self.loss)
        self.underflow.read(self.count * self.settings.batch_size, self._here)
        if loss == math.inf and self._any_replayed():
            self.underflow.eagerly = True
            of_rows = self.token_log_probs.mean(1).double()
            others = of_rows[of_rows > -math.inf]
            found = torch.stack([others.sum(), of_rows.new_tensor(others.numel())])
            if not self._local:
                found = sum_in_order(found, self._here, f"step {self.count}")
            loss = -float(found[0] / found[1]) if float(found[1]) else self._last_loss
        self._last_loss = loss
        return loss

    def _any_replayed(self) -> bool:
        """Whether a graph made the last step. Of the ranks that share a loss some may have graphs and others not: their numbers
        of rows differ."""
        if self._local:
            return self._gradients.replayed
        return any_rank([self._gradients.replayed], self._here, f"step {self.count}")[0]

    def state(self) -> dict[str, Tensor]:
        """All of it as named tensors, on the first rank, however many ranks there are."""
        here, what = self._here, f"the state of step {self.count}"
        tensors = {
            "generator": self.generator.get_state(),
            "belief.token": all_rows(self._belief.token, here, what),
            "belief.log_probs": all_rows(self._belief.log_probs, here, what),
        }
        if self._kept is not None:
            tensors["kept"] = self._kept
        if self._states is not None:
            tensors["states"] = all_rows(self._states, here, what)
        for name, value in self.model.state_dict().items():
            tensors[f"model.{name}"] = value
        if self.settings.ema:
            for name, value in self.averaged.state_dict().items():
                tensors[f"averaged.{name}"] = value
        for index, values in self.optimizer.state_dict()["state"].items():
            for name, value in values.items():
                whole = value if self._parts is None else self._parts.whole(index, value, what)
                tensors[f"optimizer.{index}.{name}"] = whole
        return tensors

    def restore(self, tensors: Mapping[str, Tensor], count: int, dropout: float) -> None:
        """What `state` gave, after `count` steps, the last of them with this dropout."""
        # The optimizer's state is put elsewhere.
        self._forget_graphs()
        self.count = count
        self.set_dropout(dropout)
        self.generator.set_state(tensors["generator"].cpu())
        rows = slice(self.rows.start, self.rows.stop)
        self._belief.token.copy_(tensors["belief.token"][rows])
        self._belief.log_probs.copy_(tensors["belief.log_probs"][rows])
        if self._kept is not None:
            self._kept.copy_(tensors["kept"])
        if "states" in tensors:
            self._states = tensors["states"][rows].to(self._tokens.device, copy=True)
        self.model.load_state_dict(part_of(tensors, "model."))
        if self.settings.ema:
            self.averaged.load_state_dict(part_of(tensors, "averaged."))
        # Its state is that of one process, of which each tensor is cut before the next one comes.
        saved = dict[str, Tensor]()
        for name in tensors:
            if name.startswith("optimizer."):
                _, number, key = name.split(".")
                value = tensors[name]
                saved[f"{number}.{key}"] = value if self._parts is None else self._parts.own(int(number), value)
        restore_optimizer(self.optimizer, saved)


def _check_token_dropout(model: Model, settings: TrainSettings) -> None:
    if not settings.token_dropout:
        return
    remedy = "set token_dropout to 0"
    if not model.support.partition:
        raise ValueError(
            f"token_dropout {settings.token_dropout:g} needs words in blocks, or one block of all: in this model each word has states "
            f"of its own choice, so a missing one is not summed over by its states; {remedy}"
        )
    if model.settings.emission == "unmasked":
        raise ValueError(
            f'token_dropout {settings.token_dropout:g} needs emissions that sum to 1 over a block, which emission "unmasked" does not '
            f'give: use emission "blocked", or {remedy}'
        )


def reduce_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Gradients of one process are complete, and neither clipped nor used yet: nothing to do. Those of several are summed by
    `FlatGradients`."""


def pinned(tokens: Int[Tensor, "B T"], device: torch.device) -> Int[Tensor, "B T"]:
    """Page-locked for a GPU: the copy of pageable memory would wait for the step before."""
    return tokens.pin_memory() if device.type == "cuda" and not tokens.is_cuda else tokens
