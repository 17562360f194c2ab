"""The HMM cell of Buys et al. (2018), and the steps that turn it into a recurrent network.

With all switches off it is an HMM with free logits, uniform start and exact filtering:

    u_t = s_t B(x_t | .) / p(x_t | x_<t),   s_{t+1} = A^T u_t,   p(x_t | x_<t) = sum_z s_t(z) B(x_t | z)

with A the softmax of W over destinations and B that of E + c over words.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vlhmm.baselines.layers import Scored, State, shifted, word_log_probs
from vlhmm.baselines.settings import BuysHMMSettings

LEAST_SHARE: Final = 1e-18
"""Of a transition's row, what a word may leave; its square must not overflow float32."""


class BuysHMM(nn.Module):
    protocol = "states carried over every token"

    def __init__(self, settings: BuysHMMSettings, num_words: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.settings = settings
        Z = settings.num_states
        self.emission = nn.Parameter(torch.empty(num_words, Z))
        self.bias = nn.Parameter(torch.zeros(num_words))
        self.transition = nn.Parameter(torch.empty(Z, Z))
        """From row to column."""
        self.word_input = None if settings.transition_input == "none" else nn.Linear(Z, Z)
        _initialise(self, generator)

    @property
    def num_words(self) -> int:
        return self.emission.shape[0]

    def start_state(self, batch_size: int) -> State:
        """No word before the text, which makes the first state uniform whatever the belief."""
        last = torch.full((batch_size,), -1, device=self.emission.device)
        Z = self.settings.num_states
        return last, self.emission.new_full((batch_size, Z), 1 / Z)

    def log_emission(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T Z"]:
        """log p(x_t | z). Sums over words are taken by `logsumexp`: a softmax along the first axis is slow on a GPU."""
        log_totals = (self.emission + self.bias[:, None]).logsumexp(dim=0)
        return F.embedding(tokens, self.emission) + F.embedding(tokens, self.bias[:, None]) - log_totals

    def forward(self, tokens: Int[Tensor, "B T"], state: State, noise: torch.Generator | None) -> Scored:
        last, belief = state
        log_likelihood = self.log_emission(tokens)
        # Taken relative to the best state's, so that none is too small for its type; it cancels in the gradient.
        highest = log_likelihood.detach().amax(-1, keepdim=True)
        likelihood = (log_likelihood - highest).exp()
        inputs = self._inputs(shifted(last, tokens))
        transition = self._transition()
        tiny = torch.finfo(likelihood.dtype).tiny

        states, totals = [], []
        for position in range(tokens.shape[1]):
            entered = self._enter(belief, transition, None if inputs is None else inputs[:, position])
            if position == 0:
                uniform = torch.full_like(entered, 1 / self.settings.num_states)
                entered = torch.where((last < 0)[:, None], uniform, entered)
            joint = entered * likelihood[:, position]
            total = joint.sum(-1, keepdim=True).clamp_min(tiny)
            belief = joint / total
            states.append(entered)
            totals.append(total)
        entered = torch.stack(states, dim=1)
        if self.settings.delay_emission_softmax:
            log_probs = word_log_probs(entered, self.emission, self.bias, tokens)
        else:
            log_probs = torch.cat(totals, dim=1).log() + highest[..., 0]
            if self.settings.state == "sigmoid":
                log_probs = log_probs - entered.sum(-1).log()
        return Scored(log_probs, (tokens[:, -1], belief))

    def _inputs(self, words: Int[Tensor, "B T"]) -> Float[Tensor, "B T Z"] | None:
        """v_t, what the word before does to each destination."""
        if self.word_input is None:
            return None
        inputs: Tensor = self.word_input(F.embedding(words.clamp(min=0), self.emission))
        return inputs if self.settings.transition_input == "add" else inputs.sigmoid()

    def _transition(self) -> Float[Tensor, "Z Z"]:
        """What all steps of a window share of the transition."""
        settings = self.settings
        if settings.delay_transition_softmax or settings.transition_input == "gate":
            return self.transition
        return self.transition.softmax(-1)

    def _enter(
        self, belief: Float[Tensor, "B Z"], transition: Float[Tensor, "Z Z"], inputs: Float[Tensor, "B Z"] | None
    ) -> Float[Tensor, "B Z"]:
        """s_{t+1} from u_t and the word at t."""
        settings = self.settings
        if settings.delay_transition_softmax:
            logits = belief @ transition
            if inputs is not None:
                logits = logits + inputs if settings.transition_input == "add" else logits * inputs
            return logits.sigmoid() if settings.state == "sigmoid" else logits.softmax(-1)
        if inputs is None:
            return belief @ transition
        if settings.transition_input == "gate":
            rows = (transition * inputs[:, None, :]).softmax(-1)
            return (belief[:, None, :] @ rows)[:, 0]
        # softmax over z' of W[z, z'] + v[z'], without its (B, Z, Z) entries: the shares of softmax(W), weighted by exp(v).
        weights = (inputs - inputs.detach().amax(-1, keepdim=True)).exp()
        normaliser = (weights @ transition.T).clamp_min(LEAST_SHARE)
        entered = weights * ((belief / normaliser) @ transition) + torch.finfo(weights.dtype).tiny
        # Sums to one already, unless shifts and logits are so far apart that a normaliser was lost.
        return entered / entered.sum(-1, keepdim=True)


@torch.no_grad()
def _initialise(model: BuysHMM, generator: torch.Generator | None) -> None:
    scale = model.settings.init_scale
    model.emission.uniform_(-scale, scale, generator=generator)
    model.transition.uniform_(-scale, scale, generator=generator)
    if model.word_input is not None:
        bound = model.settings.num_states**-0.5
        model.word_input.weight.uniform_(-bound, bound, generator=generator)
        model.word_input.bias.zero_()
