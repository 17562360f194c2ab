"""From labelled text to tables by counting: the maximum of p(x, z) in closed form, for models of free logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.data import Tokens
from vlhmm.distillation.lvd.vectors import VectorsEvent, windows_of
from vlhmm.inference.joint import columns_of
from vlhmm.models import Model
from vlhmm.support import Support
from vlhmm.training.joint_phase import Labels

FREE = ("start.logits", "transition.logits", "emission.logits")
"""The parameters of a model that is nothing but tables."""


@dataclass(frozen=True)
class PathCounts:
    """How often paths use each entry of the tables; a batch adds to them in place."""

    start: Float[Tensor, " Z"]
    transition: Float[Tensor, "Z Z"]
    emission: Float[Tensor, "X K"]

    @classmethod
    def none(cls, support: Support) -> PathCounts:
        states, device = support.num_states, support.group_of_word.device
        return cls(
            # float32 stops counting at 2^24.
            torch.zeros(states, dtype=torch.float64, device=device),
            torch.zeros(states, states, dtype=torch.float64, device=device),
            torch.zeros(support.num_words, support.states_per_word, dtype=torch.float64, device=device),
        )

    def add(
        self,
        support: Support,
        tokens: Int[Tensor, "B T"],
        states: Int[Tensor, "B T"],
        reset_token: int | None,
        *,
        first_given: bool = False,
    ) -> None:
        """Counts the paths of whole windows; the last token of one adds no transition.

        `first_given`: the first token and state of each were counted before, with the window they end.
        """
        if first_given:
            begins = torch.zeros_like(tokens, dtype=torch.bool)
        else:
            begins = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens) == 0
        if reset_token is not None:
            begins[:, 1:] |= tokens[:, :-1] == reset_token
        counted = torch.ones_like(tokens, dtype=torch.float64)
        counted[:, 0] = not first_given
        one, moves = (begins * counted).flatten(), (~begins * counted)[:, 1:].flatten()
        self.start.index_add_(0, states.flatten(), one)
        pair = states[:, :-1] * support.num_states + states[:, 1:]
        self.transition.view(-1).index_add_(0, pair.flatten(), moves)
        column, _ = columns_of(support, tokens, states)
        cell = tokens * support.states_per_word + column
        self.emission.view(-1).index_add_(0, cell.flatten(), counted.flatten())


def count_states(
    model: Model,
    tokens: Tokens,
    label: Labels,
    *,
    window: int,
    carried: bool = False,
    pseudocount: float = 1e-3,
) -> Iterator[VectorsEvent]:
    """Labels a text in windows, counts its paths and writes them into the model, an event a batch.

    `carried`: the windows follow one another; else each begins from the start distribution.
    """
    check_free(model)
    support, device = model.support, model.group_of_word.device
    counts, last = PathCounts.none(support), None
    num_windows = len(tokens) // window
    if not num_windows:
        raise ValueError(f"{len(tokens):,} tokens do not fill one window of {window}: count more of them")
    done = 0
    for read in windows_of(tokens, window, device):
        states = label(read).to(device)
        done += read.numel()
        if carried:
            # One path over all of them.
            path = torch.stack([read.flatten(), states.flatten()])
            path, last = path if last is None else torch.cat([last, path], dim=1), path[:, -1:]
            counts.add(support, path[:1], path[1:], model.reset_token, first_given=path.shape[1] > read.numel())
        else:
            counts.add(support, read, states, model.reset_token)
        yield VectorsEvent(done, num_windows * window)
    label.require_sound()
    counts_to_logits(model, counts, pseudocount)


@torch.no_grad()
def counts_to_logits(model: Model, counts: PathCounts, pseudocount: float = 1e-3) -> None:
    """Sets a model's free logits so that every row is its counts, with `pseudocount` spread over it, normalised.

    A row without counts becomes uniform. Only for models whose start, transition and emission are all free.
    """
    check_free(model)
    if not pseudocount > 0:
        raise ValueError(f"pseudocount is {pseudocount}, but must be above 0: a word never counted would be impossible")
    support = model.support
    states = support.states_of(torch.arange(support.num_words, device=counts.emission.device))
    # A state's row of the emission is spread over the words of its block.
    words = torch.bincount(states.flatten(), minlength=support.num_states).clamp(min=1)
    logits = (
        (counts.start + pseudocount / support.num_states).log(),
        (counts.transition + pseudocount / support.num_states).log(),
        (counts.emission + pseudocount / words[states]).log(),
    )
    parameters = dict(model.named_parameters())
    for name, values in zip(FREE, logits, strict=True):
        # Normalised by the model's own softmax.
        parameters[name].copy_(values)


def check_free(model: Model) -> None:
    """Refuses a model that counts cannot be written into."""
    names, support = dict(model.named_parameters()), model.support
    shape = (support.num_words, support.states_per_word)
    if set(names) != set(FREE) or names["emission.logits"].shape != shape:
        raise ValueError(
            f'counts fit models of free logits alone, not parameterization "{model.settings.parameterization}" with emission '
            f'"{model.settings.emission}": use scalar_hmm, or estimation "gradient"'
        )
    if model.settings.emission_floor:
        raise ValueError(
            f"emission_floor is {model.settings.emission_floor}, but counts set emissions as they are: use 0, or estimation "
            '"gradient"'
        )
