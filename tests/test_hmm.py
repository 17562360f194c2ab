"""Every query of `vlhmm.HMM` against the enumeration of all state paths, for every kind of HMM."""

import itertools

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from kinds import SEEDS, close, every_dtype, every_kind, some_sentences, table_kinds
from oracle import (
    EVERY_KIND,
    Kind,
    ragged,
    random_hmm,
    scatter_states,
)

import vlhmm
from vlhmm.support import Support, dense_support
from vlhmm.tables import Belief, Tables


@every_kind
def test_oracle_messages_equal_enumeration(kind):
    for seed in SEEDS:
        oracle, _ = random_hmm(kind, seed)
        for sentence in some_sentences(oracle, seed):
            messages = oracle.by_messages(sentence)
            close(messages.token_log_probs, oracle.token_log_probs(sentence))
            close(messages.filter, oracle.filter(sentence))
            close(messages.posterior, oracle.posterior(sentence))
            close(messages.best_log_prob, oracle.best_log_prob(sentence))
            close(oracle.log_joint(sentence)[tuple(messages.best_path)], oracle.best_log_prob(sentence))


@every_dtype
@every_kind
def test_log_probs_equal_enumeration(kind, dtype):
    for seed in SEEDS:
        oracle, tables = random_hmm(kind, seed, dtype)
        sentences = some_sentences(oracle, seed)
        tokens, lengths = ragged(sentences)
        log_prob = vlhmm.HMM(tables).log_prob(tokens, lengths)
        token_log_probs = vlhmm.HMM(tables).token_log_probs(tokens, lengths)
        assert log_prob.shape == (4,)
        assert token_log_probs.shape == (4, 4)
        close(log_prob, [oracle.log_prob(sentence) for sentence in sentences], dtype)
        for row, sentence in zip(token_log_probs, sentences, strict=True):
            close(row[: len(sentence)], oracle.token_log_probs(sentence), dtype)
            assert (row[len(sentence) :] == 0).all()


@every_dtype
@every_kind
def test_filter_equals_enumeration(kind, dtype):
    for seed in SEEDS:
        oracle, tables = random_hmm(kind, seed, dtype)
        sentences = some_sentences(oracle, seed)
        tokens, lengths = ragged(sentences)
        filtered = vlhmm.HMM(tables).filter(tokens, lengths)
        assert filtered.probs.dtype == dtype
        assert filtered.probs.shape == filtered.states.shape == (4, 4, tables.support.states_per_word)
        dense = scatter_states(filtered.probs, filtered.states, oracle.num_states)
        belief = filtered.belief
        last = scatter_states(belief.probs[:, None], tables.support.states_of(belief.token)[:, None], oracle.num_states)
        for b, sentence in enumerate(sentences):
            expected = oracle.filter(sentence)
            close(dense[b, : len(sentence)], expected, dtype)
            assert (dense[b, len(sentence) :] == 0).all()
            assert belief.token[b] == sentence[-1]
            close(last[b, 0], expected[-1], dtype)


@every_dtype
@every_kind
def test_posterior_equals_enumeration(kind, dtype):
    for seed in SEEDS:
        oracle, tables = random_hmm(kind, seed, dtype)
        sentences = some_sentences(oracle, seed)
        tokens, lengths = ragged(sentences)
        posterior = vlhmm.HMM(tables).posterior(tokens, lengths)
        assert posterior.probs.dtype == dtype
        assert posterior.probs.shape == posterior.states.shape == (4, 4, tables.support.states_per_word)
        dense = posterior.dense()
        assert dense.shape == (4, 4, oracle.num_states)
        close(
            scatter_states(posterior.probs, posterior.states, oracle.num_states),
            dense.double().numpy(),
            dtype,
        )
        for b, sentence in enumerate(sentences):
            close(dense[b, : len(sentence)], oracle.posterior(sentence), dtype)
            close(posterior.probs[b, : len(sentence)].sum(1), 1.0, dtype)
            assert (posterior.probs[b, len(sentence) :] == 0).all()


