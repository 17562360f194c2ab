"""Distillation on a GPU: what runs in CUDA graphs does what it does without them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_lvd import LVD, TRAIN
from tiny import tiny_corpus

from vlhmm import Corpus
from vlhmm.cluster import one_block
from vlhmm.distillation.decoder import Decoder, DecoderSettings, DecoderTraining, train_decoder
from vlhmm.distillation.lvd import LVDPlan, StateClusters
from vlhmm.models import linear_hmm
from vlhmm.training.step import Step

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return tiny_corpus()


def trained(corpus: Corpus, *, graphs: bool) -> Decoder:
    training = DecoderTraining(tokens=4_000, learning_rate=1e-2, batch_size=8, window=16, checks=1, graphs=graphs)
    return train_decoder(corpus, DecoderSettings(dim=32, layers=2, heads=2), training, device="cuda")


def test_a_decoder_learns_the_same_in_graphs(corpus: Corpus) -> None:
    captured, eager = trained(corpus, graphs=True), trained(corpus, graphs=False)
    tokens = torch.from_numpy(corpus.valid.ids[:320].astype(np.int64)).view(20, 16).cuda()
    torch.testing.assert_close(captured.loss(tokens), eager.loss(tokens), rtol=1e-2, atol=1e-2)


def test_the_loss_without_logits_is_that_of_the_logits(corpus: Corpus) -> None:
    decoder = trained(corpus, graphs=True)
    tokens = torch.from_numpy(corpus.valid.ids[:320].astype(np.int64)).view(20, 16).cuda()
    log_probs = decoder(tokens).float().log_softmax(2).gather(2, tokens[..., None])
    # Products of bf16 numbers, here rounded to bf16 too.
    torch.testing.assert_close(decoder.loss(tokens), -log_probs.mean(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("windows", ["independent", "carried"])
def test_labels_and_steps_are_the_same_in_graphs(corpus: Corpus, windows: str) -> None:
    teacher = trained(corpus, graphs=True).requires_grad_(False)
    settings = replace(TRAIN, windows=windows)  # type: ignore[arg-type]
    losses = []
    for graphs in (True, False):
        model = linear_hmm(one_block(corpus.tokenizer.vocab_size), 8, 16).cuda()
        plan = LVDPlan.of(model.support, corpus, teacher, LVD, settings)
        clusters = list(plan.clustering(None, None, resume=False))[-1]
        assert isinstance(clusters, StateClusters)
        label = plan.labeller(clusters)
        step = Step(model, replace(settings, graphs=graphs))
        tokens = torch.from_numpy(corpus.train.ids[: 8 * 64].astype(np.int64)).view(8, 4, 16)
        # The first batches are labelled eagerly, later ones by a graph.
        first = [label(window.cuda()) for window in tokens]
        assert all(torch.equal(label(window.cuda()), states) for window, states in zip(tokens, first, strict=True))
        for objective in (label, None):
            for number, window in enumerate(tokens):
                step(window, 0.02, windows == "independent" or (objective is label and number == 0), label=objective)
            losses.append(float(step.loss))
    torch.testing.assert_close(losses[:2], losses[2:], rtol=1e-4, atol=1e-4)


def test_clusters_and_labels_read_float32_whatever_the_process_does(corpus: Corpus) -> None:
    teacher = trained(corpus, graphs=False).requires_grad_(False)
    model = linear_hmm(one_block(corpus.tokenizer.vocab_size), 8, 16).cuda()
    plan = LVDPlan.of(model.support, corpus, teacher, LVD, TRAIN)
    tokens = torch.from_numpy(corpus.train.ids[: 8 * 16].astype(np.int64)).view(8, 16).cuda()
    before = torch.get_float32_matmul_precision()
    centroids, states = [], []
    for precision in ("highest", "high"):
        torch.set_float32_matmul_precision(precision)
        try:
            clusters = list(plan.clustering(None, None, resume=False))[-1]
            assert isinstance(clusters, StateClusters)
            label = plan.labeller(clusters)
            # The last one by a graph.
            states.append(torch.stack([label(tokens) for _ in range(4)]))
            centroids.append(clusters.centroids)
        finally:
            torch.set_float32_matmul_precision(before)
    assert torch.equal(*centroids)
    assert torch.equal(*states)
