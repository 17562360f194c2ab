"""Words that share states without a partition: as groups of their own they give the same recursion."""

import pytest
import torch

from vlhmm.inference.blocked import blocked_factors
from vlhmm.inference.gather import Batch, window_factors
from vlhmm.inference.score import score
from vlhmm.models import Model, ModelSettings, build
from vlhmm.ops.blocked_recursion import blocked_recursion
from vlhmm.ops.recursion import recursion
from vlhmm.tables import uniform_support


def uniform_model(reset_token: int | None) -> Model:
    generator = torch.Generator().manual_seed(3)
    support = uniform_support(11, 12, 5, generator)
    return build(ModelSettings(states_per_block=5, dim=6), support, reset_token, generator).double()


@pytest.mark.parametrize("reset_token", [None, 2])
@pytest.mark.parametrize("carried", [False, True])
def test_groups_of_their_own_equal_shared_states(reset_token: int | None, carried: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    batch = Batch(torch.randint(11, (3, 6), generator=generator), torch.tensor([6, 4, 1]))
    before = Batch(torch.randint(11, (3, 4), generator=generator), torch.tensor([4, 4, 4]))
    results = []
    for scattered in (False, True):
        model = uniform_model(reset_token)
        tables = model.tables()
        belief = score(tables.detach(), before).belief if carried else None
        if scattered:
            run = blocked_recursion(blocked_factors(tables, batch, belief, None))
            log_probs, log_last = run.token_log_probs, run.log_last
        else:
            log_probs, log_last = recursion(window_factors(tables, batch, belief, None))
        (log_probs.sum() + log_last.exp().square().sum()).backward()
        results.append((log_probs, log_last, [parameter.grad for parameter in model.parameters()]))
    (plain, plain_last, plain_grads), (own, own_last, own_grads) = results
    torch.testing.assert_close(own, plain, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(own_last.exp(), plain_last.exp(), rtol=1e-10, atol=1e-10)
    for mine, theirs in zip(own_grads, plain_grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-10)
