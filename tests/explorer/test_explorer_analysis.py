"""The analysis of one text, against the queries it stands for and against enumeration."""

import itertools
import math

import numpy as np
import pytest
import torch
from tiny import tiny_corpus

import vlhmm
from vlhmm.data import word_tokenizer
from vlhmm.explorer import analyse_text
from vlhmm.reports import as_json

TEXT = "the cat sees the bird"


@pytest.fixture(scope="module", params=[None, "reset"], ids=["carried", "reset"])
def lm(request: pytest.FixtureRequest) -> vlhmm.LanguageModel:
    corpus = tiny_corpus(40)
    blocks = vlhmm.brown_clusters(corpus.train, 5, vocab_size=corpus.tokenizer.vocab_size)
    model = vlhmm.neural_hmm(
        blocks,
        3,
        16,
        eos_id=corpus.tokenizer.eos_id,
        reset="eos" if request.param else "carry",
        generator=torch.Generator().manual_seed(0),
    )
    return vlhmm.LanguageModel(model, corpus.tokenizer)


def test_an_analysis_says_what_explain_and_viterbi_say(lm: vlhmm.LanguageModel) -> None:
    analysis = analyse_text(lm, TEXT, top=3)
    explanation, path = lm.explain(TEXT, top=3, neighbours=3), lm.viterbi(TEXT)
    assert analysis.log_prob == explanation.score.log_prob
    assert (analysis.path_log_prob, analysis.path_entropy) == (path.log_prob, explanation.path_entropy)
    assert [token.path for token in analysis.tokens] == [state.state for state in path.states]
    for token, explained in zip(analysis.tokens, explanation.tokens, strict=True):
        assert (token.log_prob, token.entropy) == (explained.log_prob, explained.entropy)
        assert [(one.state, one.prob) for one in token.states] == [
            (one.state.state, one.prob) for one in explained.states
        ]
        assert [[(next.state, next.prob) for next in one.next] for one in token.states] == [
            [(state.state, prob) for state, prob in one.next] for one in explained.states
        ]
    named = {state.state: state for state in analysis.states}
    mentioned = {next.state for token in analysis.tokens for one in token.states for next in (one, *one.next)}
    assert set(named) == mentioned | {token.path for token in analysis.tokens}
    assert all(state == lm.name_state(number) for number, state in named.items())


def test_words_in_place_of_each_word_are_those_of_enumeration(lm: vlhmm.LanguageModel) -> None:
    ids = lm.tokenizer.encode(TEXT)
    never = (lm.tokenizer.eos_id, lm.tokenizer.undrawn_id)
    words = [word for word in range(lm.tokenizer.vocab_size) if word not in never]
    for position, token in enumerate(analyse_text(lm, TEXT).tokens):
        texts = torch.tensor([[*ids[:position], word, *ids[position + 1 :]] for word in words])
        opening = lm.opening
        belief = None if opening is None else opening.of([0] * len(words))
        probs = lm.hmm.log_prob(texts, belief=belief).double().softmax(0)
        best = probs.topk(len(token.infill))
        assert [one.prob for one in token.infill] == pytest.approx(best.values.tolist(), rel=1e-4)
        given = {lm.tokenizer.token(word): prob for word, prob in zip(words, probs.tolist(), strict=True)}
        assert [given[one.token] for one in token.infill] == pytest.approx([one.prob for one in token.infill], rel=1e-4)


@pytest.mark.parametrize(
    "constraint", [vlhmm.excludes("the"), vlhmm.contains("cat") & ~vlhmm.contains("dog")], ids=repr
)
def test_the_probability_along_a_text_is_the_sum_over_all_its_ends(
    lm: vlhmm.LanguageModel, constraint: vlhmm.control.Constraint
) -> None:
    ids = lm.tokenizer.encode("the cat sees")
    automaton = constraint.compile(lm.tokenizer)
    found = lm.constraint_path("the cat sees", constraint)
    belief, eos = lm.opening, lm.tokenizer.eos_id
    for done in range(len(ids) + 1):
        ends = list(itertools.product(range(lm.tokenizer.vocab_size), repeat=len(ids) - done))
        texts = torch.tensor([[*ids[:done], *end] for end in ends])
        here = None if belief is None else belief.of([0] * len(ends))
        probs = lm.hmm.log_prob(texts, belief=here).double().softmax(0).numpy()
        met = [eos not in text and automaton.accepts(text) for text in texts.tolist()]
        assert found[done] == pytest.approx(probs[np.array(met)].sum(), rel=1e-4, abs=1e-9)
    assert found[-1] in (0.0, 1.0)
    analysis = analyse_text(lm, "the cat sees", constraint=constraint)
    assert analysis.constraint is not None
    assert analysis.constraint.probs == found