@every_dtype
@every_kind
def test_expected_counts_equal_enumeration(kind, dtype):
    for seed in SEEDS:
        oracle, tables = random_hmm(kind, seed, dtype)
        sentences = some_sentences(oracle, seed)
        counts = vlhmm.HMM(tables).expected_counts(*ragged(sentences))
        start, transition, emission = (sum(parts) for parts in zip(*map(oracle.counts, sentences), strict=True))
        states = tables.support.states_of(torch.arange(oracle.num_words)).numpy()
        close(counts.start, start, dtype)
        close(counts.transition, transition, dtype)
        close(counts.emission, np.take_along_axis(emission.T, states, axis=1), dtype)


@every_kind
def test_expected_counts_sum_to_the_positions(kind):
    oracle, tables = random_hmm(kind, seed=5)
    sentences = some_sentences(oracle, 5, lengths=(9, 1, 6, 12))
    tokens, lengths = ragged(sentences)
    counts = vlhmm.HMM(tables).expected_counts(tokens, lengths)
    starts = sum(oracle.after_reset(sentence, t) for sentence in sentences for t in range(len(sentence)))
    close(counts.start.sum(), starts)
    close(counts.transition.sum(), int(lengths.sum()) - starts)
    close(counts.emission.sum(1), np.bincount(np.concatenate(sentences), minlength=oracle.num_words))


@every_dtype
@every_kind
def test_viterbi_is_the_best_enumerated_path(kind, dtype):
    for seed in SEEDS:
        oracle, tables = random_hmm(kind, seed, dtype)
        sentences = some_sentences(oracle, seed)
        best = vlhmm.HMM(tables).viterbi(*ragged(sentences))
        assert best.states.shape == (4, 1, 4)
        assert best.log_prob.shape == (4, 1)
        for b, sentence in enumerate(sentences):
            path = best.states[b, 0]
            assert (path[len(sentence) :] == -1).all()
            close(
                oracle.log_joint(sentence)[tuple(path[: len(sentence)])],
                oracle.best_log_prob(sentence),
                dtype,
            )
            close(best.log_prob[b, 0], oracle.best_log_prob(sentence), dtype)


def test_viterbi_survives_ties():
    hmm = vlhmm.HMM.from_probabilities(np.full(3, 1 / 3), np.full((3, 3), 1 / 3), np.full((3, 2), 0.5))
    best = hmm.viterbi([[0, 1, 1, 0, 1]])
    assert ((best.states >= 0) & (best.states < 3)).all()
    close(best.log_prob, [[5 * np.log(1 / 6)]])


@every_dtype
@every_kind
def test_next_token_probs_equal_enumeration(kind, dtype):
    for seed in SEEDS:
        oracle, tables = random_hmm(kind, seed, dtype)
        hmm = vlhmm.HMM(tables)
        from_start = hmm.next_token_probs(None)
        assert from_start.shape == (1, oracle.num_words)
        close(from_start[0], oracle.start @ oracle.emission, dtype)
        sentences = some_sentences(oracle, seed)
        probs = hmm.next_token_probs(hmm.filter(*ragged(sentences)).belief)
        assert probs.shape == (4, oracle.num_words)
        for row, sentence in zip(probs, sentences, strict=True):
            close(row, oracle.next_token_probs(sentence), dtype)


@every_kind
def test_next_token_probs_are_what_the_next_token_scores(kind):
    oracle, tables = random_hmm(kind, seed=6)
    hmm = vlhmm.HMM(tables)
    belief = hmm.filter([some_sentences(oracle, 6, lengths=[7])[0]]).belief
    probs = hmm.next_token_probs(belief)
    close(probs.sum(), 1.0)
    everything = torch.arange(oracle.num_words)[:, None]
    repeated = Belief(belief.token.expand(oracle.num_words), belief.log_probs.expand(oracle.num_words, -1))
    close(hmm.log_prob(everything, belief=repeated).exp(), probs[0].numpy())


@every_kind
def test_all_sentences_sum_to_one(kind):
    oracle, tables = random_hmm(kind, seed=7)
    sentences = torch.tensor(list(itertools.product(range(oracle.num_words), repeat=3)))
    close(vlhmm.HMM(tables).log_prob(sentences).exp().sum(), 1.0)


