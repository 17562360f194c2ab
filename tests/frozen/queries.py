"""Every query of `vlhmm.HMM`, for every support, transition and precision, on small HMMs with ordinary numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import vlhmm

from . import entry_points, records

NAME = "queries"
WIDTH = 3
"""Of the factors of a transition."""
DTYPES = {"float64": torch.float64, "float32": torch.float32}


@dataclass(frozen=True)
class Kind:
    support: str
    transition: str
    reset: bool

    def __str__(self) -> str:
        return f"{self.support}-{self.transition}{'-reset' * self.reset}"


KINDS = {
    str(kind): kind
    for kind in (
        Kind(support, transition, reset)
        for support in ("dense", "blocked", "cloned", "uniform")
        for transition in ("table", "softmax", "block-factored")
        for reset in (False, True)
        # Block-factored transitions need a partition.
        if (support, transition) != ("uniform", "block-factored")
    )
}
LARGE = "large"
"""One dense HMM of so many states that float32 products are packed."""
CASES = [
    (name, dtype)
    for name in [*KINDS, LARGE]
    for dtype in DTYPES
    # What a reset does has nothing to do with the precision.
    if dtype == "float64" or name == LARGE or not KINDS[name].reset
]


def support_of(name: str) -> entry_points.Support:
    match name:
        case "dense":
            return entry_points.dense_support(num_words=6, num_states=5)
        case "blocked":
            return entry_points.blocked_support(torch.tensor([2, 0, 1, 0, 2, 1, 0]), 3, 3)
        case "cloned":
            return entry_points.cloned_support(num_words=5, clones=2)
        case "uniform":
            # Every state has a word, most have several.
            states = torch.tensor([[0, 2, 4], [1, 2, 6], [0, 3, 5], [3, 4, 6], [1, 5, 6]])
            return entry_points.Support(torch.arange(5), states, 7, partition=False)
        case _:
            return entry_points.dense_support(num_words=5, num_states=256)


def numbers_of(support: entry_points.Support, transition: str, seed: int) -> dict[str, Tensor]:
    """Random tables in float64. They are part of the record: a test reads them and draws nothing."""
    random = np.random.default_rng(seed)
    states, words = support.num_states, support.num_words

    def draw(*shape: int) -> Tensor:
        return torch.from_numpy(random.standard_normal(shape))

    emits = torch.zeros(states, words, dtype=torch.bool)
    emitters, every_word = support.states_of_group[support.group_of_word], torch.arange(words)[:, None]
    emits[emitters, every_word] = True
    log_emission = draw(states, words).masked_fill(~emits, -torch.inf).log_softmax(1)
    numbers = {"log_start": draw(states).log_softmax(0), "log_emission": log_emission[emitters, every_word]}
    if transition == "table":
        return numbers | {"log_transition": draw(states, states).log_softmax(1)}
    out, into = draw(states, WIDTH), draw(states, WIDTH)
    numbers |= {"out": out, "into": into}
    if transition == "softmax":
        return numbers | {"log_normalizer": (out @ into.T).logsumexp(1)}
    return numbers | {"log_block": draw(states, support.num_groups).log_softmax(1)}


def hmm_of(name: str, numbers: Mapping[str, Tensor], dtype: torch.dtype) -> vlhmm.HMM:
    kind = KINDS[name] if name in KINDS else Kind(LARGE, "softmax", False)
    support = support_of(kind.support)
    reset_token = support.num_words // 2 if kind.reset else None
    return vlhmm.HMM(entry_points.tables_of(support, kind.transition, dict(numbers), reset_token)).to(dtype=dtype)


def texts_of(num_words: int) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids, lengths, and which tokens are missing for `infill`."""
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5], [2, 7, 1, 8, 2, 8, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0, 0]])
    missing = torch.zeros(3, 9, dtype=torch.bool)
    missing[0, [2, 5, 6]] = missing[1, [0, 5]] = True
    return tokens % num_words, torch.tensor([9, 6, 1]), missing


