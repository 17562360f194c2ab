"""Texts drawn from the HMM under a constraint, against the list of all texts."""

import math
from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from enumerated import accepted, random_automaton
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracle import EVERY_KIND, Kind, Oracle, random_hmm
from tiny import tiny_corpus, tiny_model

import vlhmm
from vlhmm import HMM
from vlhmm.control.automaton import Automaton
from vlhmm.control.best import best_constrained
from vlhmm.control.controlled import ControlledHMM
from vlhmm.control.count_constraints import words
from vlhmm.control.generate import Choice, LookaheadCache, sample_constrained
from vlhmm.control.phrase_constraints import contains, excludes
from vlhmm.control.possible import ImpossibleConstraintError
from vlhmm.control.product import lookahead
from vlhmm.control.tokens import ConstrainedTokens
from vlhmm.data import word_tokenizer
from vlhmm.inference.errors import ImpossibleTextError
from vlhmm.inference.past import Past
from vlhmm.tables import Belief, Tables

LENGTH = 3
KINDS = [
    Kind("dense", "table", reset=False),
    Kind("blocked", "block-factored", reset=True),
    Kind("uniform", "softmax", False),
]


def case(kind: Kind, seed: int) -> tuple[Oracle, Tables, Automaton, np.ndarray, Belief]:
    """An HMM, an automaton that some continuation satisfies and some does not, and a prefix."""
    oracle, tables = random_hmm(kind, seed)
    prefix = oracle.sentence(2, np.random.default_rng(seed))
    for automaton_seed in range(seed, seed + 100):
        automaton = random_automaton(tables.num_words, automaton_seed)
        if 0.05 < math.fsum(accepted(oracle, automaton, prefix, LENGTH).values()) < 0.6:
            return oracle, tables, automaton, prefix, HMM(tables).filter(prefix[None]).belief
    raise AssertionError("no automaton found")


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_samples_come_as_often_as_they_should(kind: Kind) -> None:
    oracle, tables, automaton, prefix, belief = case(kind, seed=4)
    num = 4000
    following = ConstrainedTokens(tables, lookahead(tables, automaton, LENGTH))
    texts = sample_constrained(
        following, Past.opened(tables, belief), num, LENGTH, generators=[torch.Generator().manual_seed(0)]
    )
    counts = Counter(map(tuple, texts))
    exact = accepted(oracle, automaton, prefix, LENGTH)
    total = math.fsum(exact.values())
    assert sum(counts.values()) == num
    assert {text for text in counts if exact.get(text, 0) == 0} == set()
    for text, prob in exact.items():
        share = prob / total
        # Five standard deviations, and one text of room for the rarest.
        assert abs(counts[text] - num * share) <= 5 * math.sqrt(num * share * (1 - share)) + 1


