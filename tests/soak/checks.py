"""Every public query of `HMM`, each held against enumeration. A check raises `AssertionError` where an answer is wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from tests.oracle import log_sum, scatter_states
from tests.soak.cases import Case, Text
from tests.soak.soft import of_evidence
from vlhmm.inference.errors import ImpossibleTextError
from vlhmm.inference.evidence import NO_TOKEN
from vlhmm.inference.viterbi import Paths

MAX_FILLINGS = 30


def near(actual: Tensor | np.ndarray | float, expected: np.ndarray | float, atol: float, what: str) -> None:
    """Equal within `atol`; infinite in the same places."""
    if isinstance(actual, Tensor):
        actual = actual.detach().double().cpu().numpy()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol, err_msg=what)


def rows(case: Case) -> list[tuple[int, Text, int]]:
    """Row, text and length of each text of the batch."""
    return [(row, text, len(text.tokens)) for row, text in enumerate(case.texts)]


def log_prob(case: Case) -> None:
    expected = [text.log_prob for text in case.texts]
    atol = max(case.atol(text) for text in case.texts)
    near(case.hmm.log_prob(*case.batch), expected, atol, "whole")
    near(case.hmm.log_prob(*case.batch, window=case.window or 1), expected, atol, "in windows")
    carried = case.hmm.log_prob(case.halves[1], belief=case.belief, window=case.window)
    before = case.texts[0].prefixes[case.cut - 1].log_prob
    near(carried[0], expected[0] - before, atol, "carried")


def token_log_probs(case: Case) -> None:
    _token_log_probs(case, case.hmm.token_log_probs(*case.batch, window=case.window))


def token_log_probs_parallel(case: Case) -> None:
    _token_log_probs(case, case.hmm.token_log_probs(*case.batch, parallel=True))
    carried = case.hmm.token_log_probs(case.halves[1], belief=case.belief, parallel=True)
    near(carried[0], case.texts[0].token_log_probs[case.cut :], case.atol(case.texts[0]), "carried")


def _token_log_probs(case: Case, found: Tensor) -> None:
    assert found.shape == case.batch[0].shape[:2]
    for row, text, length in rows(case):
        near(found[row, :length], text.token_log_probs, case.atol(text), f"row {row}")
        assert (found[row, length:] == 0).all(), "past the length"


def filter_(case: Case) -> None:
    found = case.hmm.filter(*case.batch, window=case.window)
    probs = scatter_states(found.probs.cpu(), found.states.cpu(), case.hmm.num_states)
    for row, text, length in rows(case):
        near(probs[row, :length], text.filter, case.atol(text), f"row {row}")
        assert (probs[row, length:] == 0).all(), "past the length"
        assert int(found.belief.token[row]) == text.tokens[-1]
        support = case.hmm.tables.support
        soft = text.tokens[-1] == NO_TOKEN
        states = torch.arange(support.num_states)[None] if soft else support.states_of(found.belief.token[[row]]).cpu()
        of_last = states[0].numpy()
        near(found.belief.probs[row], text.filter[-1][of_last], case.atol(text), "belief")
    text = case.texts[0]
    found = case.hmm.filter(case.halves[1], belief=case.belief, window=case.window)
    probs = scatter_states(found.probs.cpu(), found.states.cpu(), case.hmm.num_states)
    near(probs[0], text.filter[case.cut :], case.atol(text), "carried")


def posterior(case: Case) -> None:
    found = case.hmm.posterior(*case.batch, window=case.window).dense()
    for row, text, length in rows(case):
        near(found[row, :length], text.posterior, case.atol(text), f"row {row}")
        assert (found[row, length:] == 0).all(), "past the length"
    text = case.texts[0]
    found = case.hmm.posterior(case.halves[1], belief=case.belief, window=case.window).dense()
    near(found[0], text.posterior[case.cut :], case.atol(text), "carried")


def posterior_entropy(case: Case) -> None:
    found = case.hmm.posterior_entropy(*case.batch, window=case.window)
    for row, text, length in rows(case):
        near(found.path[row], entropy(text.path_probs.ravel()), case.atol(text), f"path of row {row}")
        near(found.position[row, :length], [entropy(probs) for probs in text.posterior], case.atol(text), f"row {row}")
        assert (found.position[row, length:] == 0).all(), "past the length"
    text = case.texts[0]
    found = case.hmm.posterior_entropy(case.halves[1], belief=case.belief, window=case.window)
    expected = entropy(text.path_probs.sum(tuple(range(case.cut))).ravel())
    near(found.path[0], expected, case.atol(text), "carried")


def entropy(probs: np.ndarray) -> float:
    positive = probs[probs > 0]
    return float(-(positive * np.log(positive)).sum())


def viterbi(case: Case) -> None:
    _paths(case, 1)


def viterbi_k(case: Case) -> None:
    _paths(case, int(case.random.choice([2, 3, 3, 4, 5, 8, 20, 100])))


def _paths(case: Case, k: int) -> None:
    tokens, lengths = case.batch
    found = case.hmm.viterbi(tokens, lengths, k=k, window=case.window)
    assert found.states.shape == (len(case.texts), k, tokens.shape[1])
    for row, text, length in rows(case):
        _best_paths(found, row, text.log_joint, case.relative, f"k = {k}, row {row}")
        assert (found.states[row, :, length:] == -1).all(), "past the length"
    text = case.texts[0]
    found = case.hmm.viterbi(case.halves[1], k=k, belief=case.belief, window=case.window)
    _best_paths(found, 0, text.rest(case.cut), case.relative, f"k = {k}, carried")


def _best_paths(found: Paths, row: int, log_joint: np.ndarray, relative: float, what: str) -> None:
    """Sorted, distinct, each with its own probability, and none is missing."""
    log_prob, k = found.log_prob[row].double().cpu().numpy(), found.log_prob.shape[1]
    expected = np.sort(log_joint[log_joint > -np.inf])[::-1][:k]
    num = len(expected)
    # The scale is that of the path's own probability.
    np.testing.assert_allclose(log_prob[:num], expected, rtol=relative, atol=relative, err_msg=what)
    assert np.isneginf(log_prob[num:]).all(), f"{what}: more than {num} paths"
    paths = [tuple(path) for path in found.states[row, :, : log_joint.ndim].tolist()]
    assert (np.array(paths[num:]) == -1).all(), f"{what}: states of a path that does not exist"
    assert len(set(paths[:num])) == num, f"{what}: a path comes twice"
    own = [log_joint[path] for path in paths[:num]]
    np.testing.assert_allclose(log_prob[:num], own, rtol=relative, atol=relative, err_msg=f"{what}: score of a path")


def infill(case: Case) -> None:
    random, oracle = case.random, case.oracle
    exclude = [int(word) for word in range(oracle.num_words) if oracle.num_words > 1 and random.random() < 0.1]
    tokens, lengths = case.batch
    missing = np.zeros(tokens.shape, dtype=bool)
    for row, _, length in rows(case):
        most = 2 if oracle.num_words**2 <= MAX_FILLINGS else 1
        missing[row, random.choice(length, size=min(length, most), replace=False)] = True
    fillings = [_Fillings(text, missing[row, :length], exclude) for row, text, length in rows(case)]
    generator = torch.Generator(case.hmm.tables.device).manual_seed(case.seed)
    hidden = tokens.masked_fill(torch.tensor(missing), -7)
    asked = {"num": 2, "exclude": exclude, "generator": generator}
    if any(np.isneginf(one.log_prob) for one in fillings):
        _impossible(lambda: case.hmm.infill(hidden, missing, lengths, **asked))
        return
    found = case.hmm.infill(hidden, missing, lengths, **asked)
    for row, text, length in rows(case):
        one, mask = fillings[row], missing[row, :length]
        atol = case.relative * (1 + abs(one.log_prob))
        near(found.log_prob[row], one.log_prob, atol, "log p of what is known")
        here = (found.rows == row).cpu()
        assert found.positions.cpu()[here].tolist() == mask.nonzero()[0].tolist()
        near(found.probs.cpu()[here], one.marginals, atol, f"distributions of row {row}")
        best = tuple(found.best[row, :length].cpu().numpy()[mask].tolist())
        near(found.best_log_prob[row], one.log_joint[best] - one.log_prob, atol, "log p of the best filling")
        score = one.log_joint if mask.sum() == 1 else one.log_best
        near(score[best], max(score.values()), atol, f"best filling of row {row}")
        for sample in [*found.samples[row], found.best[row]]:
            drawn = sample.cpu().numpy()
            assert (drawn[length:] == -1).all(), "past the length"
            assert (drawn[:length][~mask] == text.tokens[~mask]).all(), "what is known was changed"
            assert one.log_joint[tuple(drawn[:length][mask].tolist())] > -np.inf, "an impossible filling"


class _Fillings:
    """All fillings of a text's gaps."""

    def __init__(self, text: Text, mask: np.ndarray, exclude: list[int]) -> None:
        oracle, gaps = text.oracle, mask.nonzero()[0]
        words = [word for word in range(oracle.num_words) if word not in exclude]
        self.log_joint: dict[tuple[int, ...], float] = {}
        self.log_best: dict[tuple[int, ...], float] = {}
        outside = tuple(t for t in range(len(mask)) if not gaps[0] <= t <= gaps[-1])
        for filling in itertools.product(words, repeat=len(gaps)):
            tokens = text.tokens.copy()
            tokens[gaps] = filling
            paths = oracle.log_joint(tokens)
            self.log_joint[filling] = float(log_sum(paths.ravel(), axis=0))
            # The best states from the first gap to the last, those outside summed out.
            inner = np.moveaxis(paths, outside, range(len(outside))).reshape(oracle.num_states ** len(outside), -1)
            self.log_best[filling] = float(log_sum(inner, axis=0).max())
        values = np.array([*self.log_joint.values(), -np.inf])
        self.log_prob = float(log_sum(values, axis=0))
        self.marginals = np.zeros((len(gaps), oracle.num_words))
        for filling, value in self.log_joint.items():
            if value > -np.inf:
                self.marginals[np.arange(len(gaps)), filling] += np.exp(value - self.log_prob)


