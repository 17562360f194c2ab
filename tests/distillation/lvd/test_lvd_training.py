"""Distillation from end to end: portions of text, p(x, z) by gradient and by counts, and how p(x) goes on from it."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_lvd import LVD, TRAIN, Blocks, TableTeacher, initialise, small_teacher, valid_perplexity
from tiny import tiny_corpus, tiny_model

from vlhmm import Corpus, Model
from vlhmm.cluster import one_block
from vlhmm.data import Tokens
from vlhmm.data.windows import Epoch
from vlhmm.distillation.decoder import Decoder
from vlhmm.distillation.lvd import (
    ClusterEvent,
    LVDPlan,
    LVDSettings,
    PathCounts,
    StateClusters,
    StateLabeller,
    VectorsEvent,
    count_states,
    counts_to_logits,
    joint_log_prob,
    lvd_training,
    portions,
)
from vlhmm.distillation.lvd.training import CLUSTERS
from vlhmm.inference.gather import Batch
from vlhmm.inference.joint import path_log_probs
from vlhmm.models import linear_hmm, scalar_hmm
from vlhmm.training.checkpoint import read_tensors
from vlhmm.training.gradient import train
from vlhmm.training.joint_phase import JointPhase
from vlhmm.training.run_folder import STATE, read_log
from vlhmm.training.schedule import planned_factor
from vlhmm.training.settings import TrainSettings
from vlhmm.training.step import Step
from vlhmm.training.trainer import CheckEvent, StepEvent, Stopped, run_to_end


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return tiny_corpus()


@pytest.fixture(scope="module")
def teacher(corpus: Corpus) -> Decoder:
    return small_teacher(corpus)


def train_by_lvd(*inputs: Any, **options: Any) -> Stopped:
    return run_to_end(lvd_training(*inputs, **options))


def dense(corpus: Corpus, states: int = 8, reset: str = "carry", seed: int = 0) -> Model:
    blocks, generator = one_block(corpus.tokenizer.vocab_size), torch.Generator().manual_seed(seed)
    return scalar_hmm(blocks, states, eos_id=corpus.tokenizer.eos_id, reset=reset, generator=generator)  # type: ignore[arg-type]


def joint_loss(model: Model, corpus: Corpus, label: StateLabeller) -> float:
    """Of the validation text, in nats per token."""
    tokens = torch.from_numpy(corpus.valid.ids[:320].astype(np.int64)).view(20, 16)
    batch = Batch(tokens, torch.full((20,), 16))
    return float(-path_log_probs(model.tables().detach(), batch, label(tokens)).sum() / 320)


def test_the_three_portions_have_nothing_in_common(corpus: Corpus) -> None:
    text, rest = portions(corpus, LVD)
    assert len(text) == LVD.cluster_tokens
    assert np.array_equal(np.concatenate([rest.train.ids, text.ids]), corpus.train.ids)
    assert rest.hash != corpus.hash
    assert np.array_equal(rest.valid.ids, corpus.valid.ids)
    shared, whole = portions(corpus, replace(LVD, set_aside=False))
    assert whole is corpus
    assert np.array_equal(shared.ids, corpus.train.ids[: LVD.cluster_tokens])


@pytest.mark.parametrize("kind", ["scalar", "linear", "blocked softmax", "blocked block-factored"])
@pytest.mark.parametrize("windows", ["independent", "carried"])
def test_p_of_x_and_z_climbs_and_p_of_x_with_it(corpus: Corpus, teacher: Decoder, kind: str, windows: str) -> None:
    eos = corpus.tokenizer.eos_id
    match kind:
        case "scalar":
            model = dense(corpus)
        case "linear":
            model = linear_hmm(one_block(corpus.tokenizer.vocab_size), 8, 16, eos_id=eos, reset="eos")
        case _:
            model = tiny_model(corpus, transition=kind.removeprefix("blocked "))
    before = valid_perplexity(model, corpus)
    dropout = 0.5 if "blocked" in kind else 0.0
    settings = replace(TRAIN, windows=windows, ema=0.9, epochs=2, state_dropout=dropout)  # type: ignore[arg-type]
    clusters = initialise(model, corpus, teacher, replace(LVD, joint_tokens=1280), settings)
    label = StateLabeller(teacher, clusters, model.support, LVD.vectors)
    assert joint_loss(model, corpus, label) < np.log(model.support.num_states) + np.log(before) - 0.5
    assert valid_perplexity(model, corpus) < 0.8 * before


def test_counts_are_the_maximum_that_the_gradient_climbs_to(corpus: Corpus, teacher: Decoder) -> None:
    # The last of the text is clustered, what comes before is counted, or climbed in all its windows.
    everything = replace(LVD, joint_tokens=len(corpus.train) - LVD.cluster_tokens - 64)
    by_counts, by_gradient = dense(corpus, reset="eos"), dense(corpus, reset="eos")
    counted = initialise(by_counts, corpus, teacher, replace(everything, estimation="counts"), TRAIN)
    climbed = initialise(by_gradient, corpus, teacher, everything, replace(TRAIN, learning_rate=0.3, epochs=2))
    label = StateLabeller(teacher, counted, by_counts.support, LVD.vectors)
    assert torch.equal(counted.centroids, climbed.centroids)
    assert (
        joint_loss(by_counts, corpus, label)
        < joint_loss(by_gradient, corpus, label)
        < joint_loss(dense(corpus), corpus, label)
    )


@pytest.mark.parametrize("reset", ["eos", "carry"])
def test_no_tables_make_counted_paths_more_likely(corpus: Corpus, reset: str) -> None:
    model = dense(corpus, 4, reset)
    tokens = torch.from_numpy(corpus.train.ids[:160].astype(np.int64)).view(10, 16)
    states = torch.randint(4, tokens.shape, generator=torch.Generator().manual_seed(0))
    counts = PathCounts.none(model.support)
    counts.add(model.support, tokens, states, model.reset_token)
    assert float(counts.emission.sum()) == 160
    assert float(counts.start.sum() + counts.transition.sum()) == 160
    counts_to_logits(model, counts, 1e-9)
    batch = Batch(tokens, torch.full((10,), 16))
    loss = -path_log_probs(model.tables(), batch, states).sum()
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        torch.testing.assert_close(parameter.grad, torch.zeros_like(parameter), rtol=0, atol=1e-4)


def test_counts_of_blocked_states_stay_in_their_blocks(corpus: Corpus) -> None:
    support = tiny_model(corpus, 3).support
    model = scalar_hmm(Blocks(support.group_of_word.numpy(), support.num_groups), 3)
    tokens = torch.from_numpy(corpus.train.ids[:160].astype(np.int64)).view(10, 16)
    states = support.states_of(tokens)[..., 1]
    counts = PathCounts.none(support)
    counts.add(support, tokens, states, None)
    counts_to_logits(model, counts, 0.5)
    tables = model.tables().detach()
    per_state = torch.zeros(support.num_states).index_add_(
        0, support.states_of(torch.arange(support.num_words)).flatten(), tables.log_emission.exp().flatten()
    )
    torch.testing.assert_close(per_state, torch.ones(support.num_states))
    word, block = int(tokens[0, 0]), int(support.group_of_word[tokens[0, 0]])
    in_block = (support.group_of_word[tokens] == block).sum()
    expected = ((tokens == word).sum() + 0.5 / (support.group_of_word == block).sum()) / (in_block + 0.5)
    assert float(tables.log_emission[word, 1].exp()) == pytest.approx(float(expected), rel=1e-5)


def test_two_windows_that_follow_each_other_count_as_one(corpus: Corpus) -> None:
    model = dense(corpus, 4, "eos")
    tokens = torch.from_numpy(corpus.train.ids[:64].astype(np.int64)).view(2, 32)
    states = torch.randint(4, tokens.shape, generator=torch.Generator().manual_seed(0))
    whole, parts = PathCounts.none(model.support), PathCounts.none(model.support)
    whole.add(model.support, tokens, states, model.reset_token)
    parts.add(model.support, tokens[:, :10], states[:, :10], model.reset_token)
    parts.add(model.support, tokens[:, 9:], states[:, 9:], model.reset_token, first_given=True)
    assert torch.equal(whole.start, parts.start)
    assert torch.equal(whole.transition, parts.transition)
    assert torch.equal(whole.emission, parts.emission)


def test_steps_on_windows_that_follow_each_other_climb_the_whole_path(corpus: Corpus) -> None:
    model = dense(corpus, 4, "eos")
    tokens = torch.from_numpy(corpus.train.ids[:128].astype(np.int64)).view(4, 32)
    states = torch.randint(4, tokens.shape, generator=torch.Generator().manual_seed(0))
    whole = joint_log_prob(model.tables().detach(), tokens, states)
    # Weights that stay as they are.
    step = Step(model, replace(TRAIN, windows="carried", learning_rate=1e-12))
    total = torch.zeros(4)
    for first in (0, 16):
        given = states[:, first : first + 16]
        step(tokens[:, first : first + 16], 0.0, first == 0, label=lambda _, given=given: given)
        total += step.token_log_probs.sum(1)
    torch.testing.assert_close(total, whole)
    # Back to p(x): what it goes on from is a distribution.
    step(tokens[:, :16], 0.0, False)
    assert bool(step.token_log_probs.isfinite().all())


def test_given_states_are_part_of_a_run(corpus: Corpus, tmp_path: Path) -> None:
    class Labels:
        def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
            return tokens % 8

        def require_sound(self) -> None:
            pass

    train(dense(corpus), corpus, TRAIN, joint=JointPhase(Labels(), 128, "one"), out=tmp_path, max_seconds=0.0)
    for joint in (None, JointPhase(Labels(), 128, "another"), JointPhase(Labels(), 192, "one")):
        with pytest.raises(ValueError, match="other given states, or without them"):
            train(dense(corpus), corpus, TRAIN, joint=joint, out=tmp_path, resume=True)


def test_p_of_x_is_gone_on_with_without_the_teacher(corpus: Corpus, teacher: Decoder, tmp_path: Path) -> None:
    whole, resumed = dense(corpus), dense(corpus, seed=5)
    train_by_lvd(whole, corpus, teacher, LVD, TRAIN, out=tmp_path / "whole")
    stopped_after(9, dense(corpus), corpus, teacher, TRAIN, tmp_path / "part")
    _, rest = portions(corpus, LVD)
    train(resumed, rest, TRAIN, out=tmp_path / "part", resume=True)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_events_come_in_order_and_the_schedule_is_one(corpus: Corpus, teacher: Decoder, tmp_path: Path) -> None:
    settings = replace(TRAIN, warmup=0.1, epochs=2)
    events = list(lvd_training(dense(corpus), corpus, teacher, LVD, settings, out=tmp_path))
    kinds = [type(event) for event in events]
    assert kinds.index(VectorsEvent) < kinds.index(ClusterEvent) < kinds.index(StepEvent) < kinds.index(CheckEvent)
    steps = [event.step for event in events if isinstance(event, StepEvent)]
    # Those of p(x, z) count in the total.
    assert steps == list(range(1, steps[-1] + 1))
    assert [event.step for event in events if isinstance(event, StepEvent) and event.joint] == list(range(1, 9))
    last = events[-1]
    assert isinstance(last, Stopped)
    assert (last.reason, last.step) == ("finished", last.num_steps)
    for record in read_log(tmp_path):
        if record["kind"] == "step":
            factor = planned_factor("cosine", record["step"], last.num_steps, 0.1, settings.final_rate)
            assert record["learning_rate"] == pytest.approx(settings.learning_rate * factor)


class Clock:
    """Time is up as soon as it is late."""

    late = False

    def monotonic(self) -> float:
        return 1e9 if self.late else 0.0


def stopped_after(
    num_steps: int, model: Model, corpus: Corpus, teacher: Decoder, settings: TrainSettings, out: Path
) -> Stopped:
    clock, event = Clock(), None
    with pytest.MonkeyPatch.context() as patch:
        # The package's name for the module `train` is the function's.
        for module in ("vlhmm.distillation.lvd.training", "vlhmm.training.trainer"):
            patch.setattr(sys.modules[module], "time", clock)
        for event in lvd_training(model, corpus, teacher, LVD, settings, out=out, max_seconds=1.0):
            clock.late |= isinstance(event, StepEvent) and event.step == num_steps
    assert isinstance(event, Stopped)
    return event


def test_p_of_x_goes_on_from_a_distribution_over_states(corpus: Corpus, teacher: Decoder, tmp_path: Path) -> None:
    settings = replace(TRAIN, windows="carried")
    # The eighth step is the last of p(x, z).
    stopped_after(8, dense(corpus), corpus, teacher, settings, tmp_path)
    tensors, _ = read_tensors(tmp_path / STATE)
    torch.testing.assert_close(tensors["belief.log_probs"].exp().sum(1), torch.ones(4))
    _, rest = portions(corpus, LVD)
    windows = list(Epoch(rest.train, "carried", 4, 16, settings.seed, 0).windows())
    assert torch.equal(tensors["belief.token"], windows[7][:, -1])


@pytest.mark.parametrize("windows", ["independent", "carried"])
@pytest.mark.parametrize("stop_at", [3, 8, 20], ids=["in p(x, z)", "between", "in p(x)"])
def test_a_stopped_run_resumes_to_the_same_bits(
    corpus: Corpus, teacher: Decoder, tmp_path: Path, windows: str, stop_at: int
) -> None:
    settings = replace(TRAIN, windows=windows, ema=0.9)  # type: ignore[arg-type]
    whole, stopped = dense(corpus), dense(corpus)
    train_by_lvd(whole, corpus, teacher, LVD, settings, out=tmp_path / "whole")
    event = stopped_after(stop_at, stopped, corpus, teacher, settings, tmp_path / "part")
    assert (event.reason, event.step) == ("time", stop_at)
    resumed = dense(corpus, seed=5)
    train_by_lvd(resumed, corpus, teacher, LVD, settings, out=tmp_path / "part", resume=True)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_a_folder_changes_nothing(corpus: Corpus, teacher: Decoder, tmp_path: Path) -> None:
    one, two = dense(corpus), dense(corpus)
    kept = train_by_lvd(one, corpus, teacher, LVD, TRAIN, out=tmp_path)
    without = train_by_lvd(two, corpus, teacher, LVD, TRAIN)
    assert kept.best_perplexity == without.best_perplexity
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name


def test_distillation_may_never_stop(corpus: Corpus, teacher: Decoder, tmp_path: Path) -> None:
    lvd = replace(LVD, joint_tokens=-1)
    stopped = train_by_lvd(dense(corpus), corpus, teacher, lvd, TRAIN, out=tmp_path)
    assert stopped.step == stopped.num_steps
    assert stopped.best_perplexity < valid_perplexity(dense(corpus), corpus)
    assert {record.get("objective") for record in read_log(tmp_path) if record["kind"] == "step"} == {"p(x, z)"}


def test_clusters_serve_several_models(corpus: Corpus, teacher: Decoder, tmp_path: Path) -> None:
    one, two = dense(corpus), dense(corpus)
    train_by_lvd(one, corpus, teacher, LVD, TRAIN, out=tmp_path / "one")
    clusters, _ = StateClusters.load(tmp_path / "one" / CLUSTERS)
    events = list(lvd_training(two, corpus, teacher, LVD, TRAIN, clusters=clusters, out=tmp_path / "two"))
    assert not any(isinstance(event, VectorsEvent | ClusterEvent) for event in events)
    with pytest.raises(ValueError, match="8 in each of 1 blocks, but the model has 9 states"):
        next(lvd_training(dense(corpus, 9), corpus, teacher, LVD, TRAIN, clusters=clusters))
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name


def test_counting_takes_its_text_from_training(corpus: Corpus) -> None:
    teacher = TableTeacher(torch.eye(corpus.tokenizer.vocab_size))
    lvd = replace(LVD, estimation="counts")
    support = dense(corpus).support
    plan = LVDPlan.of(support, corpus, teacher, lvd, TRAIN)
    assert plan.counted is not None
    ids = np.concatenate([plan.rest.train.ids, plan.counted.ids, plan.text.ids])
    assert np.array_equal(ids, corpus.train.ids)
    shared = LVDPlan.of(support, corpus, teacher, replace(lvd, set_aside=False), TRAIN)
    assert shared.rest is corpus


@pytest.mark.parametrize("carried", [False, True])
def test_batches_of_windows_count_as_all_at_once(
    corpus: Corpus, teacher: Decoder, carried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters = initialise(dense(corpus, reset="eos"), corpus, teacher, LVD, TRAIN)
    tokens, models = Tokens(corpus.train.ids[:640], np.array([0, 640])), []
    for at_once in (640, 160):
        monkeypatch.setattr("vlhmm.distillation.lvd.vectors.CPU_TOKENS", at_once)
        model = dense(corpus, reset="eos")
        label = StateLabeller(teacher, clusters, model.support, LVD.vectors)
        assert list(count_states(model, tokens, label, window=16, carried=carried))[-1] == VectorsEvent(640, 640)
        models.append(model)
    for name, value in models[0].state_dict().items():
        torch.testing.assert_close(value, models[1].state_dict()[name], msg=name)


def test_distillation_helps_a_scalar_model(corpus: Corpus, teacher: Decoder) -> None:
    lvd = replace(LVD, estimation="counts", joint_tokens=512)
    ours = [train_by_lvd(dense(corpus, 12, seed=s), corpus, teacher, lvd, TRAIN).best_perplexity for s in range(2)]
    _, rest = portions(corpus, lvd)
    plain = [train(dense(corpus, 12, seed=s), rest, TRAIN).best_perplexity for s in range(2)]
    assert max(ours) < min(plain)


def test_a_run_is_gone_on_with_only_by_the_same_distillation(corpus: Corpus, teacher: Decoder, tmp_path: Path) -> None:
    train_by_lvd(dense(corpus), corpus, teacher, LVD, TRAIN, out=tmp_path / "lvd", max_seconds=0.0)
    with pytest.raises(ValueError, match="was made with other settings, another teacher"):
        train_by_lvd(dense(corpus), corpus, teacher, replace(LVD, seed=1), TRAIN, out=tmp_path / "lvd", resume=True)
    # Nor by another one once p(x, z) is over.
    train_by_lvd(dense(corpus), corpus, teacher, LVD, TRAIN, out=tmp_path / "over")
    with pytest.raises(ValueError, match="was made with other settings, another teacher"):
        train_by_lvd(dense(corpus), corpus, teacher, replace(LVD, pca=3), TRAIN, out=tmp_path / "over", resume=True)
    _, rest = portions(corpus, LVD)
    train(dense(corpus), rest, TRAIN, out=tmp_path / "plain", max_seconds=0.0)
    with pytest.raises(ValueError, match="started with other options"):
        train_by_lvd(dense(corpus), corpus, teacher, LVD, TRAIN, out=tmp_path / "plain", resume=True)


def test_bad_input_is_refused_before_the_teacher_reads(corpus: Corpus) -> None:
    class Untouched(TableTeacher):
        def hidden(self, tokens: torch.Tensor, layer: int) -> torch.Tensor:
            raise AssertionError("the teacher was asked")

    teacher, model = Untouched(torch.zeros(corpus.tokenizer.vocab_size, 4)), dense(corpus)
    bad = {
        r"cluster_tokens is 10,000,000, but the training text has": LVDSettings(),
        r"1,000,000 tokens are for p\(x, z\), but training reads": replace(LVD, joint_tokens=1_000_000),
        r"6\d\d vectors cannot make 2,000": replace(LVD, cluster_tokens=700),
        r"layer is 7": replace(LVD, layer=7),
    }
    for message, settings in bad.items():
        with pytest.raises(ValueError, match=message):
            train_by_lvd(dense(corpus, 2000) if "vectors" in message else model, corpus, teacher, settings, TRAIN)
    with pytest.raises(ValueError, match="has 3 tokens"):
        train_by_lvd(model, corpus, Untouched(torch.zeros(3, 4)), LVD, TRAIN)
    with pytest.raises(ValueError, match='counts fit models of free logits alone, not parameterization "neural"'):
        train_by_lvd(tiny_model(corpus), corpus, teacher, replace(LVD, estimation="counts"), TRAIN)
    with pytest.raises(ValueError, match="resume needs the folder"):
        train_by_lvd(model, corpus, teacher, LVD, TRAIN, resume=True)
    with pytest.raises(ValueError, match="pseudocount is 0"):
        LVDSettings(pseudocount=0.0)