@settings(max_examples=15)
@given(
    kind=st.sampled_from(EVERY_KIND),
    seed=st.integers(0, 999),
    temperature=st.sampled_from([0.2, 1.0, 5.0]),
    top_k=st.sampled_from([None, 1, 2]),
    top_p=st.sampled_from([None, 0.3, 0.9]),
)
def test_every_text_is_accepted_however_tokens_are_chosen(
    kind: Kind, seed: int, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    oracle, tables = random_hmm(kind, seed, dtype=torch.float32)
    automaton = random_automaton(tables.num_words, seed)
    ahead = lookahead(tables, automaton, 6)
    assume(float(ahead.log_prob(tables, None, 6)) > -math.inf)
    choice = Choice(temperature, top_k, top_p)
    generator = torch.Generator().manual_seed(seed)
    following, past = ConstrainedTokens(tables, ahead), Past.opened(tables, None)
    texts = sample_constrained(following, past, 20, 6, choice=choice, generators=[generator])
    assert all(len(text) == 6 and automaton.accepts(text) for text in texts)
    assert all(oracle.log_prob(np.array(text)) > -math.inf for text in texts)


def test_texts_end_at_the_end_token_or_at_the_limit() -> None:
    """Token 0 must come up; token 2 ends a text."""
    hmm = HMM.from_probabilities([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[0.05, 0.75, 0.2], [0.02, 0.9, 0.08]])
    contains = Automaton(
        torch.tensor([0, 1, 2]),
        torch.tensor([[1, 0, 0], [1, 1, 1]]).repeat(1, 2)[:, :3],
        0,
        torch.tensor([False, True]),
    )
    for required in (False, True):
        automaton = contains.ending_at(2, required=required)
        following = ConstrainedTokens(hmm.tables, lookahead(hmm.tables, automaton, 8))
        past, generator = Past.opened(hmm.tables, None), torch.Generator().manual_seed(1)
        texts = sample_constrained(following, past, 300, 8, eos_id=2, generators=[generator])
        assert all(0 in text and 2 not in text[:-1] for text in texts)
        assert all(text[-1] == 2 for text in texts if required or len(text) < 8)
        assert len({len(text) for text in texts}) == 7


def test_nucleus_and_top_k_keep_the_likeliest() -> None:
    log_probs = torch.tensor([[0.1, 0.5, 0.4, 0.0], [0.97, 0.01, 0.01, 0.01]]).log()
    kept = Choice(top_p=0.6).log_weights(log_probs).exp()
    torch.testing.assert_close(kept, torch.tensor([[0.0, 0.5, 0.4, 0.0], [0.97, 0.0, 0.0, 0.0]]))
    assert Choice(top_k=1).log_weights(log_probs).isfinite().tolist() == [
        [False, True, False, False],
        [True, False, False, False],
    ]
    assert Choice(top_k=4, top_p=1.0).log_weights(log_probs)[0].isfinite().tolist() == [True, True, True, False]


@pytest.mark.parametrize("temperature", [1e-30, 1e-38, 1e-40, 1e-320])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_towards_temperature_zero_the_likeliest_is_chosen(dtype: torch.dtype, temperature: float) -> None:
    """The limit: of tokens that are exactly as likely each as often, impossible ones never, and none where all are."""
    log_probs = torch.tensor([[0.1, 0.4, 0.4, 0.1], [1e-30, 2e-30, 0.0, 0.0], [0.0] * 4], dtype=dtype).log()
    log_probs[1] -= 500
    weights = Choice(temperature).log_weights(log_probs)
    assert not weights.isnan().any()
    assert weights[0].softmax(0).tolist() == [0, 0.5, 0.5, 0]
    assert weights[1].softmax(0).tolist() == [0, 1, 0, 0]
    assert weights[:, 2:][1].isneginf().all()
    assert weights[2].isneginf().all()


@pytest.mark.parametrize("temperature", [1e-38, 1e-40, 1e-320])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_texts_of_temperatures_near_zero_are_those_of_the_likeliest_tokens(
    dtype: torch.dtype, temperature: float
) -> None:
    kind = Kind("dense", "table", reset=False)
    _, tables = random_hmm(kind, 3, dtype=dtype)
    automaton = random_automaton(tables.num_words, 3)
    following, past = ConstrainedTokens(tables, lookahead(tables, automaton, 6)), Past.opened(tables, None)
    texts = [
        sample_constrained(following, past, 5, 6, choice=choice, generators=[torch.Generator().manual_seed(seed)])
        for seed, choice in enumerate([Choice(temperature), Choice(temperature, top_p=0.5), Choice(top_k=1)])
    ]
    assert texts[0] == texts[1] == texts[2]
    assert all(automaton.accepts(text) for text in texts[0])


def best_listed(oracle: Oracle, automaton: Automaton, prefix: np.ndarray, lengths: range, eos_id: int | None) -> float:
    """The largest p(tokens, states | prefix) among accepted continuations; EOS may only be their last token."""
    best, past = 0.0, np.exp(oracle.log_prob(prefix))
    for length in lengths:
        for text in product(range(oracle.num_words), repeat=length):
            cut = length < lengths.stop - 1
            if eos_id is not None and (eos_id in text[:-1] or (cut and text[-1] != eos_id)):
                continue
            if automaton.accepts(text):
                joint = oracle.joint(np.array([*prefix, *text])).reshape(-1, *[oracle.num_states] * length)
                best = max(best, float(joint.sum(0).max() / past))
    return best


@settings(max_examples=25)
@given(kind=st.sampled_from(EVERY_KIND), seed=st.integers(0, 999), ends=st.sampled_from([None, False, True]))
def test_the_best_text_is_the_best_of_all(kind: Kind, seed: int, ends: bool | None) -> None:
    oracle, tables = random_hmm(kind, seed)
    automaton = random_automaton(tables.num_words, seed)
    # The token after which states begin anew, where there is one: as in a language model of lines.
    eos_id = None if ends is None else tables.num_words // 2
    if eos_id is not None and ends is not None:
        automaton = automaton.ending_at(eos_id, required=ends)
    prefix = oracle.sentence(1, np.random.default_rng(seed))
    belief = HMM(tables).filter(prefix[None]).belief
    log_ahead = ConstrainedTokens(tables, lookahead(tables, automaton, 1)).log_ahead(belief)[0]
    found = best_constrained(tables, automaton, log_ahead, 3, eos_id=eos_id)
    best = best_listed(oracle, automaton, prefix, range(3, 4) if ends is None else range(1, 4), eos_id)
    if found is None:
        assert best == 0
        return
    assert automaton.accepts(found.tokens)
    assert math.exp(found.log_prob) == pytest.approx(best, rel=1e-9)
    # What it says of itself is so.
    joint = oracle.joint(np.array([*prefix, *found.tokens])).sum(0)
    assert math.exp(found.log_prob + oracle.log_prob(prefix)) == pytest.approx(
        float(joint[tuple(found.states)]), rel=1e-9
    )


def test_look_aheads_are_kept_within_their_bytes() -> None:
    _, tables = random_hmm(KINDS[0], 0)
    made: list[int] = []

    def made_for(seed: int, steps: int) -> ConstrainedTokens:
        made.append(seed)
        return ConstrainedTokens(tables, lookahead(tables, random_automaton(tables.num_words, seed, 2), steps))

    size = made_for(0, 4).num_bytes
    cache = LookaheadCache(limit_bytes=2 * size)
    for seed in (1, 2, 1, 3, 1, 2):
        cache.get(seed, 4, lambda seed=seed: made_for(seed, 4))
        assert cache.num_bytes <= 2 * size
    # The second constraint had to go for the third, as the first was used after it.
    assert made == [0, 1, 2, 3, 2]
    # One that reaches further serves the nearer, not the other way round.
    assert cache.get(2, 3, lambda: made_for(2, 3)).ahead.steps == 4
    assert cache.get(2, 5, lambda: made_for(2, 5)).ahead.steps == 5


@pytest.mark.parametrize(
    ("wrong", "says"),
    [({"temperature": 0.0}, "temperature is 0.0"), ({"top_k": 0}, "top_k is 0"), ({"top_p": 1.5}, "top_p is 1.5")],
)
def test_choices_that_make_no_sense_are_refused(wrong: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Choice(**wrong)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=["eos", "carry"])
def lm(request: pytest.FixtureRequest) -> vlhmm.LanguageModel:
    corpus = tiny_corpus()
    torch.manual_seed(3)
    return vlhmm.LanguageModel(tiny_model(corpus, reset=request.param), corpus.tokenizer)


def test_a_language_models_constraint_has_the_probability_of_its_texts(lm: vlhmm.LanguageModel) -> None:
    eos, names = lm.tokenizer.eos_id, range(lm.tokenizer.vocab_size)
    texts = torch.tensor(list(product(names, repeat=2)))
    for prefix in ("", "the cat"):
        belief = lm.hmm.filter([lm.tokenizer.encode(prefix)], belief=lm.opening).belief if prefix else lm.opening
        if belief is not None:
            belief = Belief(belief.token.expand(len(texts)), belief.log_probs.expand(len(texts), -1))
        probs = lm.hmm.log_prob(texts, belief=belief).double().exp()
        river = lm.tokenizer.token_id("river")
        has_river, has_eos = (texts == river).any(1), (texts == eos).any(1)
        found = lm.constraint_probability(prefix, contains("river"), 2)
        assert found == pytest.approx(float(probs[has_river & ~has_eos].sum()), rel=1e-4)
        ended = lm.constraint_probability(prefix, contains("river"), 2, until_eos=True)
        assert ended == pytest.approx(float(probs[(texts[:, 0] == river) & (texts[:, 1] == eos)].sum()), rel=1e-4)


def test_generated_and_best_texts_satisfy_the_constraint(lm: vlhmm.LanguageModel) -> None:
    constraint = contains("river") & excludes("the") & words(3, 5)

    def drawn(**choice: float) -> list[str]:
        generator = torch.Generator().manual_seed(3)
        return lm.generate("the cat", num=20, max_tokens=6, constraint=constraint, seed=generator, **choice)  # type: ignore[arg-type]

    assert drawn() == drawn()
    for text in [*drawn(), *drawn(temperature=4.0), *drawn(top_k=2, top_p=0.5)]:
        new = text.removeprefix("the cat ").split()
        assert "river" in new
        assert "the" not in new
        assert 3 <= len(new) <= 5
    best = lm.best_text("the cat", max_tokens=6, constraint=constraint)
    assert "river" in best.text.split()
    # No text that was drawn, and no best text under more constraints, is likelier than the best.
    assert lm.best_text("the cat", max_tokens=6, constraint=constraint & contains("fish")).log_prob <= best.log_prob
    assert lm.best_text("the cat", max_tokens=6).log_prob >= best.log_prob


def test_what_cannot_be_generated_is_refused_with_the_part_to_blame(lm: vlhmm.LanguageModel) -> None:
    with pytest.raises(ImpossibleConstraintError, match="spells 'unicorn'"):
        lm.generate(constraint=contains("cat") & contains("unicorn"))
    with pytest.raises(ImpossibleConstraintError, match=r"words\(9, None\) takes at least 9 tokens, but at most 8"):
        lm.generate(max_tokens=8, constraint=contains("cat") & words(9))
    with pytest.raises(ImpossibleConstraintError, match=r"^contains\('cat'\) & excludes\('cat'\) is impossible"):
        lm.best_text(max_tokens=8, constraint=contains("cat") & words(1, 3) & excludes("cat"))
    assert lm.constraint_probability("", contains("cat") & excludes("cat"), 5) == 0
    with pytest.raises(ValueError, match="length is 0"):
        lm.constraint_probability("", contains("cat"), 0)


def test_an_hmm_that_cannot_emit_the_tokens_names_the_part_that_needs_them() -> None:
    tokenizer = word_tokenizer(["a", "b", "c"], unk=False)
    ids = {name: tokenizer.token_id(name) for name in ("a", "b", "c", "<eos>")}
    emission = np.zeros((1, tokenizer.vocab_size))
    emission[0, [ids["a"], ids["b"], ids["<eos>"]]] = [0.5, 0.3, 0.2]
    hmm = HMM.from_probabilities([1.0], [[1.0]], emission)
    controlled, past = ControlledHMM(hmm, tokenizer), Past.opened(hmm.tables, None)
    with pytest.raises(
        ImpossibleConstraintError, match=r"the HMM gives contains\('c'\) probability zero within 4 tokens"
    ):
        controlled.sample(contains("a") & contains("c"), 1, 4, past, Choice(), [None])
    assert controlled.probability(contains("a"), 2, past, until_eos=False) == [pytest.approx(0.8**2 - 0.3**2)]


def test_a_prompt_of_probability_zero_is_refused() -> None:
    corpus = tiny_corpus()
    lm = vlhmm.LanguageModel(tiny_model(corpus, reset="eos"), corpus.tokenizer)
    tables = lm.hmm.tables
    cat = corpus.tokenizer.token_id("cat")
    silent = replace(tables, log_emission=tables.log_emission.index_fill(0, torch.tensor([cat]), -torch.inf))
    # The rows of the emission no longer sum to one, which only a test may do.
    lm.__dict__["hmm"] = HMM.__new__(HMM)
    lm.hmm.tables = silent
    for ask in (lambda: lm.generate("the cat"), lambda: lm.constraint_probability("the cat", contains("dog"), 3)):
        with pytest.raises(ImpossibleTextError, match="gives 'the cat' probability zero"):
            ask()
