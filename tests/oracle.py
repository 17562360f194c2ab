"""An HMM whose every answer is a sum over enumerated state paths, and builders of the same HMM as `Tables`.

`Oracle` shares no code with the package: dense float64 numpy arrays, one array axis per position, so that the
joint log p(z, x) of all Z^T paths lies in memory and each query is one sum. It is in log space, since the product of a few
probabilities like 1e-99 is beyond float64. `by_messages` is its log-space forward-backward for sentences too long to
enumerate; a test holds the two against each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
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

    @cached_property
    def logs(self) -> DenseCounts:
        """The tables as log-probabilities."""
        with np.errstate(divide="ignore"):
            return DenseCounts(np.log(self.start), np.log(self.transition), np.log(self.emission))

    def log_joint(self, tokens: np.ndarray) -> np.ndarray:
        """log p(z, x) for every path z: the array's axis t is the state at position t."""
        log_joint = np.zeros(())
        for position, token in enumerate(tokens):
            step = self.logs.start if self.after_reset(tokens, position) else self.logs.transition
            log_joint = log_joint[..., None] + (step + self.logs.emission[:, token])
        return log_joint

    def joint(self, tokens: np.ndarray) -> np.ndarray:
        """p(z, x) for every path z; of ordinary tables, as it may underflow."""
        return np.exp(self.log_joint(tokens))

    def log_prob(self, tokens: np.ndarray) -> float:
        return float(log_sum(self.log_joint(tokens).ravel(), axis=0))

    def token_log_probs(self, tokens: np.ndarray) -> np.ndarray:
        """log p(x_t | x_<t); -inf from the first impossible token on."""
        prefixes = np.array([self.log_prob(tokens[:end]) for end in range(len(tokens) + 1)])
        impossible = np.isneginf(prefixes)
        return np.where(impossible[1:], -np.inf, np.diff(np.where(impossible, 0.0, prefixes)))

    def filter(self, tokens: np.ndarray) -> np.ndarray:
        """p(z_t | x_<=t) as (T, Z); 0 from the first impossible token on."""
        return np.stack(
            [self.path_probs(tokens[:end]).reshape(-1, self.num_states).sum(0) for end in range(1, len(tokens) + 1)]
        )

    def path_probs(self, tokens: np.ndarray) -> np.ndarray:
        """p(z | x) for every path; 0 of an impossible sentence."""
        log_joint = self.log_joint(tokens)
        total = log_sum(log_joint.ravel(), axis=0)
        return np.exp(log_joint - (total if np.isfinite(total) else 0.0))

    def posterior(self, tokens: np.ndarray) -> np.ndarray:
        """p(z_t | x) as (T, Z)."""
        paths = self.path_probs(tokens)
        return np.stack([np.moveaxis(paths, t, 0).reshape(self.num_states, -1).sum(1) for t in range(paths.ndim)])

    def best_log_prob(self, tokens: np.ndarray) -> float:
        return float(self.log_joint(tokens).max())

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
        log_start, log_transition, log_emission = self.logs
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
            state = random.choice(self.num_states, p=step / step.sum())
            tokens.append(int(random.choice(self.num_words, p=self.emission[state] / self.emission[state].sum())))
        return np.array(tokens)

    def rare_sentence(self, length: int, random: np.random.Generator) -> np.ndarray:
        """Any token that is possible is as likely as any other: the sentence is possible, however improbable."""
        tokens: list[int] = []
        states = self.start > 0
        for _ in range(length):
            able = states @ (self.emission > 0)
            tokens.append(int(random.choice(self.num_words, p=able / able.sum())))
            states = states & (self.emission[:, tokens[-1]] > 0)
            states = self.start > 0 if tokens[-1] == self.reset_token else states @ (self.transition > 0)
        return np.array(tokens)


def log_sum(values: np.ndarray, axis: int) -> np.ndarray:
    """log of the sum of exp; -inf where all are -inf."""
    peak = values.max(axis=axis, keepdims=True)
    peak = np.where(np.isneginf(peak), 0.0, peak)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(values - peak).sum(axis=axis)) + peak.squeeze(axis)


@dataclass(frozen=True)
class Kind:
    """One sort of HMM; its numbers and its small, odd sizes come from a seed."""

    support: str
    transition: str
    reset: bool
    zeros: bool = False
    ugly: bool = False
    """Each row is of a sort of its own: ties, zeros, all but certain, or probabilities down to 1e-99; and sizes may be one."""

    def __str__(self) -> str:
        return "-".join(
            [self.support, self.transition] + ["reset"] * self.reset + ["zeros"] * self.zeros + ["ugly"] * self.ugly,
        )


# `BlockSoftmaxTransition` is left out: only training windows have it, not an `HMM`; tests/ops/test_blocked_recursion.py covers it.
EVERY_KIND = [
    Kind(support, transition, reset, zeros, ugly)
    for support in ("dense", "blocked", "cloned", "uniform")
    for transition in ("table", "softmax", "block-factored", "low-rank")
    for reset in (False, True)
    for zeros, ugly in ((False, False), (True, False), (False, True))
    # Block-factored transitions need a partition; a softmax has no zeros to speak of.
    if not (support == "uniform" and transition == "block-factored") and not (transition == "softmax" and zeros)
]


