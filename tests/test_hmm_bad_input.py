"""Bad input raises one ValueError that names the number, the limit and the remedy."""

import math

import numpy as np
import pytest
import torch

import vlhmm
from vlhmm.support import Support, blocked_support, dense_support
from vlhmm.tables import Belief, Tables
from vlhmm.transitions import BlockFactoredTransition, SoftmaxTransition, TableTransition

# Two states, seven words: no other number in these tests is 2 or 7.
START = [0.5, 0.5]
TRANSITION = [[0.25, 0.75], [0.5, 0.5]]
EMISSION = [[1 / 7] * 7, [0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]]


def the_hmm() -> vlhmm.HMM:
    return vlhmm.HMM.from_probabilities(START, TRANSITION, EMISSION, dtype=torch.float64)


def refused(call, *patterns: str) -> None:
    """`call` raises ValueError, and its one sentence holds every pattern."""
    with pytest.raises(ValueError) as caught:
        call()
    message = str(caught.value)
    for pattern in patterns:
        assert pytest.raises(ValueError, match=pattern).matches(caught.value), f"{pattern!r} is not in: {message}"
    assert "\n" not in message, "one clear sentence, not a dump"
    assert len(message) > 20, "a message says what to do"


QUERIES = {
    "log_prob": lambda hmm, tokens, lengths=None: hmm.log_prob(tokens, lengths),
    "token_log_probs": lambda hmm, tokens, lengths=None: hmm.token_log_probs(tokens, lengths),
    "filter": lambda hmm, tokens, lengths=None: hmm.filter(tokens, lengths),
    "posterior": lambda hmm, tokens, lengths=None: hmm.posterior(tokens, lengths),
    "viterbi": lambda hmm, tokens, lengths=None: hmm.viterbi(tokens, lengths),
    "sample_posterior": lambda hmm, tokens, lengths=None: hmm.sample_posterior(tokens, 3, lengths),
    "expected_counts": lambda hmm, tokens, lengths=None: hmm.expected_counts(tokens, lengths),
}
every_query = pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)


@every_query
def test_token_out_of_range(query):
    refused(lambda: query(the_hmm(), [[0, 1, 93]]), r"\b93\b", r"\b[67]\b")
    refused(lambda: query(the_hmm(), [[0, 1, 7]]), r"\b7\b")
    refused(lambda: query(the_hmm(), [[0, -4, 1]]), r"-4\b", r"\b[067]\b")
    # The same id past a length is padding; within it, it is not.
    query(the_hmm(), [[0, 1, 93]], [2])
    refused(lambda: query(the_hmm(), [[0, 1, 93]], [3]), r"\b93\b")


@every_query
def test_tokens_must_be_integers(query):
    refused(lambda: query(the_hmm(), torch.tensor([[0.0, 1.0]])), "float32")
    refused(lambda: query(the_hmm(), np.array([[0.0, 1.0]])), "float64")
    refused(lambda: query(the_hmm(), [[0.5, 1.0]]), "float")


@every_query
def test_tokens_must_have_rank_one_or_two(query):
    refused(lambda: query(the_hmm(), 4))
    refused(lambda: query(the_hmm(), torch.zeros(1, 4, 3, dtype=torch.int64)), r"\b3\b")
    refused(lambda: query(the_hmm(), [[0, 1], [[1]]]))


@every_query
def test_batch_and_time_must_not_be_empty(query):
    refused(lambda: query(the_hmm(), torch.zeros(0, 4, dtype=torch.int64)), r"\b0\b")
    refused(lambda: query(the_hmm(), torch.zeros(4, 0, dtype=torch.int64)), r"\b0\b")
    refused(lambda: query(the_hmm(), []))


@every_query
def test_lengths_must_fit_the_tokens(query):
    tokens = [[0, 1, 1, 0], [1, 0, 0, 1]]
    refused(lambda: query(the_hmm(), tokens, [4, 0]), r"\b0\b", r"\b4\b")
    refused(lambda: query(the_hmm(), tokens, [-3, 4]), r"-3\b", r"\b4\b")
    refused(lambda: query(the_hmm(), tokens, [4, 19]), r"\b19\b", r"\b4\b")
    refused(lambda: query(the_hmm(), tokens, [4, 3, 1]), r"\b3\b", r"\b2\b")
    refused(lambda: query(the_hmm(), tokens, [[4, 3]]), r"\b2\b")
    refused(lambda: query(the_hmm(), tokens, 4))
    refused(lambda: query(the_hmm(), tokens, torch.tensor([4.0, 3.0])), "float32")