@every_kind
def test_two_windows_equal_one(kind):
    for seed in SEEDS:
        oracle, tables = random_hmm(kind, seed)
        hmm = vlhmm.HMM(tables)
        tokens, _ = ragged(some_sentences(oracle, seed, lengths=(9, 9, 9)))
        whole = hmm.filter(tokens)
        for cut in (1, 5):
            belief = hmm.filter(tokens[:, :cut]).belief
            tail = tokens[:, cut:]
            second = hmm.filter(tail, belief=belief)
            close(
                hmm.token_log_probs(tail, belief=belief),
                hmm.token_log_probs(tokens)[:, cut:].detach().numpy(),
            )
            close(
                hmm.log_prob(tokens[:, :cut]) + hmm.log_prob(tail, belief=belief),
                hmm.log_prob(tokens).detach(),
            )
            close(second.probs, whole.probs[:, cut:].numpy())
            close(second.belief.probs, whole.belief.probs.numpy())
            # The past of a window tells all: given it, the smoothed second half is that of the whole.
            close(hmm.posterior(tail, belief=belief).probs, hmm.posterior(tokens).probs[:, cut:].numpy())


def test_reset_token_forgets_the_belief():
    oracle, tables = random_hmm(Kind("dense", "table", reset=True), seed=2)
    hmm = vlhmm.HMM(tables)
    reset, other = tables.reset_token, 0
    assert reset != other
    tail = torch.tensor([[0, 1, 1]])
    fresh = hmm.token_log_probs(tail)
    after_reset = hmm.token_log_probs(tail, belief=hmm.filter([[other, reset]]).belief)
    after_other = hmm.token_log_probs(tail, belief=hmm.filter([[other, other]]).belief)
    close(after_reset, fresh.numpy())
    assert (after_other - fresh).abs().max() > 1e-3
    close(after_other[0], oracle.token_log_probs(np.array([other, other, 0, 1, 1]))[2:])


@every_kind
def test_ragged_batch_equals_one_by_one(kind):
    oracle, tables = random_hmm(kind, seed=8)
    hmm = vlhmm.HMM(tables)
    sentences = some_sentences(oracle, 8, lengths=(5, 1, 7, 2))
    tokens, lengths = ragged(sentences)
    garbage = torch.tensor([0, -1, 10**9, -(2**63)])[torch.arange(tokens.numel()) % 4].view(tokens.shape)
    tokens = torch.where(torch.arange(tokens.shape[1]) < lengths[:, None], tokens, garbage)
    belief = hmm.filter([oracle.sentence(3, np.random.default_rng(b)) for b in range(4)]).belief
    together = hmm.token_log_probs(tokens, lengths, belief=belief)
    filtered, posterior, best = (
        hmm.filter(tokens, lengths),
        hmm.posterior(tokens, lengths),
        hmm.viterbi(tokens, lengths),
    )
    counts = hmm.expected_counts(tokens, lengths)
    alone_counts = [hmm.expected_counts([sentence]) for sentence in sentences]
    for b, sentence in enumerate(sentences):
        end = len(sentence)
        own = Belief(belief.token[b : b + 1], belief.log_probs[b : b + 1])
        close(together[b : b + 1, :end], hmm.token_log_probs([sentence], belief=own).numpy())
        close(hmm.log_prob(tokens, lengths)[b : b + 1], hmm.log_prob([sentence]).numpy())
        close(filtered.probs[b : b + 1, :end], hmm.filter([sentence]).probs.numpy())
        close(filtered.belief.probs[b : b + 1], hmm.filter([sentence]).belief.probs.numpy())
        close(posterior.probs[b : b + 1, :end], hmm.posterior([sentence]).probs.numpy())
        close(best.log_prob[b : b + 1], hmm.viterbi([sentence]).log_prob.numpy())
    close(counts.start, sum(alone.start for alone in alone_counts).numpy())
    close(counts.transition, sum(alone.transition for alone in alone_counts).numpy())
    close(counts.emission, sum(alone.emission for alone in alone_counts).numpy())


def test_padding_never_reaches_a_sample():
    oracle, tables = random_hmm(Kind("blocked", "table", reset=False), seed=8)
    tokens, lengths = ragged(some_sentences(oracle, 8, lengths=(5, 1)), padding=-99)
    paths = vlhmm.HMM(tables).sample_posterior(tokens, 3, lengths)
    assert paths.shape == (2, 3, 5)
    assert (paths[0] >= 0).all()
    assert (paths[1, :, 0] >= 0).all()
    assert (paths[1, :, 1:] == -1).all()


