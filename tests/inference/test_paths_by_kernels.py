"""Paths from a belief where the kernels of a GPU would sum out the past: no state is lost, however improbable."""

import numpy as np
import pytest
import torch
from kernels import DEVICES

import vlhmm
from vlhmm.ops import dispatch
from vlhmm.support import dense_support
from vlhmm.tables import Belief, Tables
from vlhmm.transitions import TableTransition

LOG_TRANSITION = np.log([[0.5, 1e-21, 0.5], [0.5, 1e-21, 0.5], [1.0, 1e-21, 1e-46]])
"""The last is below the smallest number of float32, and its logarithm far from it."""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("k", [1, 9])
def test_the_state_before_a_path_is_summed_out_without_underflow(device, k, monkeypatch):
    monkeypatch.setattr(dispatch, "unavailable", lambda device: None)
    monkeypatch.setattr(dispatch, "loops_unavailable", lambda device: "the kernels are tested here")
    tables = Tables(
        dense_support(1, 3),
        torch.full((3,), 1 / 3).log(),
        TableTransition(torch.tensor(LOG_TRANSITION, dtype=torch.float32)),
        torch.zeros(1, 3),
    )
    hmm = vlhmm.HMM(tables).to(device)
    belief = Belief(torch.tensor([0], device=device), torch.tensor([[-torch.inf, -torch.inf, 0.0]], device=device))
    found = hmm.viterbi(torch.tensor([[0, 0]], device=device), k=k, belief=belief)
    expected = np.sort((LOG_TRANSITION[2][:, None] + LOG_TRANSITION).ravel())[::-1][:k]
    np.testing.assert_allclose(found.log_prob[0].cpu(), expected, rtol=1e-5)