def test_one_token_and_one_state_for_certain_are_analysed() -> None:
    corpus = tiny_corpus(20)
    blocks = vlhmm.Blocks(np.zeros(corpus.tokenizer.vocab_size, np.int64), 1)
    lm = vlhmm.LanguageModel(vlhmm.neural_hmm(blocks, states_per_block=1, dim=4), corpus.tokenizer)
    analysis = analyse_text(lm, "cat", top=5)
    [token] = analysis.tokens
    assert [(one.state, one.prob) for one in token.states] == [(0, pytest.approx(1))]
    assert token.entropy == pytest.approx(0, abs=1e-6)
    assert analysis.perplexity == pytest.approx(math.exp(-token.log_prob))


def test_an_analysis_is_json_with_names_for_all_numbers(lm: vlhmm.LanguageModel) -> None:
    found = as_json(analyse_text(lm, TEXT, top=2, constraint=vlhmm.contains("cat")))
    assert list(found) == [
        *("text", "log_prob", "perplexity", "path_entropy", "path_log_prob", "tokens", "states", "constraint"),
    ]
    assert list(found["tokens"][0]) == ["token", "log_prob", "entropy", "states", "path", "infill"]
    assert list(found["tokens"][0]["states"][0]) == ["state", "prob", "next"]
    assert list(found["states"][0]) == ["state", "block", "words"]
    assert found["constraint"]["constraint"] == "contains('cat')"
    assert len(found["constraint"]["probs"]) == len(found["tokens"]) + 1


@pytest.mark.parametrize(("text", "top", "message"), [("", 4, "0 tokens"), ("the cat", 0, "top is 0")])
def test_what_cannot_be_analysed_is_refused(lm: vlhmm.LanguageModel, text: str, top: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        analyse_text(lm, text, top=top)


@pytest.mark.parametrize("log_prob", [-50.0, -110.0, -2000.0])
def test_states_that_floats_cannot_hold_lead_to_others(log_prob: float) -> None:
    """After "a" the model is all but surely in state 1, which cannot emit "c"; what emits it comes from state 2."""
    tokenizer = word_tokenizer(["a", "b", "c"], unk=False)
    a, b, c = (tokenizer.token_id(word) for word in "abc")
    emission = torch.zeros(4, tokenizer.vocab_size, dtype=torch.float64)
    emission[0, a] = emission[3, c] = 1
    emission[1:3, b] = 1
    transition = torch.tensor([[0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1.0]])
    hmm = vlhmm.HMM.from_probabilities([1.0, 0, 0, 0], transition, emission, reset_token=tokenizer.eos_id)
    tables = hmm.tables.to(dtype=torch.float32)
    tables.transition.log_prob[0, 2] = log_prob
    lm = vlhmm.LanguageModel.from_hmm(vlhmm.HMM(tables), tokenizer)
    tokens = lm.explain("a b c", top=1).tokens
    assert [token.states[0].state.state for token in tokens] == [0, 2, 3]
    for token, before in ((tokens[1], 0), (tokens[2], 2)):
        [(state, prob)] = token.states[0].previous
        assert (state.state, prob) == (before, pytest.approx(1))
    [(state, prob)] = tokens[1].states[0].next
    assert (state.state, prob) == (3, pytest.approx(1))
    path = lm.constraint_path("a b c", vlhmm.ends_with("c"))
    # Of what comes after "a b" nothing but "c" is left for state 2 alone.
    assert path[2] == pytest.approx(math.exp(log_prob), rel=1e-4, abs=1e-44)