def expected_counts(case: Case) -> None:
    found = case.hmm.expected_counts(*case.batch)
    expected = [case.oracle.counts(text.tokens) for text in case.texts]
    start, transition, emission = (sum(parts) for parts in zip(*expected, strict=True))
    atol = max(case.atol(text) for text in case.texts)
    near(found.start, start, atol, "start")
    near(found.transition, transition, atol, "transition")
    support = case.hmm.tables.support
    words = torch.arange(support.num_words, device=support.group_of_word.device)
    states = support.states_of(words).cpu().numpy()
    near(found.emission, emission[states, np.arange(support.num_words)[:, None]], atol, "emission")


def soft_counts(case: Case) -> None:
    found = case.hmm.expected_counts(*case.batch)
    num_states = case.oracle.num_states
    start, moves = np.zeros(num_states), np.zeros((num_states, num_states))
    for text in case.texts:
        start += text.posterior[0]
        for t in range(len(text.tokens) - 1):
            others = tuple(axis for axis in range(len(text.tokens)) if axis not in (t, t + 1))
            moves += text.path_probs.sum(others)
    atol = max(case.atol(text) for text in case.texts)
    near(found.start, start, atol, "start")
    near(found.transition, moves, atol, "transition")


def next_token_probs(case: Case) -> None:
    oracle, text = case.oracle, case.texts[0].prefixes[case.cut - 1]
    near(case.hmm.next_token_probs()[0], oracle.start @ oracle.emission, case.relative, "of the first token")
    after = oracle.start if text.tokens[-1] == oracle.reset_token else text.filter[-1] @ oracle.transition
    near(case.hmm.next_token_probs(case.belief)[0], after @ oracle.emission, case.atol(text), "given a past")