def test_belief_must_fit():
    hmm = the_hmm()
    belief = hmm.filter([[0, 1], [1, 1], [5, 0]]).belief
    refused(lambda: hmm.log_prob([[0, 1]], belief=belief), r"\b3\b", r"\b1\b")
    refused(lambda: hmm.filter([[0, 1]] * 5, belief=belief), r"\b3\b", r"\b5\b")
    wide = Belief(torch.tensor([0]), torch.zeros(1, 5, dtype=torch.float64).log_softmax(1))
    refused(lambda: hmm.log_prob([[0, 1]], belief=wide), r"\b5\b", r"\b2\b")
    refused(lambda: hmm.next_token_probs(wide), r"\b5\b", r"\b2\b")
    foreign = Belief(torch.tensor([71]), torch.zeros(1, 2, dtype=torch.float64).log_softmax(1))
    refused(lambda: hmm.log_prob([[0, 1]], belief=foreign), r"\b71\b", r"\b[67]\b")
    spoilt = Belief(torch.tensor([0]), torch.tensor([[math.nan, 0.0]], dtype=torch.float64))
    refused(lambda: hmm.log_prob([[0, 1]], belief=spoilt), "(?i)nan")


@pytest.mark.parametrize("number", [0, -5])
def test_counts_of_things_must_be_positive(number):
    hmm = the_hmm()
    refused(lambda: hmm.viterbi([[0, 1]], k=number), rf"{number}\b", r"\b1\b")
    refused(lambda: hmm.sample(number, 4), rf"{number}\b")
    refused(lambda: hmm.sample(4, number), rf"{number}\b")
    refused(lambda: hmm.sample_posterior([[0, 1]], number), rf"{number}\b")
    for query in (hmm.log_prob, hmm.token_log_probs, hmm.filter, hmm.posterior, hmm.viterbi):
        refused(lambda query=query: query([[0, 1]], window=number), rf"{number}\b")


FROM_PROBABILITIES = {
    "nan in start": ([math.nan, 0.5], TRANSITION, EMISSION, ["start", "(?i)nan"]),
    "infinite start": ([math.inf, 0.5], TRANSITION, EMISSION, ["start", "(?i)inf"]),
    "negative start": ([1.5, -0.5], TRANSITION, EMISSION, ["start", r"-0\.5"]),
    "start sums to 0.75": ([0.25, 0.5], TRANSITION, EMISSION, ["start", r"0\.75", r"\b1\b"]),
    "nan in a transition": (
        START,
        [[0.5, 0.5], [math.nan, 0.5]],
        EMISSION,
        ["transition", r"\b1\b", "(?i)nan"],
    ),
    "negative transition": (START, [[0.5, 0.5], [-0.25, 1.25]], EMISSION, ["transition", r"-0\.25"]),
    "transition row sums to 1.125": (START, [[0.5, 0.5], [0.5, 0.625]], EMISSION, ["transition", r"1\.125"]),
    "transition row of zeros": (START, [[0.0, 0.0], [0.5, 0.5]], EMISSION, ["transition", r"\b0"]),
    "emission row sums to 1.4": (
        START,
        TRANSITION,
        [[1 / 7] * 7, [0.2] * 7],
        ["emission", r"1\.4", r"\b1\b"],
    ),
    "nan in an emission": (START, TRANSITION, [[math.nan] * 7, [1 / 7] * 7], ["emission", "(?i)nan"]),
    "three starts for two states": ([0.5, 0.25, 0.25], TRANSITION, EMISSION, [r"\b3\b", r"\b2\b"]),
    "three emission rows": (START, TRANSITION, [[1 / 7] * 7] * 3, [r"\b3\b", r"\b2\b"]),
    "transition is not square": (START, [[0.5, 0.25, 0.25]] * 2, EMISSION, [r"\b3\b", r"\b2\b"]),
    "start of rank 2": ([START], TRANSITION, EMISSION, ["start"]),
    "transition of rank 1": (START, START, EMISSION, ["transition"]),
    "emission of rank 1": (START, TRANSITION, START, ["emission"]),
    "no states": (np.zeros(0), np.zeros((0, 0)), np.zeros((0, 7)), [r"\b0\b"]),
    "no words": (START, TRANSITION, np.zeros((2, 0)), [r"\b0\b"]),
    "ragged transition": (START, [[0.5, 0.5], [1.0]], EMISSION, []),
    "complex start": (np.array([0.5 + 0j, 0.5]), TRANSITION, EMISSION, ["complex"]),
}


