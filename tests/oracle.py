"""An HMM whose every answer is a sum over enumerated state paths, and builders of the same HMM as `Tables`.

`Oracle` shares no code with the package: dense float64 numpy arrays, one array axis per position, so that the
joint p(z, x) of all Z^T paths lies in memory and each query is one sum. `by_messages` is its log-space
forward-backward for sentences too long to enumerate; a test holds the two against each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vlhmm.support import Support, blocked_support, cloned_support, dense_support
from vlhmm.tables import Tables
from vlhmm.transitions import BlockFactoredTransition, LowRankTransition, SoftmaxTransition, TableTransition


class DenseCounts(NamedTuple):
    start: np.ndarray
    transition: np.ndarray
    emission: np.ndarray


class Messages(NamedTuple):
    token_log_probs: np.ndarray
    filter: np.ndarray
    posterior: np.ndarray
    best_path: np.ndarray
    best_log_prob: float


@dataclass(frozen=True)
class Oracle:
    """start (Z,), transition (Z, Z), emission (Z, X) as probabilities in float64."""

    start: np.ndarray
    transition: np.ndarray
    emission: np.ndarray
    reset_token: int | None = None

    @property
    def num_states(self) -> int:
        return self.emission.shape[0]

    @property
    def num_words(self) -> int:
        return self.emission.shape[1]

    def after_reset(self, tokens: np.ndarray, position: int) -> bool:
        return position == 0 or int(tokens[position - 1]) == self.reset_token

    def joint(self, tokens: np.ndarray) -> np.ndarray:
        """p(z, x) for every path z: the array's axis t is the state at position t."""
        joint = np.ones(())
        for position, token in enumerate(tokens):
            step = self.start if self.after_reset(tokens, position) else self.transition
            joint = joint[..., None] * (step * self.emission[:, token])
        return joint

    def log_prob(self, tokens: np.ndarray) -> float:
        with np.errstate(divide="ignore"):
            return float(np.log(self.joint(tokens).sum()))

    def token_log_probs(self, tokens: np.ndarray) -> np.ndarray:
        """log p(x_t | x_<t); -inf from the first impossible token on."""
        prefixes = np.array([self.log_prob(tokens[:end]) for end in range(len(tokens) + 1)])
        impossible = np.isneginf(prefixes)
        return np.where(impossible[1:], -np.inf, np.diff(np.where(impossible, 0.0, prefixes)))

    def filter(self, tokens: np.ndarray) -> np.ndarray:
        """p(z_t | x_<=t) as (T, Z); 0 from the first impossible token on."""
        rows = [self.joint(tokens[:end]).reshape(-1, self.num_states).sum(0) for end in range(1, len(tokens) + 1)]
        return np.stack([row / row.sum() if row.sum() > 0 else row for row in rows])

    def path_probs(self, tokens: np.ndarray) -> np.ndarray:
        """p(z | x) for every path."""
        joint = self.joint(tokens)
        return joint / joint.sum()

    def posterior(self, tokens: np.ndarray) -> np.ndarray:
        """p(z_t | x) as (T, Z)."""
        paths = self.path_probs(tokens)
        return np.stack([np.moveaxis(paths, t, 0).reshape(self.num_states, -1).sum(1) for t in range(paths.ndim)])

    def best_log_prob(self, tokens: np.ndarray) -> float:
        return float(np.log(self.joint(tokens).max()))

    def counts(self, tokens: np.ndarray) -> DenseCounts:
        """Expected uses of each start, transition and emission probability, given the sentence."""
        paths, posterior = self.path_probs(tokens), self.posterior(tokens)
        counts = DenseCounts(*(np.zeros_like(table) for table in (self.start, self.transition, self.emission)))
        for t, token in enumerate(tokens):
            counts.emission[:, token] += posterior[t]
            if self.after_reset(tokens, t):
                counts.start[:] += posterior[t]
            else:
                pair = np.moveaxis(paths, (t - 1, t), (0, 1))
                counts.transition[:] += pair.reshape(self.num_states, self.num_states, -1).sum(2)
        return counts

    def next_token_probs(self, tokens: np.ndarray) -> np.ndarray:
        """p(next token | tokens) as (X,)."""
        if self.after_reset(tokens, len(tokens)):
            return self.start @ self.emission
        return self.filter(tokens)[-1] @ self.transition @ self.emission

    def by_messages(self, tokens: np.ndarray) -> Messages:
        """The same answers by forward, backward and max recursions over log-probabilities."""
        with np.errstate(divide="ignore"):
            log_start, log_transition, log_emission = map(np.log, (self.start, self.transition, self.emission))
        steps = [
            np.broadcast_to(log_start, log_transition.shape) if self.after_reset(tokens, t) else log_transition
            for t in range(len(tokens))
        ]
        evidence = log_emission.T[tokens]
        forward, best, choice = (
            np.empty_like(evidence),
            np.empty_like(evidence),
            np.zeros(evidence.shape, dtype=int),
        )
        forward[0] = best[0] = log_start + evidence[0]
        for t in range(1, len(tokens)):
            forward[t] = log_sum(forward[t - 1][:, None] + steps[t], axis=0) + evidence[t]
            candidates = best[t - 1][:, None] + steps[t]
            choice[t], best[t] = candidates.argmax(0), candidates.max(0) + evidence[t]
        backward = np.zeros_like(evidence)
        for t in range(len(tokens) - 2, -1, -1):
            backward[t] = log_sum(steps[t + 1] + (evidence[t + 1] + backward[t + 1])[None, :], axis=1)
        path = [int(best[-1].argmax())]
        for t in range(len(tokens) - 1, 0, -1):
            path.append(int(choice[t][path[-1]]))
        totals = log_sum(forward, axis=1)
        return Messages(
            token_log_probs=np.diff(totals, prepend=0.0),
            filter=np.exp(forward - totals[:, None]),
            posterior=np.exp(forward + backward - totals[-1]),
            best_path=np.array(path[::-1]),
            best_log_prob=float(best[-1].max()),
        )

    def sentence(self, length: int, random: np.random.Generator) -> np.ndarray:
        """A sentence drawn from the HMM, hence of positive probability."""
        tokens: list[int] = []
        state = 0
        for t in range(length):
            step = self.start if self.after_reset(np.array(tokens), t) else self.transition[state]
            state = random.choice(self.num_states, p=step)
            tokens.append(int(random.choice(self.num_words, p=self.emission[state])))
        return np.array(tokens)