def sample(case: Case) -> None:
    generator = torch.Generator(case.hmm.tables.device).manual_seed(case.seed)
    drawn = case.hmm.sample(2, 4, generator)
    for states, tokens in zip(drawn.states.tolist(), drawn.tokens.cpu().numpy(), strict=True):
        assert case.oracle.log_joint(tokens)[tuple(states)] > -np.inf, "an impossible text"


def sample_posterior(case: Case) -> None:
    tokens, lengths = case.batch
    generator = torch.Generator(case.hmm.tables.device).manual_seed(case.seed)
    paths = case.hmm.sample_posterior(tokens, 4, lengths, generator, window=case.window)
    for row, text, length in rows(case):
        assert (paths[row, :, length:] == -1).all(), "past the length"
        for path in paths[row, :, :length].tolist():
            # What has less than 1e-6 of the probability is not drawn in as many cases as are run.
            assert text.path_probs[tuple(path)] > 1e-9, f"path {path} of row {row} is all but impossible"


def stream(case: Case) -> None:
    text, fed = case.texts[0], case.hmm.stream(2)
    tokens, begin = torch.tensor(text.tokens), 0
    while begin < len(tokens):
        end = min(len(tokens), begin + int(case.random.integers(1, 4)))
        # The second stream gets nothing.
        bit = torch.stack([tokens[begin:end]] * 2)
        log_probs = fed.feed(bit, [end - begin, 0])
        near(log_probs[0], text.token_log_probs[begin:end], case.atol(text), f"from {begin} to {end}")
        begin = end
    near(fed.log_prob[0], text.log_prob, case.atol(text), "log p")
    after = (
        case.oracle.start if text.tokens[-1] == case.oracle.reset_token else text.filter[-1] @ case.oracle.transition
    )
    probs = fed.next_token_probs()
    near(probs[0], after @ case.oracle.emission, case.atol(text), "next token")
    near(probs[1], case.oracle.start @ case.oracle.emission, case.relative, "next token of the idle stream")