def random_hmm(kind: Kind, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Oracle, Tables]:
    """The same random HMM twice: by enumeration, and as the package's record."""
    random = np.random.default_rng(seed)
    support = random_support(kind.support, random, smallest=1 if kind.ugly else 2)
    # What is compared are the numbers of the type, not their rounding.
    tables = assemble(kind, support, random_logits(kind, support, random)).to(dtype=dtype)
    return dense_oracle(tables), tables


def random_support(name: str, random: np.random.Generator, smallest: int = 2) -> Support:
    if name == "dense":
        return dense_support(num_words=int(random.integers(smallest, 6)), num_states=int(random.integers(1, 5)))
    if name == "cloned":
        return cloned_support(num_words=int(random.integers(smallest, 4)), clones=int(random.integers(1, 3)))
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
        return random_support(name, random, smallest)
    return Support(torch.arange(num_words), torch.tensor(np.sort(states)), num_states, partition=False)


def random_logits(kind: Kind, support: Support, random: np.random.Generator) -> dict[str, Tensor]:
    """Free numbers from which `assemble` makes a normalised HMM."""
    states, words, width = support.num_states, support.num_words, 3

    def draw(*shape: int, zeros: bool = False) -> Tensor:
        if kind.ugly:
            return torch.tensor(ugly_rows(np.ones(shape, dtype=bool), random))
        logits = 1.5 * random.standard_normal(shape)
        if zeros:
            closed = random.random(shape) < 0.4
            # One cell of each row stays open: the row must sum to one.
            np.put_along_axis(closed, random.integers(shape[-1], size=(*shape[:-1], 1)), False, axis=-1)
            logits[closed] = -np.inf
        return torch.tensor(logits)

    def features() -> Tensor:
        if kind.ugly:
            # Whole numbers: their products are exact in every type.
            return torch.tensor(random.choice([-8.0, -4.0, -1.0, 0.0, 0.0, 1.0, 4.0, 8.0], size=(states, width)))
        return draw(states, width)

    logits = {"start": draw(states, zeros=kind.zeros), "emission": draw(states, words)}
    if kind.ugly:
        logits["emission"] = torch.tensor(ugly_rows(emitted(support).numpy(), random))
    if kind.transition == "table":
        logits["transition"] = draw(states, states, zeros=kind.zeros)
        if kind.ugly and random.random() < 0.5:
            # States that are hardly left: one that has all but faded can come back much later.
            closed = random.random((states, states)) < 0.7
            np.fill_diagonal(closed, False)
            logits["transition"][torch.tensor(closed)] = -torch.inf
            logits["transition"].fill_diagonal_(0.0)
    elif kind.transition == "low-rank":
        logits |= {"to_class": draw(states, 2, zeros=kind.zeros), "from_class": draw(2, states, zeros=kind.zeros)}
    else:
        logits |= {"out": features(), "into": features()}
    if kind.transition == "block-factored":
        logits["block"] = draw(states, support.num_groups, zeros=kind.zeros)
    return logits


def ugly_rows(usable: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Logits over the last axis, -inf where not usable; every row has a usable cell that is open."""
    rows = np.full(usable.shape, -np.inf).reshape(-1, usable.shape[-1])
    # Half of the tables are of one sort: extremes matter most where they meet.
    common = random.choice([0, 1, 2, 3, 4, 4, 4, 4, 5]) if random.random() < 0.5 else None
    for row, cells in zip(rows, usable.reshape(rows.shape), strict=True):
        num = int(cells.sum())
        match random.integers(6) if common is None else common:
            case 0:
                logits = np.zeros(num)
            case 1:
                logits = np.log(random.choice([0.5, 1.0], size=num))
            case 2:
                logits = np.where(random.random(num) < 0.5, -np.inf, 1.5 * random.standard_normal(num))
            case 3:
                logits = -random.uniform(15, 115, size=num)
            case 4:
                logits = -np.log(10) * random.uniform(0, 99, size=num)
                logits[random.random(num) < 0.2] = -np.inf
            case _:
                logits = 1.5 * random.standard_normal(num)
        # One cell of each row stays open, and is the likeliest where the others are all but impossible.
        logits[random.integers(num)] = 0.0
        row[cells] = logits
    return rows.reshape(usable.shape)


def emitted(support: Support) -> Tensor:
    """Which state can emit which word, (Z, X)."""
    emits = torch.zeros(support.num_states, support.num_words, dtype=torch.bool)
    emits[support.states_of_group[support.group_of_word], torch.arange(support.num_words)[:, None]] = True
    return emits


def assemble(kind: Kind, support: Support, logits: dict[str, Tensor]) -> Tables:
    """Differentiable in the logits, and normalised whatever they are."""
    words = torch.arange(support.num_words)[:, None]
    states = support.states_of_group[support.group_of_word]
    log_emission = logits["emission"].masked_fill(~emitted(support), -torch.inf).log_softmax(dim=1)
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
        logits = transition.out.double().numpy() @ transition.into.double().numpy().T
        if isinstance(transition, SoftmaxTransition):
            probs = np.exp(logits - transition.log_normalizer.double().numpy()[:, None])
        else:
            probs = np.empty_like(logits)
            block_probs = np.exp(transition.log_block.double().numpy())
            for block, states in enumerate(support.states_of_group.numpy()):
                within = np.exp(logits[:, states] - log_sum(logits[:, states], axis=1)[:, None])
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
