"""The newer queries give on a GPU what they give on a CPU."""

import numpy as np
import pytest
import torch
from oracle import Kind, random_hmm

import vlhmm

KINDS = [
    Kind("dense", "table", reset=True),
    Kind("blocked", "block-factored", reset=False),
    Kind("uniform", "softmax", reset=True),
]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_gpu_answers_as_a_cpu(kind, dtype):
    oracle, tables = random_hmm(kind, seed=41)
    there, here = vlhmm.HMM(tables.to("cuda", dtype)), vlhmm.HMM(tables)
    random = np.random.default_rng(41)
    tokens = np.stack([oracle.sentence(6, random) for _ in range(3)])
    lengths, mask = [6, 4, 5], np.array([[False, True, True, False, False, False]] * 3)
    room = {"rtol": 1e-3, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}

    def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
        assert actual.device.type == "cuda"
        torch.testing.assert_close(actual.cpu().double(), expected.double(), **room)

    past = tokens[:, :2]
    beliefs = [hmm.filter(past).belief for hmm in (there, here)]
    for k in (1, 7):
        best, expected = (
            hmm.viterbi(tokens, lengths, k=k, belief=belief) for hmm, belief in zip((there, here), beliefs, strict=True)
        )
        same(best.log_prob, expected.log_prob)
    same(there.posterior_entropy(tokens, lengths).path, here.posterior_entropy(tokens, lengths).path)
    generator = torch.Generator("cuda").manual_seed(0)
    filled = there.infill(tokens, mask, lengths, beliefs[0], num=4, generator=generator)
    expected_filled = here.infill(tokens, mask, lengths, beliefs[1], num=4)
    same(filled.probs, expected_filled.probs)
    same(filled.best_log_prob, expected_filled.best_log_prob)
    assert filled.samples.shape == (3, 4, 6)
    streams = [hmm.stream(num=3) for hmm in (there, here)]
    same(*(stream.feed(tokens, lengths) for stream in streams))
    same(*(stream.next_token_probs() for stream in streams))