def fit(case: Case) -> None:
    texts = [text.tokens for text in case.texts]
    fitted = case.hmm.fit(texts, iterations=2, tolerance=-np.inf)
    expected = sum(text.log_prob for text in case.texts)
    atol = case.relative * (1 + abs(expected))
    near(fitted.log_probs[0], expected, atol, "log p before the step")
    assert fitted.log_probs[1] >= fitted.log_probs[0] - atol, f"log p fell from {fitted.log_probs}"


def impossible(case: Case) -> None:
    """Texts of probability zero: -inf from the first impossible token on, and an error where there is no answer."""
    tokens = case.random.integers(case.oracle.num_words, size=4)
    expected = case.oracle.token_log_probs(tokens)
    possible = expected > -np.inf
    found = case.hmm.token_log_probs(tokens[None], window=case.window)[0].double().cpu().numpy()
    atol = case.relative * (1 + abs(expected[possible].sum()))
    near(found[possible], expected[possible], atol, "before it")
    if possible.all():
        return
    assert np.isneginf(found[np.argmin(possible)]), "the first impossible token"
    assert np.isneginf(case.hmm.log_prob(tokens[None], window=case.window).item()), "log p"
    for asked in (
        lambda: case.hmm.viterbi(tokens[None], window=case.window),
        lambda: case.hmm.viterbi(tokens[None], k=3, window=case.window),
        lambda: case.hmm.posterior_entropy(tokens[None], window=case.window),
        lambda: case.hmm.sample_posterior(tokens[None], 1, window=case.window),
    ):
        _impossible(asked)


def _impossible(asked: Callable[[], object]) -> None:
    try:
        asked()
    except ImpossibleTextError:
        return
    raise AssertionError("an answer where the text is impossible")


CHECKS: dict[str, Callable[[Case], None]] = {
    check.__name__.rstrip("_"): check
    for check in (
        log_prob,
        token_log_probs,
        token_log_probs_parallel,
        filter_,
        posterior,
        posterior_entropy,
        viterbi,
        viterbi_k,
        infill,
        expected_counts,
        next_token_probs,
        sample,
        sample_posterior,
        stream,
        fit,
        impossible,
    )
}
CHECKS |= {
    f"soft_{check.__name__.removeprefix('soft_').rstrip('_')}": of_evidence(check)
    for check in (
        log_prob,
        token_log_probs,
        token_log_probs_parallel,
        filter_,
        posterior,
        posterior_entropy,
        viterbi,
        viterbi_k,
        soft_counts,
        next_token_probs,
        sample_posterior,
    )
}
