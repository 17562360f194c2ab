"""The HMM cell of Buys et al. (2018), and the steps that turn it into a recurrent network.

With all switches off it is an HMM with free logits, uniform start and exact filtering:

    u_t = s_t B(x_t | .) / p(x_t | x_<t),   s_{t+1} = A^T u_t,   p(x_t | x_<t) = sum_z s_t(z) B(x_t | z)

with A the softmax of W over destinations and B that of E + c over words.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vlhmm.baselines.layers import After, Scored, State, shifted, word_log_probs
from vlhmm.ops.emission.word_rows import word_rows
from vlhmm.ops.recursion import Factors, recursion
from vlhmm.precision import Precision
from vlhmm.training.baseline_settings import BuysHMMSettings

MIN_SHARE: Final = 1e-18
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
        logits = self.emission + self.bias[:, None]
        return word_rows(logits, tokens) - logits.logsumexp(dim=0)

    def forward(self, tokens: Int[Tensor, "B T"], state: State, noise: torch.Generator | None) -> Scored:
        last, belief = state
        log_likelihood = self.log_emission(tokens)
        if not self.settings.relaxed:
            # Training reads what its other products read; scores are not rounded.
            log_probs, belief = self._recursion(log_likelihood, last, belief, "highest" if noise is None else "tf32")
            return Scored(log_probs, (tokens[:, -1], belief))
        inputs = self._inputs(shifted(last, tokens))
        walk = self._delayed if self.settings.delay_transition_softmax else self._mixed
        log_entered, belief = walk(log_likelihood, inputs, last, belief)
        if self.settings.delay_emission_softmax:
            log_probs = word_log_probs(log_entered.exp(), self.emission, self.bias, tokens)
        else:
            log_probs = (log_entered + log_likelihood).logsumexp(-1)
            if self.settings.state == "sigmoid":
                log_probs = log_probs - log_entered.logsumexp(-1)
        return Scored(log_probs, (tokens[:, -1], belief))

    def advance(self, state: State) -> tuple[Float[Tensor, "B Z"], After]:
        """log s_t, what the next word is predicted from, and the state by which it goes on."""
        last, belief = state
        inputs = self._inputs(last[:, None])
        walk = self._delayed if self.settings.delay_transition_softmax else self._mixed
        log_entered, _ = walk(torch.zeros_like(belief)[:, None], inputs, last, belief)

        def after(word: Tensor) -> State:
            _, entered = walk(self.log_emission(word[:, None]), inputs, last, belief)
            return word, entered

        return log_entered[:, 0], after

    def next_logits(self, features: Float[Tensor, "B Z"]) -> Float[Tensor, "B X"]:
        weights = features.exp()
        if self.settings.delay_emission_softmax:
            return F.linear(weights, self.emission, self.bias)
        return F.linear(weights, (self.emission + self.bias[:, None]).softmax(0)).log()

    def _recursion(
        self,
        log_likelihood: Float[Tensor, "B T Z"],
        last: Int[Tensor, " B"],
        belief: Float[Tensor, "B Z"],
        precision: Precision,
    ) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B Z"]]:
        """log p(x_t | x_<t) and the last u of the HMM, by the recursion of all HMMs here."""
        size, length, Z = log_likelihood.shape
        start = belief.new_full((1, Z), -math.log(Z))
        every_token = last.new_zeros(size, length)
        begins_at = every_token - 1
        begins_at[:, 0] = torch.where(last < 0, 0, -1)
        factors = Factors(
            log_previous=belief.log(),
            log_inits=start,
            init_of=begins_at,
            log_tiles=self.transition.log_softmax(-1)[None],
            tile_of=every_token,
            log_emission=log_likelihood,
            lengths=last.new_full((size,), length),
            same_ahead=True,
        )
        log_probs, log_last = recursion(factors, precision)
        return log_probs, log_last.exp()

    def _delayed(
        self,
        log_likelihood: Float[Tensor, "B T Z"],
        inputs: Float[Tensor, "B T Z"] | None,
        last: Int[Tensor, " B"],
        belief: Float[Tensor, "B Z"],
    ) -> tuple[Float[Tensor, "B T Z"], Float[Tensor, "B Z"]]:
        """log s_t and the last u where s_{t+1} = softmax(W u_t) or sigmoid(W u_t).

        Then u_t = softmax(log s_t + log B(x_t | .)): a step is a product and a softmax, and log s_t itself, whose sum over
        states the next softmax does not ask for, is made for all positions at once.
        """
        settings = self.settings
        begins = (last < 0)[:, None]
        per_position = None if inputs is None else inputs.unbind(1)
        steps = []
        for position, log_word in enumerate(log_likelihood.unbind(1)):
            logits = belief @ self.transition
            if per_position is not None:
                value = per_position[position]
                logits = logits + value if settings.transition_input == "add" else logits * value
            if position == 0:
                # Equal for all states: the first state is uniform.
                logits = torch.where(begins, 0.0, logits)
            steps.append(logits)
            log_weight = F.logsigmoid(logits) if settings.state == "sigmoid" else logits
            belief = (log_weight + log_word).softmax(-1)
        entered = torch.stack(steps, dim=1)
        if settings.state == "softmax":
            return entered.log_softmax(-1), belief
        log_entered = F.logsigmoid(entered)
        first = torch.where(begins, -math.log(settings.num_states), log_entered[:, 0])
        return torch.cat([first[:, None], log_entered[:, 1:]], dim=1), belief

    def _mixed(
        self,
        log_likelihood: Float[Tensor, "B T Z"],
        inputs: Float[Tensor, "B T Z"] | None,
        last: Int[Tensor, " B"],
        belief: Float[Tensor, "B Z"],
    ) -> tuple[Float[Tensor, "B T Z"], Float[Tensor, "B Z"]]:
        """log s_t and the last u where s_{t+1} mixes the rows of a softmax that may depend on the word at t."""
        # Taken relative to the best state's, so that none is too small for its type; a belief asks for no more.
        likelihood = (log_likelihood - log_likelihood.detach().amax(-1, keepdim=True)).exp()
        enter = self._entering(inputs)
        tiny = torch.finfo(likelihood.dtype).tiny
        states = []
        for position, of_word in enumerate(likelihood.unbind(1)):
            entered = enter(belief, position)
            if position == 0:
                uniform = torch.full_like(entered, 1 / self.settings.num_states)
                entered = torch.where((last < 0)[:, None], uniform, entered)
            joint = entered * of_word
            belief = joint / joint.sum(-1, keepdim=True).clamp_min(tiny)
            states.append(entered)
        every = torch.stack(states, dim=1).clamp_min(tiny)
        # They sum to one already, unless shifts and logits are so far apart that a normaliser was lost.
        return (every / every.sum(-1, keepdim=True)).log(), belief

    def _entering(self, inputs: Float[Tensor, "B T Z"] | None) -> Callable[[Tensor, int], Tensor]:
        """s_{t+1} from u_t, for the word at t: as much as possible of it is made for all positions at once."""
        if inputs is None:
            rows = self.transition.softmax(-1)
            return lambda belief, position: belief @ rows
        if self.settings.transition_input == "gate":
            gates = inputs.unbind(1)
            return lambda belief, position: (
                belief[:, None, :] @ (self.transition * gates[position][:, None, :]).softmax(-1)
            )[:, 0]
        # softmax over z' of W[z, z'] + v[z'], without its (B, Z, Z) entries: the shares of softmax(W), weighted by exp(v).
        rows = self.transition.softmax(-1)
        every_weight = (inputs - inputs.detach().amax(-1, keepdim=True)).exp()
        normalisers = (every_weight @ rows.T).clamp_min(MIN_SHARE).unbind(1)
        weights = every_weight.unbind(1)
        # A belief of zeros would stay zero.
        tiny = torch.finfo(rows.dtype).tiny
        return lambda belief, position: weights[position] * ((belief / normalisers[position]) @ rows) + tiny

    def _inputs(self, words: Int[Tensor, "B T"]) -> Float[Tensor, "B T Z"] | None:
        """v_t, what the word before does to each destination."""
        if self.word_input is None:
            return None
        embedded = F.embedding(words.clamp(min=0), self.emission)
        inputs: Tensor = self.word_input(self.settings.input_scale * embedded)
        return inputs if self.settings.transition_input == "add" else inputs.sigmoid()


@torch.no_grad()
def _initialise(model: BuysHMM, generator: torch.Generator | None) -> None:
    scale = model.settings.init_scale
    model.emission.uniform_(-scale, scale, generator=generator)
    model.transition.uniform_(-scale, scale, generator=generator)
    if model.word_input is not None:
        bound = model.settings.num_states**-0.5
        model.word_input.weight.uniform_(-bound, bound, generator=generator)
        model.word_input.bias.zero_()