def flat(name: str, value: Any) -> dict[str, Tensor]:
    """The tensors of an answer by the names of its fields; other fields are left out."""
    if isinstance(value, Tensor):
        return {name: value}
    if isinstance(value, list):
        return {name: torch.tensor(value, dtype=torch.float64)}
    if not is_dataclass(value):
        return {}
    parts = [flat(f"{name}.{item.name}", getattr(value, item.name)) for item in fields(value)]
    return {key: tensor for part in parts for key, tensor in part.items()}


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def answers(hmm: vlhmm.HMM) -> dict[str, Tensor]:
    """Every query. Of `viterbi` the best and the two best paths."""
    tokens, lengths, missing = texts_of(hmm.num_words)
    belief = hmm.filter(tokens, lengths).belief
    gaps = missing.clone()
    gaps[2] = True
    asked: dict[str, Any] = {
        "log_prob": hmm.log_prob(tokens, lengths),
        "log_prob.parallel": hmm.log_prob(tokens, lengths, parallel=True),
        "token_log_probs": hmm.token_log_probs(tokens, lengths),
        "token_log_probs.window": hmm.token_log_probs(tokens, lengths, window=4),
        "token_log_probs.belief": hmm.token_log_probs(tokens, lengths, belief),
        "filter": hmm.filter(tokens, lengths).probs,
        "filter.states": hmm.filter(tokens, lengths).states[:, :2],
        "filter.belief": belief,
        "posterior": hmm.posterior(tokens, lengths).probs,
        "posterior_entropy": hmm.posterior_entropy(tokens, lengths),
        "viterbi.1": hmm.viterbi(tokens, lengths),
        "viterbi.2": hmm.viterbi(tokens, lengths, k=2),
        "infill": hmm.infill(tokens, gaps, lengths, num=3, exclude=[0], seed=generator()),
        "expected_counts": hmm.expected_counts(tokens, lengths),
        "next_token_probs": hmm.next_token_probs(belief),
        "next_token_probs.first": hmm.next_token_probs(),
        "sample": hmm.sample(2, 7, generator()),
        "sample_posterior": hmm.sample_posterior(tokens, 3, lengths, generator()),
        "fit.em": fitted(hmm),
        "fit.minibatch": fitted(hmm, batch_size=2, learning_rate=0.3, seed=generator()),
        "fit.adam": fitted(hmm, method="adam"),
    }
    found = {key: tensor for name, value in asked.items() for key, tensor in flat(name, value).items()}
    return found | streamed(hmm, tokens) | gradients(hmm, tokens, lengths)


def fitted(hmm: vlhmm.HMM, **options: Any) -> Any:
    tokens, lengths, _ = texts_of(hmm.num_words)
    fit = hmm.fit(tokens, lengths=lengths, iterations=3, tolerance=0.0, **options)

    @dataclass(frozen=True)
    class Fitted:
        log_probs: list[float]
        start: Tensor
        transition: Tensor
        emission: Tensor

    tables = fit.hmm.tables
    return Fitted(fit.log_probs, tables.log_start, tables.transition.log_prob, tables.log_emission)


def streamed(hmm: vlhmm.HMM, tokens: Tensor) -> dict[str, Tensor]:
    stream = hmm.stream(3)
    first = stream.feed(tokens[:, :4])
    second = stream.fork().feed(tokens[:, 4:8], torch.tensor([4, 0, 2]))
    stream.feed(tokens[:, 4:5])
    found = {"first": first, "second": second, "log_prob": stream.log_prob, "next": stream.next_token_probs()}
    return {f"stream.{name}": value for name, value in found.items()} | flat("stream.top", stream.next_tokens(2))


def gradients(hmm: vlhmm.HMM, tokens: Tensor, lengths: Tensor) -> dict[str, Tensor]:
    """Of log p in the log start and log emission: what training climbs."""
    tables = hmm.tables
    leaves = [tables.log_start.clone().requires_grad_(), tables.log_emission.clone().requires_grad_()]
    followed = vlhmm.HMM(type(tables)(tables.support, leaves[0], tables.transition, leaves[1], tables.reset_token))
    found = torch.autograd.grad(followed.log_prob(tokens, lengths).sum(), leaves)
    return {"gradient.start": found[0], "gradient.emission": found[1]}


def large_answers(hmm: vlhmm.HMM) -> dict[str, Tensor]:
    tokens, lengths, _ = texts_of(hmm.num_words)
    asked = {
        "token_log_probs": hmm.token_log_probs(tokens, lengths),
        "posterior_entropy": hmm.posterior_entropy(tokens, lengths),
        "viterbi": hmm.viterbi(tokens, lengths),
        "gradient.start": gradients(hmm, tokens, lengths)["gradient.start"],
        "emission_counts": hmm.expected_counts(tokens, lengths).emission.sum(1),
    }
    return {key: tensor for name, value in asked.items() for key, tensor in flat(name, value).items()}


def answers_of(name: str, numbers: Mapping[str, Tensor], dtype: str) -> dict[str, Tensor]:
    hmm = hmm_of(name, numbers, DTYPES[dtype])
    return large_answers(hmm) if name == LARGE else answers(hmm)


def record() -> None:
    recorded: dict[str, Tensor] = {}
    for seed, name in enumerate([*KINDS, LARGE]):
        kind = KINDS[name] if name in KINDS else Kind(LARGE, "softmax", False)
        numbers = numbers_of(support_of(kind.support), kind.transition, seed)
        recorded |= {f"{name}/numbers/{key}": tensor for key, tensor in numbers.items()}
        for dtype in (dtype for case, dtype in CASES if case == name):
            found = answers_of(name, numbers, dtype)
            recorded |= {f"{name}/{dtype}/{key}": tensor for key, tensor in found.items()}
    records.write_tensors(NAME, recorded)
