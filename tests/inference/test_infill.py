"""Missing tokens against the enumeration of all fillings and all state paths."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import close, every_kind
from oracle import EVERY_KIND, Kind, Oracle, ragged, random_hmm

import vlhmm
from vlhmm.inference.errors import ImpossibleTextError

MASKS = [
    np.array([False, True, False, True, True]),
    np.array([True]),
    np.array([True, True, True]),
    np.array([False, False, True]),
    np.array([True, False, False, False]),
]

some_kinds = pytest.mark.parametrize("kind", EVERY_KIND[::3], ids=str)


def fillings(oracle: Oracle, sentence: np.ndarray, mask: np.ndarray, exclude=()) -> dict[tuple[int, ...], float]:
    """p(the text with it) of every filling."""
    words = [word for word in range(oracle.num_words) if word not in exclude]
    joint = {}
    for filling in itertools.product(words, repeat=int(mask.sum())):
        text = sentence.copy()
        text[mask] = filling
        joint[filling] = float(oracle.joint(text).sum())
    return joint


def texts_with_gaps(oracle: Oracle, seed: int, masks) -> tuple[list[np.ndarray], torch.Tensor, torch.Tensor]:
    """Possible sentences, the ids under the gaps replaced by nonsense; the batch and its mask."""
    random = np.random.default_rng(seed)
    sentences = [oracle.sentence(len(mask), random) for mask in masks]
    tokens, _ = ragged(sentences)
    missing = torch.zeros_like(tokens, dtype=torch.bool)
    for row, mask in enumerate(masks):
        missing[row, : len(mask)] = torch.tensor(mask)
        # Past the length the mask means nothing.
        missing[row, len(mask) :] = True
    tokens[missing] = -7
    return sentences, tokens, missing


def check(oracle: Oracle, hmm: vlhmm.HMM, seed: int, masks, exclude=()) -> None:
    sentences, tokens, missing = texts_with_gaps(oracle, seed, masks)
    lengths = torch.tensor([len(mask) for mask in masks])
    filled = hmm.infill(tokens, missing, lengths, num=3, exclude=exclude, seed=seed)
    for row, (sentence, mask) in enumerate(zip(sentences, masks, strict=True)):
        joint = fillings(oracle, sentence, mask, exclude)
        total = sum(joint.values())
        close(filled.log_prob[row], np.log(total))
        marginals = np.zeros((mask.sum(), oracle.num_words))
        for filling, prob in joint.items():
            marginals[np.arange(len(filling)), filling] += prob / total
        here = filled.rows == row
        assert filled.positions[here].tolist() == mask.nonzero()[0].tolist()
        close(filled.probs[here], marginals)
        for text in [*filled.samples[row], filled.best[row]]:
            text = text.numpy()
            assert (text[len(mask) :] == -1).all()
            assert (text[: len(mask)][~mask] == sentence[~mask]).all()
            assert joint[tuple(text[: len(mask)][mask])] > 0
        best = tuple(filled.best[row, : len(mask)].numpy()[mask])
        close(filled.best_log_prob[row], np.log(joint[best] / total))
        if mask.sum() == 1:
            assert joint[best] == pytest.approx(max(joint.values()))


@every_kind
def test_distributions_and_best_filling_equal_enumeration(kind):
    oracle, tables = random_hmm(kind, seed=11)
    check(oracle, vlhmm.HMM(tables), 11, MASKS)


@some_kinds
def test_excluded_tokens_are_given_not_to_stand_there(kind):
    oracle, tables = random_hmm(kind, seed=12)
    # The last word stays: the reset token in the middle may be among those excluded.
    exclude = [word for word in range(oracle.num_words - 1) if word in (1, oracle.num_words // 2)]
    sentences, tokens, missing = texts_with_gaps(oracle, 12, MASKS[:1])
    if not sum(fillings(oracle, sentences[0], MASKS[0], exclude).values()):
        with pytest.raises(ImpossibleTextError):
            vlhmm.HMM(tables).infill(tokens, missing, exclude=exclude)
        return
    check(oracle, vlhmm.HMM(tables), 12, MASKS[:1], exclude)


@settings(max_examples=20)
@given(
    st.sampled_from(EVERY_KIND),
    st.integers(0, 2**31),
    st.lists(st.lists(st.booleans(), min_size=1, max_size=4).filter(any), min_size=1, max_size=3),
)
def test_any_gaps_of_any_hmm(kind, seed, masks):
    oracle, tables = random_hmm(kind, seed)
    check(oracle, vlhmm.HMM(tables), seed, [np.array(mask) for mask in masks])


@every_kind
def test_the_best_pair_of_tokens_and_states(kind):
    oracle, tables = random_hmm(kind, seed=13)
    mask = np.array([False, True, False, True, False])
    sentences, tokens, missing = texts_with_gaps(oracle, 13, [mask])
    best = vlhmm.HMM(tables).infill(tokens, missing).best[0].numpy()

    def best_states(filling: tuple[int, ...]) -> float:
        """The best states from the first gap to the last, those outside summed out."""
        text = sentences[0].copy()
        text[mask] = filling
        return float(oracle.joint(text).sum((0, 4)).max())

    scores = {filling: best_states(filling) for filling in fillings(oracle, sentences[0], mask)}
    assert scores[tuple(best[mask])] == pytest.approx(max(scores.values()))


@pytest.mark.parametrize(
    "kind",
    [
        Kind("dense", "softmax", reset=True),
        Kind("blocked", "block-factored", reset=True),
        Kind("blocked", "table", reset=False, zeros=True),
        Kind("uniform", "softmax", reset=True),
    ],
    ids=str,
)
def test_samples_have_the_exact_frequencies(kind):
    oracle, tables = random_hmm(kind, seed=14)
    mask = np.array([False, True, True, False, True])
    sentences, tokens, missing = texts_with_gaps(oracle, 14, [mask, mask[:4]])
    num = 20_000
    filled = vlhmm.HMM(tables).infill(tokens, missing, [5, 4], num=num, seed=14)
    for row, length in enumerate((5, 4)):
        here = mask[:length]
        joint = fillings(oracle, sentences[row], here)
        total = sum(joint.values())
        drawn, counts = np.unique(filled.samples[row, :, :length].numpy()[:, here], axis=0, return_counts=True)
        frequencies = {tuple(filling): count / num for filling, count in zip(drawn, counts, strict=True)}
        for filling, prob in joint.items():
            expected = prob / total
            # Five standard deviations.
            room = 5 * np.sqrt(expected * (1 - expected) / num) + 1e-12
            assert abs(frequencies.get(filling, 0.0) - expected) <= room


@some_kinds
def test_a_past_counts(kind):
    oracle, tables = random_hmm(kind, seed=15)
    hmm = vlhmm.HMM(tables)
    whole = oracle.sentence(5, np.random.default_rng(15))
    mask = np.array([False, False, True, False, True])
    belief = hmm.filter(whole[None, :2]).belief
    after = hmm.infill(whole[None, 2:], mask[None, 2:], belief=belief)
    at_once = hmm.infill(whole[None], mask[None])
    close(after.probs, at_once.probs.numpy())
    close(after.log_prob + oracle.log_prob(whole[:2]), at_once.log_prob.numpy())


@every_kind
def test_sequences_do_not_depend_on_each_other(kind):
    oracle, tables = random_hmm(kind, seed=17)
    hmm = vlhmm.HMM(tables)
    # Gaps that begin and end at different positions, and known tokens between them.
    masks = [np.array([True, False, True, False, False, False]), np.array([False, False, False, True, False, True])]
    _, tokens, missing = texts_with_gaps(oracle, 17, [*masks, *MASKS])
    lengths = [len(mask) for mask in [*masks, *MASKS]]
    together = hmm.infill(tokens, missing, lengths)
    for row, length in enumerate(lengths):
        alone = hmm.infill(tokens[row, None, :length], missing[row, None, :length])
        close(together.log_prob[row], alone.log_prob[0].numpy())
        close(together.probs[together.rows == row], alone.probs.numpy())
        if not kind.ugly:
            # Of ties either may be the best: rounding differs with the size of the batch.
            assert together.best[row, :length].tolist() == alone.best[0].tolist()


def test_transitions_are_made_in_parts(monkeypatch):
    monkeypatch.setattr("vlhmm.inference.moves.BLOCK_BYTES", 1)
    monkeypatch.setattr("vlhmm.inference.moves.KEPT_BYTES", 0)
    for support in ("dense", "blocked", "uniform"):
        oracle, tables = random_hmm(Kind(support, "softmax", reset=True), seed=16)
        check(oracle, vlhmm.HMM(tables), 16, MASKS)


def test_float32_tables_lose_no_small_transition():
    # exp(-150) is 0 in float32, yet the only way to the last token.
    far = -150.0
    log_transition = torch.tensor([[0.0, far], [far, 0.0]])
    tables = random_hmm(Kind("blocked", "table", reset=False), 0, torch.float32)[1]
    support = vlhmm.tables.blocked_support(torch.tensor([0, 1]), 2, 1)
    tables = vlhmm.tables.Tables(
        support, torch.tensor([0.0, -torch.inf]), vlhmm.tables.TableTransition(log_transition), torch.zeros(2, 1)
    )
    filled = vlhmm.HMM(tables).infill([[0, 0, 1]], [[False, True, False]], num=0)
    close(filled.probs, [[0.5, 0.5]], torch.float32)
    close(filled.log_prob, [far + np.log(2)], torch.float32)


def test_bad_requests_are_refused():
    hmm = vlhmm.HMM.from_probabilities([1, 0], [[1, 0], [0, 1]], [[1, 0], [0, 1]])
    with pytest.raises(ValueError, match="sequence 1 has 0 missing tokens"):
        hmm.infill([[0, 0], [0, 0]], [[True, False], [False, False]])
    with pytest.raises(ValueError, match="sequence 0 has 0 missing tokens"):
        hmm.infill([[0, 0]], [[False, True]], lengths=[1])
    with pytest.raises(ValueError, match="mask of True and False"):
        hmm.infill([[0, 0]], [[0, 1]])
    with pytest.raises(ValueError, match=r"\(1, 1\).*\(1, 2\)"):
        hmm.infill([[0, 0]], [[True]])
    with pytest.raises(ValueError, match="exclude has 5"):
        hmm.infill([[0, 0]], [[False, True]], exclude=[5])
    with pytest.raises(ValueError, match="num is -1"):
        hmm.infill([[0, 0]], [[False, True]], num=-1)
    with pytest.raises(ImpossibleTextError, match="sequence 1 has probability zero whatever"):
        hmm.infill([[0, 0, 0], [0, 0, 1]], [[False, True, False]] * 2)
    with pytest.raises(ImpossibleTextError, match="sequence 0 has probability zero whatever"):
        hmm.infill([[0, 0, 0]], [[False, True, False]], exclude=[0])
