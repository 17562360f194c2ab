"""The recursion by products of messages: the same numbers and gradients as by tiles, also where numbers underflow."""

import pytest
import torch
from oracle import Kind, random_hmm

import vlhmm
from vlhmm.inference.gather import Batch, window_factors
from vlhmm.inference.score import score
from vlhmm.ops.recursion import recursion
from vlhmm.records import named_tensors
from vlhmm.support import dense_support
from vlhmm.tables import Tables
from vlhmm.transitions import LowRankTransition


def batch_of(tables: Tables, *lengths: int) -> Batch:
    tokens = torch.randint(tables.num_words, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(0))
    return Batch(tokens, torch.tensor(lengths))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("reset", [False, True])
def test_values_and_gradients_are_those_of_tiles(reset: bool, zeros: bool) -> None:
    _, tables = random_hmm(Kind("dense", "low-rank", reset=reset, zeros=zeros), seed=11)
    batch = batch_of(tables, 6, 1, 4)
    found = []
    for run in (
        lambda: score(tables, batch).token_log_probs,
        lambda: recursion(window_factors(tables, batch))[0],
    ):
        leaves = [*named_tensors(tables.transition).values(), tables.log_start, tables.log_emission]
        for leaf in leaves:
            leaf.requires_grad_().grad = None
        log_probs = run()
        torch.where(log_probs.isinf(), 0.0, log_probs).sum().backward()
        found.append((log_probs.detach(), *(leaf.grad.nan_to_num(posinf=0, neginf=0) for leaf in leaves)))
    for by_products, by_tiles in zip(*found, strict=True):
        torch.testing.assert_close(by_products, by_tiles, rtol=1e-10, atol=1e-12)


def test_no_tile_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    _, tables = random_hmm(Kind("dense", "low-rank", reset=False), seed=3)

    def refused(*_: object) -> None:
        raise AssertionError("a tile was made")

    monkeypatch.setattr(LowRankTransition, "log_tiles", refused)
    hmm = vlhmm.HMM(tables)
    hmm.log_prob([[0, 1, 0]], parallel=False)
    hmm.next_token_probs()


def test_what_underflows_in_float32_is_done_again_in_float64() -> None:
    # The only path goes through probabilities of exp(-150), which are 0 in float32.
    log_out = torch.tensor([[0.0, -150.0], [-torch.inf, 0.0]])
    log_into = torch.tensor([[0.0, -torch.inf], [-150.0, 0.0]])
    tables = Tables(
        dense_support(2, 2),
        torch.tensor([0.0, -torch.inf]),
        LowRankTransition(log_out, log_into),
        torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0]]),
    )
    hmm = vlhmm.HMM(tables)
    expected = torch.logaddexp(torch.tensor(-150.0), torch.tensor(-150.0))
    torch.testing.assert_close(hmm.log_prob([[0, 1]], parallel=False), expected[None])
    torch.testing.assert_close(hmm.log_prob([[0, 1, 1]], parallel=False), expected[None])
    assert hmm.log_prob([[0, 1, 0]], parallel=False).item() == -torch.inf


@pytest.mark.parametrize("away", [-150.0, -torch.inf])
@pytest.mark.parametrize("window", [None, 1, 2])
def test_a_state_that_is_lost_by_a_product_and_explains_the_rest_is_not_forgotten(
    away: float, window: int | None
) -> None:
    """exp(-60) of a start and exp(-60) of a word are numbers of float32, their product is not."""
    factor = torch.tensor([[0.0, away], [away, 0.0]]).log_softmax(1)
    words = torch.tensor([[-0.7, -60.0], [-60.0, -0.7]])
    rest = torch.log(-torch.expm1(words.logsumexp(0, keepdim=True)))
    tables = Tables(
        dense_support(3, 2), torch.tensor([0.0, -60.0]), LowRankTransition(factor, factor), torch.cat([words, rest])
    )
    batch = Batch(torch.tensor([[0, 1, 1, 1, 1]]), torch.tensor([5]))
    found = score(tables, batch, window=window)
    assert float(found.token_log_probs.sum()) == pytest.approx(-60 - 60 - 4 * 0.7, rel=1e-6)
    if window is None:
        assert found.underflow.tolist() == [True]


def test_a_carried_belief_goes_on_as_the_whole_text() -> None:
    _, tables = random_hmm(Kind("dense", "low-rank", reset=True), seed=5)
    hmm = vlhmm.HMM(tables)
    tokens = batch_of(tables, 7, 7).tokens
    whole = hmm.token_log_probs(tokens, parallel=False)
    belief = hmm.filter(tokens[:, :3]).belief
    torch.testing.assert_close(hmm.token_log_probs(tokens[:, 3:], belief=belief, parallel=False), whole[:, 3:])
    torch.testing.assert_close(hmm.token_log_probs(tokens, window=2, parallel=False), whole)
