"""How a text begins where states are carried over EOS: as after an EOS in running text, not at the start of one."""

import numpy as np
import pytest
import torch
from kinds import close, every_dtype
from oracle import EVERY_KIND, Kind, random_hmm
from tiny import tiny_corpus, tiny_model

import vlhmm
from vlhmm.data import word_tokenizer
from vlhmm.inference.predict import PreciseNextTokens, belief_at


# Where states begin anew after a token, a text begins from the start distribution.
@pytest.mark.parametrize("kind", [kind for kind in EVERY_KIND if not kind.reset], ids=str)
@pytest.mark.parametrize("unknown", [0, 1, 2])
def test_tokens_that_are_not_known_are_summed_over(kind: Kind, unknown: int) -> None:
    oracle, tables = random_hmm(kind, seed=3)
    for token in range(oracle.num_words):
        total = np.zeros(oracle.num_states)
        for before in np.ndindex(*[oracle.num_words] * unknown):
            tokens = np.array([*before, token])
            total += oracle.joint(tokens).reshape(-1, oracle.num_states).sum(0)
        belief = belief_at(tables, token, unknown)
        if total.sum() == 0:
            assert belief is None
            continue
        assert belief is not None
        states = tables.support.states_of(belief.token)[0]
        close(belief.probs[0], (total / total.sum())[states.numpy()])


def with_unused_states(num_unused: int) -> vlhmm.LanguageModel:
    """Running text is `the <eos> the <eos> ...`; the start distribution also has states of EOS that nothing leads to."""
    tokenizer = word_tokenizer(["the", "noise"], unk=False)
    the, noise, eos = (tokenizer.token_id(word) for word in ("the", "noise", "<eos>"))
    num_states = 2 + num_unused
    emission, transition = np.zeros((num_states, 3)), np.zeros((num_states, num_states))
    emission[0, the], emission[1:, eos] = 0.999, 1
    emission[0, noise] = 0.001
    # States 0 and 1 take turns, now and then one twice; an unused state of EOS is left for any state once.
    transition[0, [0, 1]], transition[1, [0, 1]] = [0.05, 0.95], [0.95, 0.05]
    transition[2:, :2] = 0.5
    hmm = vlhmm.HMM.from_probabilities(np.full(num_states, 1 / num_states), transition, emission)
    return vlhmm.LanguageModel.from_hmm(hmm, tokenizer)


def test_states_that_running_text_never_visits_have_no_say_in_how_a_text_begins() -> None:
    for num_unused in (0, 1, 50):
        first = dict(with_unused_states(num_unused).next_tokens("", top=3))
        assert first["the"] == pytest.approx(0.95 * 0.999, abs=1e-6)


def test_a_text_begins_as_lines_do_in_running_text() -> None:
    """The first token's mean log-probability, by `lm.score` of each line alone, and within the text that they are lines of."""
    corpus = tiny_corpus(100)
    model = tiny_model(corpus, reset="carry")
    vlhmm.train(model, corpus, epochs=2, batch_size=4, window=16, checks_per_epoch=1)
    lm = vlhmm.LanguageModel(model, corpus.tokenizer)
    ids = torch.from_numpy(corpus.valid.ids.astype(np.int64))
    within = lm.hmm.token_log_probs(ids[None])[0][1:][ids[:-1] == corpus.tokenizer.eos_id]
    assert dict(lm.next_tokens("", top=100))["the"] == pytest.approx(float(within.exp().mean()), abs=0.03)


def test_where_no_eos_can_stand_a_text_begins_from_the_start() -> None:
    tokenizer = word_tokenizer(["a", "b"], unk=False)
    a, eos = tokenizer.token_id("a"), tokenizer.token_id("<eos>")
    emission = np.zeros((4, 3))
    emission[:3, a], emission[3, eos] = 1, 1
    # EOS comes fourth, eighth, ...: never after two tokens.
    cycle = np.roll(np.eye(4), 1, axis=1)
    lm = vlhmm.LanguageModel.from_hmm(vlhmm.HMM.from_probabilities([1, 0, 0, 0], cycle, emission), tokenizer)
    assert lm.opening is None
    assert lm.score("a a a", eos=True).log_prob == pytest.approx(0, abs=1e-6)


@every_dtype
def test_what_float64_cannot_hold_is_summed_over(dtype: torch.dtype) -> None:
    """p(state 2) = 1e-400 and p(state 3) = 2e-400 after two unknown tokens; only these two states emit token 1."""
    transition = np.array([[1, 1e-200, 0, 0], [0, 1, 1e-200, 2e-200], [0, 0, 1, 0], [0, 0, 0, 1]])
    emission = np.array([[1, 0], [1, 0], [0, 1], [0, 1]])
    tables = vlhmm.HMM.from_probabilities([1, 0, 0, 0], transition, emission, dtype=dtype).tables
    belief = belief_at(tables, 1, unknown=2)
    assert belief is not None
    np.testing.assert_allclose(belief.probs[0], [0, 0, 1 / 3, 2 / 3], rtol=1e-5)
    assert belief_at(tables, 1, unknown=1) is None


@pytest.mark.parametrize("kind", EVERY_KIND, ids=str)
def test_next_tokens_in_log_space_are_those_of_the_enumeration(kind: Kind) -> None:
    oracle, tables = random_hmm(kind, seed=4)
    hmm, precise = vlhmm.HMM(tables), PreciseNextTokens(tables)
    for past in ([], [0], [1, 0], [2, 1]):
        belief = hmm.filter([past]).belief if past else None
        total = oracle.log_prob(np.array(past)) if past else 0.0
        joint = [oracle.log_prob(np.array([*past, token])) for token in range(oracle.num_words)]
        if np.isfinite(total):
            np.testing.assert_allclose(precise(belief)[0].exp(), np.exp(np.array(joint) - total), atol=1e-10)
        else:
            assert bool((precise(belief) == -torch.inf).all())