@pytest.mark.parametrize("case", FROM_PROBABILITIES.values(), ids=FROM_PROBABILITIES)
def test_probabilities_must_be_distributions(case):
    start, transition, emission, patterns = case
    refused(lambda: vlhmm.HMM.from_probabilities(start, transition, emission), *patterns)


def test_rounding_is_not_refused():
    thirds = np.full(3, 0.33333334, dtype=np.float32)
    vlhmm.HMM.from_probabilities(thirds, np.tile(thirds, (3, 1)), np.tile(thirds, (3, 1)))
    wide = np.full((1, 30_000), 1 / 30_000, dtype=np.float32)
    vlhmm.HMM.from_probabilities([1.0], [[1.0]], wide)


@pytest.mark.parametrize("reset_token", [7, -1, 400])
def test_reset_token_must_be_a_word(reset_token):
    refused(
        lambda: vlhmm.HMM.from_probabilities(START, TRANSITION, EMISSION, reset_token=reset_token),
        rf"{reset_token}\b",
        r"\b[67]\b",
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16, torch.bfloat16, torch.complex64], ids=str)
def test_dtype_must_be_single_or_double(dtype):
    refused(
        lambda: vlhmm.HMM.from_probabilities(START, TRANSITION, EMISSION, dtype=dtype),
        str(dtype).split(".")[1],
    )
    refused(lambda: the_hmm().to(dtype=dtype), str(dtype).split(".")[1])


def uniform(*shape: int) -> torch.Tensor:
    return torch.full(shape, 1 / shape[-1], dtype=torch.float64).log()


def good_parts() -> dict:
    return {
        "support": dense_support(7, 2),
        "log_start": uniform(2),
        "transition": TableTransition(uniform(2, 2)),
        "log_emission": uniform(2, 7).T,
    }


def factors(states: int = 2) -> dict:
    return {
        "out": torch.ones(states, 3, dtype=torch.float64),
        "into": torch.ones(states, 3, dtype=torch.float64),
    }


def right_normalizer(states: int = 2) -> torch.Tensor:
    return torch.full((states,), 3 + math.log(states), dtype=torch.float64)


BAD_TABLES = {
    "nan start": ({"log_start": torch.tensor([math.nan, 0.0], dtype=torch.float64)}, ["start", "(?i)nan"]),
    "start of +inf": ({"log_start": torch.tensor([math.inf, 0.0], dtype=torch.float64)}, ["start"]),
    "start sums to 2": ({"log_start": torch.zeros(2, dtype=torch.float64)}, ["start", r"\b2\b|\b2\.0"]),
    "start of 5 states": ({"log_start": uniform(5)}, [r"\b5\b", r"\b2\b"]),
    "transition of 5 states": ({"transition": TableTransition(uniform(5, 5))}, [r"\b5\b", r"\b2\b"]),
    "transition not square": ({"transition": TableTransition(uniform(2, 5))}, [r"\b5\b", r"\b2\b"]),
    "transition sums to 2": ({"transition": TableTransition(torch.zeros(2, 2).double())}, ["transition"]),
    "nan transition": ({"transition": TableTransition(torch.full((2, 2), math.nan).double())}, ["(?i)nan"]),
    "emission of 5 words": ({"log_emission": uniform(2, 5).T}, [r"\b5\b", r"\b7\b"]),
    "emission of 3 states": ({"log_emission": uniform(3, 7).T}, [r"\b3\b", r"\b2\b"]),
    "emission sums over states": ({"log_emission": uniform(7, 2)}, ["emission"]),
    "nan emission": ({"log_emission": torch.full((7, 2), math.nan).double()}, ["emission", "(?i)nan"]),
    "dtypes differ": ({"log_start": uniform(2).float()}, ["float32", "float64"]),
    "reset token": ({"reset_token": 71}, [r"\b71\b", r"\b[67]\b"]),
    "normaliser is wrong": (
        {"transition": SoftmaxTransition(**factors(), log_normalizer=right_normalizer() + 0.5)},
        ["transition"],
    ),
    "nan normaliser": (
        {"transition": SoftmaxTransition(**factors(), log_normalizer=right_normalizer() * math.nan)},
        ["(?i)nan"],
    ),
    "factors of 5 states": (
        {"transition": SoftmaxTransition(**factors(5), log_normalizer=right_normalizer(5))},
        [r"\b5\b", r"\b2\b"],
    ),
    "block rows sum to e": (
        {"transition": BlockFactoredTransition(torch.ones(2, 1).double(), **factors())},
        ["block"],
    ),
    "three blocks for one": (
        {"transition": BlockFactoredTransition(uniform(2, 3), **factors())},
        [r"\b3\b", r"\b1\b"],
    ),
    "group out of range": (
        {"support": Support(torch.tensor([0] * 6 + [31]), torch.tensor([[0, 1]]), 2, partition=True)},
        [r"\b31\b"],
    ),
    "state out of range": (
        {"support": Support(torch.zeros(7, dtype=torch.int64), torch.tensor([[0, 31]]), 2, partition=False)},
        [r"\b31\b", r"\b[12]\b"],
    ),
    "state twice in a group": (
        {"support": Support(torch.zeros(7, dtype=torch.int64), torch.tensor([[1, 1]]), 2, partition=False)},
        [r"\b1\b"],
    ),
    "not the partition it says": (
        {"support": Support(torch.zeros(7, dtype=torch.int64), torch.tensor([[1, 0]]), 2, partition=True)},
        ["partition"],
    ),
}


