"""The newer queries give on a GPU what they give on a CPU."""

import math

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
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}
BF16_TOLERANCE = 3e-4
"""As the kernels' own tests declare it: relative to log p(x) of a text of 64 tokens."""


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "precision"),
    [(torch.float64, "highest"), (torch.float32, "highest"), (torch.float32, "bf16")],
    ids=["float64", "float32", "bf16"],
)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_gpu_answers_as_a_cpu(kind, dtype, precision):
    oracle, tables = random_hmm(kind, seed=41)
    there = vlhmm.HMM(tables.to("cuda", dtype)).with_precision(precision)
    here = vlhmm.HMM(tables)
    random = np.random.default_rng(41)
    tokens = np.stack([oracle.sentence(6, random) for _ in range(3)])
    lengths, mask = [6, 4, 5], np.array([[False, True, True, False, False, False]] * 3)
    # The rounding of one step is no smaller in a short text, so in bf16 it has what 64 tokens of this vocabulary would have.
    room = TOLERANCE[dtype] if precision == "highest" else BF16_TOLERANCE * 64 * math.log(tables.num_words)

    def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
        assert actual.device.type == "cuda"
        torch.testing.assert_close(actual.cpu().double(), expected.double(), rtol=TOLERANCE[dtype], atol=room)

    past = tokens[:, :2]
    beliefs = [hmm.filter(past).belief for hmm in (there, here)]
    for k in (1, 7):
        best, expected = (
            hmm.viterbi(tokens, lengths, k=k, belief=belief) for hmm, belief in zip((there, here), beliefs, strict=True)
        )
        same(best.log_prob, expected.log_prob)
    same(there.posterior_entropy(tokens, lengths).path, here.posterior_entropy(tokens, lengths).path)
    generator = torch.Generator("cuda").manual_seed(0)
    filled = there.infill(tokens, mask, lengths, beliefs[0], num=4, seed=generator)
    expected_filled = here.infill(tokens, mask, lengths, beliefs[1], num=4)
    same(filled.probs, expected_filled.probs)
    same(filled.best_log_prob, expected_filled.best_log_prob)
    assert filled.samples.shape == (3, 4, 6)
    streams = [hmm.stream(num=3) for hmm in (there, here)]
    same(*(stream.feed(tokens, lengths) for stream in streams))
    same(*(stream.next_token_probs() for stream in streams))