def test_tokens_may_be_any_integers():
    oracle, tables = random_hmm(Kind("dense", "table", reset=False), seed=3)
    hmm = vlhmm.HMM(tables)
    expected = [oracle.log_prob(np.array([0, 1, 1])), oracle.log_prob(np.array([1, 0, 0]))]
    nested = [[0, 1, 1], [1, 0, 0]]
    forms = [
        nested,
        tuple(nested),
        np.array(nested),
        np.array(nested, dtype=np.uint16),
        [np.array(row) for row in nested],
    ]
    forms += [torch.tensor(nested, dtype=dtype) for dtype in (torch.int64, torch.int32, torch.int16, torch.uint8)]
    # A view that is not contiguous.
    forms.append(torch.tensor(nested).repeat_interleave(2, dim=1)[:, ::2])
    for tokens in forms:
        close(hmm.log_prob(tokens), expected)
    for lengths in ([2, 3], np.array([2, 3]), torch.tensor([2, 3], dtype=torch.int32)):
        close(hmm.log_prob(nested, lengths)[0], oracle.log_prob(np.array([0, 1])))


@table_kinds
def test_support_equals_dense_with_zeros(kind):
    oracle, tables = random_hmm(kind, seed=9)
    hmm = vlhmm.HMM(tables)
    dense = vlhmm.HMM.from_probabilities(
        oracle.start, oracle.transition, oracle.emission, reset_token=tables.reset_token
    )
    assert dense.tables.support.states_per_word == dense.num_states == hmm.num_states
    assert dense.num_words == hmm.num_words
    tokens, lengths = ragged(some_sentences(oracle, 9, lengths=(8, 3, 6)))
    close(hmm.token_log_probs(tokens, lengths), dense.token_log_probs(tokens, lengths).numpy())
    close(hmm.posterior(tokens, lengths).dense(), dense.posterior(tokens, lengths).dense().numpy())
    close(hmm.viterbi(tokens, lengths).log_prob, dense.viterbi(tokens, lengths).log_prob.numpy())
    close(
        hmm.expected_counts(tokens, lengths).transition,
        dense.expected_counts(tokens, lengths).transition.numpy(),
    )


def test_one_block_equals_dense():
    oracle, tables = random_hmm(Kind("dense", "table", reset=True), seed=9)
    support = tables.support
    loose = Support(support.group_of_word, support.states_of_group, support.num_states, partition=False)
    per_word = Support(
        torch.arange(support.num_words),
        support.states_of_group.repeat(support.num_words, 1),
        support.num_states,
        partition=False,
    )
    tokens, lengths = ragged(some_sentences(oracle, 9, lengths=(8, 3, 6)))
    expected = vlhmm.HMM(tables).token_log_probs(tokens, lengths).numpy()
    for other in (loose, per_word):
        same = Tables(other, tables.log_start, tables.transition, tables.log_emission, tables.reset_token)
        close(vlhmm.HMM(same).token_log_probs(tokens, lengths), expected)
        close(
            vlhmm.HMM(same).posterior(tokens, lengths).dense(),
            vlhmm.HMM(tables).posterior(tokens, lengths).dense(),
        )


def test_one_clone_a_word_is_a_bigram_model():
    kind = Kind("cloned", "table", reset=False)
    oracle, tables = next(
        (oracle, tables)
        for oracle, tables in (random_hmm(kind, seed) for seed in range(20))
        if tables.support.states_per_word == 1
    )
    tokens = [[1, 0, 1, 1, 0]]
    pairs = [
        np.log(oracle.transition[1, 0]),
        np.log(oracle.transition[0, 1]),
        np.log(oracle.transition[1, 1]),
    ]
    close(
        vlhmm.HMM(tables).token_log_probs(tokens),
        [[np.log(oracle.start[1]), *pairs, np.log(oracle.transition[1, 0])]],
    )


def test_one_state_is_a_unigram_model():
    emission = np.array([0.2, 0.5, 0.3])
    hmm = vlhmm.HMM.from_probabilities([1.0], [[1.0]], [emission])
    assert hmm.num_states == 1
    hmm = hmm.to(dtype=torch.float64)
    close(
        vlhmm.HMM.from_probabilities(np.ones(1), np.ones((1, 1)), emission[None]).log_prob([[2]]),
        [np.log(0.3)],
    )
    np.testing.assert_allclose(hmm.token_log_probs([[0, 1, 2]])[0], np.log(emission), rtol=1e-6)
    assert hmm.viterbi([[0, 1, 2]]).states.tolist() == [[[0, 0, 0]]]
    assert hmm.sample_posterior([[0, 1]], 2).tolist() == [[[0, 0], [0, 0]]]