@pytest.mark.parametrize("case", BAD_TABLES.values(), ids=BAD_TABLES)
def test_tables_must_be_an_hmm(case):
    changes, patterns = case
    vlhmm.HMM(Tables(**good_parts()))
    refused(lambda: vlhmm.HMM(Tables(**(good_parts() | changes))), *patterns)


def test_good_factors_are_accepted():
    """The refusals above are for their own reason only."""
    softmax = SoftmaxTransition(**factors(), log_normalizer=right_normalizer())
    block_factored = BlockFactoredTransition(uniform(2, 1), **factors())
    for transition in (softmax, block_factored):
        vlhmm.HMM(Tables(**(good_parts() | {"transition": transition}))).log_prob([[0, 6]])


def test_block_factored_needs_a_partition():
    loose = Support(torch.zeros(7, dtype=torch.int64), torch.tensor([[0, 1]]), 2, partition=False)
    changes = {"support": loose, "transition": BlockFactoredTransition(uniform(2, 1), **factors())}
    refused(lambda: vlhmm.HMM(Tables(**(good_parts() | changes))), "partition")


def test_fit_refuses_what_it_cannot_learn_from():
    hmm = the_hmm()
    refused(lambda: hmm.fit([]), "(?i)sequence")
    refused(lambda: hmm.fit([[0, 1], []]), r"\b1\b|\b0\b")
    refused(lambda: hmm.fit([[0, 1], [1, 93]]), r"\b93\b", r"\b[67]\b")
    refused(lambda: hmm.fit([np.array([0.0, 1.0])]), "float64")


def test_counts_that_cannot_fit_are_refused_before_they_are_allocated():
    """2^18 states: 256 GiB of transition counts, while the model itself is small."""
    blocks, states_per_block = 2**6, 2**12
    states = blocks * states_per_block
    tables = Tables(
        blocked_support(torch.arange(blocks), blocks, states_per_block),
        torch.full((states,), -math.log(states)),
        BlockFactoredTransition(
            torch.full((states, blocks), -math.log(blocks)), torch.zeros(states, 1), torch.zeros(states, 1)
        ),
        torch.zeros(blocks, states_per_block),
    )
    refused(lambda: vlhmm.HMM(tables).expected_counts([[0, 1, 2]]), r"\b256\.0 GiB|\b274|\b25[67]")


def test_arrays_in_float64_are_held_to_float64():
    """Tables may come from float32 numbers and are given more room; what a user passes as float64 is not."""
    start = np.array([0.5, 0.5 + 1e-5])
    with pytest.raises(ValueError, match=r"start: row 0 sums to 1\.00001"):
        vlhmm.HMM.from_probabilities(start, np.eye(2), np.full((2, 2), 0.5))
    factored = vlhmm.HMM.from_probabilities([0.5, 0.5], [[0.3, 0.7], [0.6, 0.4]], [[0.1, 0.9], [0.2, 0.8]])
    assert factored.to(dtype=torch.float64).tables.dtype == torch.float64
