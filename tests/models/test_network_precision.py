"""Networks in bf16 at the size of a model: how far log p of a sentence is off; and that nothing else is rounded."""

import copy
import os
from dataclasses import replace

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    # Read by triton when it is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from small_models import Blocks

from vlhmm.hmm import HMM
from vlhmm.models import Model, neural_hmm
from vlhmm.models.heads import BlockFactoredHead
from vlhmm.ops import residual_network as op
from vlhmm.precision import EXACT, Numerics, Precision

WORDS, NUM_BLOCKS, PER_BLOCK, DIM = 400, 16, 64, 128


def middling(transition: str, initialisation: str) -> Model:
    return neural_hmm(
        Blocks(np.arange(WORDS) % NUM_BLOCKS, NUM_BLOCKS),
        PER_BLOCK,
        DIM,
        transition=transition,  # type: ignore[arg-type]
        initialisation=initialisation,
        out_scale=1.0 if transition == "softmax" else 0.25,
    )


def log_probs(model: Model, numerics: Numerics = EXACT) -> torch.Tensor:
    tokens = torch.randint(WORDS, (4, 64), generator=torch.Generator().manual_seed(1))
    return HMM(model.tables(numerics=numerics).detach()).log_prob(tokens).double()


# Embeddings from N(0, 1) under a softmax over all states are beyond bf16: there the operands of out . in alone put log p off by
# 1e-3, since their logits spread by 16.
@pytest.mark.skipif(torch.cuda.is_available(), reason="a process has kernels compiled or interpreted, not both")
@pytest.mark.parametrize(
    ("transition", "initialisation"), [("softmax", "paper"), ("block-factored", "paper"), ("block-factored", "code")]
)
def test_log_p_of_64_tokens_is_off_by_less_than_3e_4(
    transition: str, initialisation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = middling(transition, initialisation)
    expected = log_probs(copy.deepcopy(model).double())
    torch.testing.assert_close(log_probs(model), expected, rtol=1e-6, atol=0)
    monkeypatch.setattr(op, "_kernels_take", lambda _: True)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            off = (log_probs(model, Numerics.training("bf16")) / expected - 1).abs()
            assert (off > 1e-7).any()
            assert (off < 3e-4).all()
            torch.testing.assert_close(log_probs(model), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("initialisation", ["paper", "code"])
def test_bf16_in_the_logits_of_blocks_puts_log_p_off_by_less_than_1e_4(initialisation: str) -> None:
    """What a training step's choice of a block reads, all else exact; the gradient by its norm."""
    model = middling("block-factored", initialisation).double()
    tables, head = model.tables(), model.transition
    assert isinstance(head, BlockFactoredHead)
    tokens = torch.randint(WORDS, (4, 64), generator=torch.Generator().manual_seed(1))
    found = []
    for dtype in (torch.float64, torch.bfloat16):
        weight = head.block.weight.detach().clone().requires_grad_()
        # Gradients do not see the rounding.
        features = model.encoder.features(None).out.detach().to(dtype).double()
        rounded = weight + (weight.detach().to(dtype).double() - weight.detach())
        log_block = (features @ rounded.T + head.block.bias.detach()).log_softmax(1)
        transition = replace(tables.transition, log_block=log_block)  # type: ignore[type-var]
        log_prob = HMM(replace(tables, transition=transition)).log_prob(tokens)
        found.append((log_prob.detach(), *torch.autograd.grad(log_prob.sum(), weight)))
    (exact, gradient), (rounded_log_prob, rounded_gradient) = found
    assert 0 < float((rounded_log_prob / exact - 1).abs().max()) < 1e-4
    assert float((rounded_gradient - gradient).norm() / gradient.norm()) < 1e-2


@pytest.mark.parametrize("precision", ["highest", "tf32", "bf16"])
def test_on_a_cpu_every_precision_is_float32(precision: Precision) -> None:
    model = middling("block-factored", "paper")
    assert torch.equal(log_probs(model, Numerics.training(precision)), log_probs(model))