def log_sum(values: np.ndarray, axis: int) -> np.ndarray:
    return np.logaddexp.reduce(values, axis=axis)


@dataclass(frozen=True)
class Kind:
    """One sort of HMM; its numbers and its small, odd sizes come from a seed."""

    support: str
    transition: str
    reset: bool
    zeros: bool = False

    def __str__(self) -> str:
        return "-".join(
            [self.support, self.transition] + ["reset"] * self.reset + ["zeros"] * self.zeros,
        )


EVERY_KIND = [
    Kind(support, transition, reset, zeros)
    for support in ("dense", "blocked", "cloned", "uniform")
    for transition in ("table", "softmax", "block-factored", "low-rank")
    for reset in (False, True)
    for zeros in (False, True)
    # Block-factored transitions need a partition; a softmax has no zeros to speak of.
    if not (support == "uniform" and transition == "block-factored") and not (transition == "softmax" and zeros)
]


def random_hmm(kind: Kind, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Oracle, Tables]:
    """The same random HMM twice: by enumeration, and as the package's record."""
    random = np.random.default_rng(seed)
    support = random_support(kind.support, random)
    tables = assemble(kind, support, random_logits(kind, support, random))
    return dense_oracle(tables), tables.to(dtype=dtype)


def random_support(name: str, random: np.random.Generator) -> Support:
    if name == "dense":
        return dense_support(num_words=int(random.integers(2, 6)), num_states=int(random.integers(1, 5)))
    if name == "cloned":
        return cloned_support(num_words=int(random.integers(2, 4)), clones=int(random.integers(1, 3)))
    if name == "blocked":
        num_blocks, states_per_block = int(random.integers(2, 4)), int(random.integers(1, 3))
        # Block 0 is the largest, no block is empty, and the words of a block are not neighbours.
        block_of_word = random.permutation([*range(num_blocks), *([0] * 3), 1])
        return blocked_support(torch.tensor(block_of_word), num_blocks, states_per_block)
    num_words, num_states, states_per_word = 4, int(random.integers(3, 6)), 3
    # Every state is drawn by some word (a state without words would lose probability), most by several.
    states = [random.permutation(num_states)[:states_per_word] for _ in range(num_words)]
    for missing in set(range(num_states)) - set(np.concatenate(states)):
        word, place = random.integers(num_words), random.integers(states_per_word)
        states[word][place] = missing
    if len(set(np.concatenate(states))) < num_states:
        return random_support(name, random)
    return Support(torch.arange(num_words), torch.tensor(np.sort(states)), num_states, partition=False)


