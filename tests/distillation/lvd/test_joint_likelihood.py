"""log p(x, z) of given paths: against the enumerated joint, and against p(x)."""

import numpy as np
import pytest
import torch
from kinds import SEEDS, close, every_kind, some_sentences
from oracle import Kind, assemble, ragged, random_hmm, random_logits

import vlhmm.transitions.block_factored as block_factored
from vlhmm.distillation.lvd import joint_log_prob
from vlhmm.hmm import HMM
from vlhmm.inference.gather import Batch
from vlhmm.inference.joint import path_log_probs


def paths_of(shape: tuple[int, ...], num: int, seed: int) -> list[tuple[int, ...]]:
    """Some paths out of all, in their order."""
    every = list(np.ndindex(shape))
    random = np.random.default_rng(seed)
    return every if len(every) <= num else [every[i] for i in random.choice(len(every), num, replace=False)]


@every_kind
@pytest.mark.parametrize("seed", SEEDS)
def test_every_path_has_its_enumerated_probability(kind: Kind, seed: int) -> None:
    oracle, tables = random_hmm(kind, seed)
    for sentence in some_sentences(oracle, seed):
        enumerated = oracle.log_joint(sentence)
        paths = paths_of(enumerated.shape, 60, seed)
        tokens = torch.tensor(sentence).expand(len(paths), -1)
        ours = joint_log_prob(tables, tokens, torch.tensor(paths))
        close(ours, [enumerated[path] for path in paths])


@every_kind
def test_paths_sum_to_the_probability_of_the_text(kind: Kind) -> None:
    oracle, tables = random_hmm(kind, 0)
    sentence = some_sentences(oracle, 0, lengths=(3,))[0]
    paths = list(np.ndindex((oracle.num_states,) * 3))
    ours = joint_log_prob(tables, torch.tensor(sentence).expand(len(paths), -1), torch.tensor(paths))
    close(ours.logsumexp(0), HMM(tables).log_prob(sentence[None])[0].item())


@every_kind
def test_padding_is_never_read(kind: Kind) -> None:
    oracle, tables = random_hmm(kind, 1)
    sentences = some_sentences(oracle, 1)
    paths = [np.array(paths_of(oracle.joint(sentence).shape, 1, 7)[0]) for sentence in sentences]
    tokens, lengths = ragged(sentences, padding=10_000)
    states, _ = ragged(paths, padding=-1)
    alone = [float(joint_log_prob(tables, s[None], p[None])[0]) for s, p in zip(sentences, paths, strict=True)]
    close(joint_log_prob(tables, tokens, states, lengths), alone)


@pytest.mark.parametrize("transition", ["table", "softmax", "block-factored"])
@pytest.mark.parametrize("support", ["dense", "blocked"])
def test_the_gradient_is_that_of_finite_differences(support: str, transition: str, monkeypatch) -> None:
    kind = Kind(support, transition, reset=True)
    oracle, tables = random_hmm(kind, 3)
    logits = random_logits(kind, tables.support, np.random.default_rng(5))
    sentence = torch.tensor(oracle.sentence(5, np.random.default_rng(3)))[None]
    states = tables.support.states_of(sentence)[..., 0]
    # Two positions at a time: parts must give the gradient of the whole.
    monkeypatch.setattr(block_factored, "TILE_BYTES", 1)

    def log_prob(*values: torch.Tensor) -> torch.Tensor:
        made = assemble(kind, tables.support, dict(zip(logits, values, strict=True)))
        return path_log_probs(made, Batch(sentence, torch.tensor([5])), states)

    assert torch.autograd.gradcheck(log_prob, tuple(value.requires_grad_() for value in logits.values()))


def test_an_impossible_path_leaves_the_others_their_gradient() -> None:
    kind = Kind("blocked", "table", reset=False)
    _, tables = random_hmm(kind, 0)
    logits = {
        name: value.requires_grad_()
        for name, value in random_logits(kind, tables.support, np.random.default_rng(0)).items()
    }
    made = assemble(kind, tables.support, logits)
    words = torch.arange(2)[None].expand(2, -1)
    own = made.support.states_of(words)[..., 0].clone()
    # No state of another word's block can emit this one.
    own[1, 0] = (own[1, 0] + made.support.states_per_word) % made.num_states
    log_prob = joint_log_prob(made, words, own)
    assert torch.isfinite(log_prob[0])
    assert log_prob[1] == -torch.inf
    gradients = torch.autograd.grad(log_prob[0], list(logits.values()), retain_graph=True)
    of_both = torch.autograd.grad(log_prob.sum(), list(logits.values()))
    for one, both in zip(gradients, of_both, strict=True):
        close(both, one.numpy())


def test_a_window_that_goes_on_adds_what_comes_after_its_first_token() -> None:
    oracle, tables = random_hmm(Kind("dense", "softmax", reset=True), 2)
    sentence = torch.tensor(oracle.sentence(6, np.random.default_rng(0)))[None]
    states = torch.zeros_like(sentence)
    whole = joint_log_prob(tables, sentence, states)
    first = joint_log_prob(tables, sentence[:, :3], states[:, :3])
    rest = Batch(sentence[:, 2:], torch.tensor([4]))
    close(first + path_log_probs(tables, rest, states[:, 2:], first_given=True).sum(1), whole.numpy())


@pytest.mark.parametrize(
    ("states", "message"),
    [([[0, 99]], "from 0 to 99.*between 0 and"), ([[0]], "one state a token"), ([[0.5, 0.5]], "integers")],
)
def test_states_that_are_none_are_refused(states: list[list[float]], message: str) -> None:
    _, tables = random_hmm(Kind("dense", "table", reset=False), 0)
    with pytest.raises(ValueError, match=message):
        joint_log_prob(tables, [[0, 1]], states)