@given(st.sampled_from(EVERY_KIND), st.integers(0, 2**31), st.integers(1, 40))
def test_float32_is_close_to_float64(kind, seed, length):
    oracle, tables = random_hmm(kind, seed)
    tokens = [oracle.sentence(length, np.random.default_rng(seed))]
    double, single = vlhmm.HMM(tables), vlhmm.HMM(tables.to(dtype=torch.float32))
    assert single.log_prob(tokens).dtype == torch.float32
    np.testing.assert_allclose(single.log_prob(tokens).numpy(), double.log_prob(tokens).numpy(), rtol=1e-5, atol=1e-5)
    close(single.posterior(tokens).probs, double.posterior(tokens).probs.numpy(), torch.float32)
    close(single.filter(tokens).probs, double.filter(tokens).probs.numpy(), torch.float32)


@given(st.sampled_from(EVERY_KIND), st.integers(0, 2**31), st.integers(1, 60))
def test_answers_agree_with_each_other(kind, seed, length):
    oracle, tables = random_hmm(kind, seed)
    hmm = vlhmm.HMM(tables)
    tokens = [oracle.sentence(length, np.random.default_rng(seed))]
    log_prob, best = hmm.log_prob(tokens), hmm.viterbi(tokens)
    close(hmm.token_log_probs(tokens).sum(1), log_prob.numpy())
    assert (best.log_prob[:, 0] <= log_prob + 1e-9).all()
    close(hmm.filter(tokens).probs.sum(2), np.ones((1, length)))
    close(hmm.posterior(tokens).probs.sum(2), np.ones((1, length)))
    # At the last position there is nothing left to learn.
    close(hmm.posterior(tokens).probs[:, -1], hmm.filter(tokens).probs[:, -1].numpy())


def test_dtype_follows_the_input():
    start, transition, emission = np.ones(1), np.ones((1, 1)), np.full((1, 2), 0.5)
    assert vlhmm.HMM.from_probabilities(start, transition, emission).tables.dtype == torch.float64
    single = [table.astype(np.float32) for table in (start, transition, emission)]
    assert vlhmm.HMM.from_probabilities(*single).tables.dtype == torch.float32
    assert vlhmm.HMM.from_probabilities(*map(torch.tensor, single)).tables.dtype == torch.float32
    assert vlhmm.HMM.from_probabilities([1], [[1]], [[0.5, 0.5]]).tables.dtype == torch.float32
    double = vlhmm.HMM.from_probabilities([1], [[1]], [[0.5, 0.5]], dtype=torch.float64)
    assert double.tables.dtype == torch.float64
    assert double.log_prob([[0]]).item() == np.log(0.5)
    assert double.to(dtype=torch.float32).tables.dtype == torch.float32
    assert double.tables.dtype == torch.float64
    assert double.to(device="cpu").tables.device.type == "cpu"


def test_inputs_are_left_alone():
    start, transition = torch.tensor([0.5, 0.5]), torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    emission, tokens = torch.tensor([[1.0, 0.0], [0.25, 0.75]]), torch.tensor([[0, 1, -7]])
    copies = [tensor.clone() for tensor in (start, transition, emission, tokens)]
    hmm = vlhmm.HMM.from_probabilities(start, transition, emission)
    hmm.posterior(tokens, [2])
    hmm.fit([[0, 1, 0, 0]], method="em")
    for tensor, copy in zip((start, transition, emission, tokens), copies, strict=True):
        assert torch.equal(tensor, copy)


def test_dense_support_has_every_state_for_every_word():
    support = dense_support(num_words=3, num_states=4)
    assert support.states_of(torch.tensor([0, 2])).tolist() == [[0, 1, 2, 3]] * 2


def test_its_size_is_what_one_sees() -> None:
    for kind in EVERY_KIND:
        _, tables = random_hmm(kind, 0)
        groups = "" if kind.support == "dense" else f" in {tables.support.num_groups} groups"
        assert f"{tables.num_states} states{groups}, {tables.num_words} words" in repr(vlhmm.HMM(tables))