def random_logits(kind: Kind, support: Support, random: np.random.Generator) -> dict[str, Tensor]:
    """Free numbers from which `assemble` makes a normalised HMM."""
    states, words, width = support.num_states, support.num_words, 3

    def draw(*shape: int, zeros: bool = False) -> Tensor:
        logits = 1.5 * random.standard_normal(shape)
        if zeros:
            closed = random.random(shape) < 0.4
            # One cell of each row stays open: the row must sum to one.
            np.put_along_axis(closed, random.integers(shape[-1], size=(*shape[:-1], 1)), False, axis=-1)
            logits[closed] = -np.inf
        return torch.tensor(logits)

    logits = {"start": draw(states, zeros=kind.zeros), "emission": draw(states, words)}
    if kind.transition == "table":
        logits["transition"] = draw(states, states, zeros=kind.zeros)
    elif kind.transition == "low-rank":
        logits |= {"to_class": draw(states, 2, zeros=kind.zeros), "from_class": draw(2, states, zeros=kind.zeros)}
    else:
        logits |= {"out": draw(states, width), "into": draw(states, width)}
    if kind.transition == "block-factored":
        logits["block"] = draw(states, support.num_groups, zeros=kind.zeros)
    return logits


def assemble(kind: Kind, support: Support, logits: dict[str, Tensor]) -> Tables:
    """Differentiable in the logits, and normalised whatever they are."""
    emits = torch.zeros(support.num_states, support.num_words, dtype=torch.bool)
    words = torch.arange(support.num_words)[:, None]
    states = support.states_of_group[support.group_of_word]
    emits[states, words] = True
    log_emission = logits["emission"].masked_fill(~emits, -torch.inf).log_softmax(dim=1)
    if kind.transition == "table":
        transition = TableTransition(logits["transition"].log_softmax(dim=1))
    elif kind.transition == "softmax":
        normalizer = (logits["out"] @ logits["into"].T).logsumexp(dim=1)
        transition = SoftmaxTransition(logits["out"], logits["into"], normalizer)
    elif kind.transition == "low-rank":
        to_class, from_class = logits["to_class"].log_softmax(dim=1), logits["from_class"].log_softmax(dim=1)
        transition = LowRankTransition(to_class, from_class.T)
    else:
        transition = BlockFactoredTransition(logits["block"].log_softmax(dim=1), logits["out"], logits["into"])
    return Tables(
        support=support,
        log_start=logits["start"].log_softmax(dim=0),
        transition=transition,
        log_emission=log_emission[states, words],
        # A token in the middle of the vocabulary, so that neither end of it is special.
        reset_token=support.num_words // 2 if kind.reset else None,
    )


def dense_oracle(tables: Tables) -> Oracle:
    """The record's numbers as dense arrays, by formulas of their own."""
    support, transition = tables.support, tables.transition
    emission = np.zeros((tables.num_states, tables.num_words))
    for word, group in enumerate(support.group_of_word.tolist()):
        for k, state in enumerate(support.states_of_group[group].tolist()):
            emission[state, word] = np.exp(tables.log_emission[word, k].item())
    if isinstance(transition, TableTransition):
        probs = np.exp(transition.log_prob.double().numpy())
    elif isinstance(transition, LowRankTransition):
        probs = np.exp(transition.log_out.double().numpy()) @ np.exp(transition.log_into.double().numpy()).T
    else:
        weights = np.exp(transition.out.double().numpy() @ transition.into.double().numpy().T)
        if isinstance(transition, SoftmaxTransition):
            probs = weights / weights.sum(1, keepdims=True)
        else:
            probs = np.empty_like(weights)
            block_probs = np.exp(transition.log_block.double().numpy())
            for block, states in enumerate(support.states_of_group.numpy()):
                within = weights[:, states] / weights[:, states].sum(1, keepdims=True)
                probs[:, states] = block_probs[:, block, None] * within
    return Oracle(np.exp(tables.log_start.double().numpy()), probs, emission, tables.reset_token)


def scatter_states(probs: Tensor, states: Tensor, num_states: int) -> np.ndarray:
    """(B, T, Z) from the K probabilities of each position and the states they belong to."""
    dense = torch.zeros(*probs.shape[:2], num_states, dtype=torch.float64)
    return dense.scatter_add_(2, states.clamp(min=0), probs.detach().double()).numpy()


def ragged(sentences: list[np.ndarray], padding: int = 0) -> tuple[Tensor, Tensor]:
    """Sentences as one padded batch, and their lengths."""
    lengths = torch.tensor([len(sentence) for sentence in sentences])
    tokens = torch.full((len(sentences), int(lengths.max())), padding, dtype=torch.int64)
    for row, sentence in zip(tokens, sentences, strict=True):
        row[: len(sentence)] = torch.as_tensor(sentence)
    return tokens, lengths
