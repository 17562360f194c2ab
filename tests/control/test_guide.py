"""A tiny language model of Hugging Face transformers, guided by an HMM over the same tokens."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from enumerated import accepted, continuations, random_automaton
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracle import EVERY_KIND, Kind, dense_oracle, random_hmm
from tiny import tiny_corpus, tiny_model
from torch import Tensor

import vlhmm
from vlhmm.control.automaton import Automaton
from vlhmm.control.count_constraints import length
from vlhmm.control.guide import Guide
from vlhmm.control.phrase_constraints import contains, contains_all, excludes, starts_with
from vlhmm.control.possible import ImpossibleConstraintError
from vlhmm.hmm import HMM
from vlhmm.inference.errors import ImpossibleTextError

HEAD = 32
"""The language model scores more ids than there are tokens, as many do."""
LIMIT = 10


@pytest.fixture(scope="module")
def lm() -> vlhmm.LanguageModel:
    corpus = tiny_corpus()
    torch.manual_seed(0)
    return vlhmm.LanguageModel(tiny_model(corpus, reset="carry"), corpus.tokenizer)


@pytest.fixture(scope="module")
def llama() -> Iterator[torch.nn.Module]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(1)
        yield LlamaForCausalLM(
            LlamaConfig(
                vocab_size=HEAD,
                hidden_size=16,
                intermediate_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                max_position_embeddings=64,
                initializer_range=1.0,
                bos_token_id=None,
                eos_token_id=None,
                pad_token_id=None,
            )
        ).eval()


def generate(
    llama: torch.nn.Module, lm: vlhmm.LanguageModel, prompts: Sequence[str], guide: Guide | None, **options: object
) -> list[list[int]]:
    """The ids after each prompt, up to EOS; prompts are padded on the left with EOS, as it is also the padding."""
    eos = lm.tokenizer.eos_id
    assert eos is not None
    rows = [lm.tokenizer.encode(prompt) for prompt in prompts]
    width = max(map(len, rows))
    ids = torch.tensor([[eos] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    out = llama.generate(  # type: ignore[operator]
        input_ids=ids,
        attention_mask=mask,
        **(
            {"max_new_tokens": LIMIT, "eos_token_id": eos, "pad_token_id": eos}
            if guide is None
            else guide.generate_arguments(pad_token_id=eos)
        ),
        **{"do_sample": False, **options},
    )
    new = [row[width:] for row in out.tolist()]
    return [row[: row.index(eos)] if eos in row else row for row in new]


def text(lm: vlhmm.LanguageModel, ids: Sequence[int]) -> str:
    return lm.tokenizer.decode(ids)


@settings(max_examples=12)
@given(kind=st.sampled_from(EVERY_KIND), seed=st.integers(0, 999))
def test_scores_gain_what_the_hmm_says_of_the_constraint(kind: Kind, seed: int) -> None:
    """log p(constraint | prefix, v) - log p(constraint | prefix), by the list of all texts, at every step."""
    oracle, tables = random_hmm(kind, seed)
    automaton = random_automaton(tables.num_words, seed)
    random = np.random.default_rng(seed)
    prompt = oracle.sentence(2, random)
    steps = 3
    exact = continuations(oracle, prompt, steps)
    met = accepted(oracle, automaton, prompt, steps)
    assume(sum(met.values()) > 0)
    guide = Guide(HMM(tables), automaton, max_new_tokens=steps)
    written: tuple[int, ...] = ()
    for _ in range(steps):
        scores = torch.tensor(random.standard_normal((1, tables.num_words)), dtype=torch.float32)
        ids = torch.tensor([[*prompt, *written]])
        gain = (guide.step(ids, scores) - scores)[0]

        def of(prefix: tuple[int, ...]) -> tuple[float, float]:
            """p(prefix and constraint), p(prefix)."""
            n = len(prefix)
            return (
                sum(prob for text, prob in met.items() if text[:n] == prefix),
                sum(prob for text, prob in exact.items() if text[:n] == prefix),
            )

        both, alone = of(written)
        for token in range(tables.num_words):
            met_after, after = of((*written, token))
            if met_after > 0:
                expected = math.log(met_after / after) - math.log(both / alone)
                assert gain[token].item() == pytest.approx(expected, abs=1e-5)
            elif after > 0:
                assert gain[token].item() == -math.inf
        written = (*written, max(range(tables.num_words), key=lambda token: of((*written, token))[0]))


@pytest.mark.parametrize("reset", [None, 1])
def test_scores_are_right_however_strict_the_constraint(reset: int | None) -> None:
    """In float32, against the list of all texts in float64, where log p(constraint | prefix) is below -100 at first."""
    random = np.random.default_rng(5)
    rare = [[1e-14], [3e-12], [2e-13]]
    emission = np.hstack([rare, random.dirichlet(np.ones(2), size=3) * (1 - np.array(rare))])
    start, transition = random.dirichlet(np.ones(3)), random.dirichlet(np.ones(3), size=3)
    tables = replace(HMM.from_probabilities(start, transition, emission).tables, reset_token=reset)
    tables = tables.to(dtype=torch.float32)
    needed, steps = 4, 5
    # Token 0 comes up at least four times.
    following = [[min(count + 1, needed), count] for count in range(needed + 1)]
    automaton = Automaton(torch.tensor([0, 1, 1]), torch.tensor(following), 0, torch.arange(needed + 1) == needed)
    exact = continuations(dense_oracle(tables), np.array([], dtype=int), steps)
    guide = Guide(HMM(tables), automaton, max_new_tokens=steps, read_prompt=False)
    written: tuple[int, ...] = ()
    for token in (0, 2, 0, 0, 0):
        gain = guide.step(torch.tensor([[1, *written]]), torch.zeros(1, 3))[0]

        def of(prefix: tuple[int, ...]) -> tuple[float, float]:
            """p(prefix and constraint), p(prefix)."""
            probs = [(text, prob) for text, prob in exact.items() if text[: len(prefix)] == prefix]
            return sum(prob for text, prob in probs if text.count(0) >= needed), sum(prob for _, prob in probs)

        both, alone = of(written)
        if not written:
            assert math.log(both / alone) < -100
        for choice in range(3):
            met, after = of((*written, choice))
            expected = math.log(met / after) - math.log(both / alone) if met > 0 else -math.inf
            assert gain[choice].item() == pytest.approx(expected, abs=1e-4)
        written = (*written, token)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"do_sample": True},
        {"do_sample": True, "temperature": 3.0, "top_k": 3, "num_return_sequences": 4},
        {"num_beams": 4},
        {"num_beams": 3, "num_return_sequences": 2},
        {"num_beams": 2, "do_sample": True},
    ],
    ids=["greedy", "sampling", "sampling several", "beams", "beams several", "sampled beams"],
)
def test_every_text_satisfies_its_own_constraint(
    lm: vlhmm.LanguageModel, llama: torch.nn.Module, options: dict[str, object]
) -> None:
    torch.manual_seed(2)
    prompts = ["the cat", "the", "the dog sees the bird in the"]
    constraints = [
        contains("river") & length(4, 9),
        contains_all("horse", "the cat"),
        excludes("the") & starts_with("fish"),
    ]
    guide = Guide(lm, constraints, max_new_tokens=LIMIT, pad_token_id=lm.tokenizer.eos_id)
    # The same guide twice: it must notice that the texts begin again.
    for _ in range(2):
        texts = generate(llama, lm, prompts, guide, **options)
        each = len(texts) // len(prompts)
        for row, ids in enumerate(texts):
            assert constraints[row // each].compile(lm.tokenizer).accepts(ids), text(lm, ids)
    # Something is to be said for it: the language model alone does not do so.
    free = generate(llama, lm, prompts, None, **options)
    assert any(
        max(ids, default=0) >= lm.tokenizer.vocab_size
        or not constraints[row // each].compile(lm.tokenizer).accepts(ids)
        for row, ids in enumerate(free)
    )


def lm_log_prob(llama: torch.nn.Module, prompt: list[int], ids: list[int]) -> float:
    with torch.no_grad():
        log_probs = llama(torch.tensor([[*prompt, *ids]])).logits[0].float().log_softmax(1)
    return math.fsum(float(log_probs[len(prompt) + n - 1, token]) for n, token in enumerate(ids))


def test_the_score_of_a_beam_telescopes(lm: vlhmm.LanguageModel, llama: torch.nn.Module) -> None:
    """log p_LM(text) + log p(constraint | text) - log p(constraint | prompt), where the constraint is met for certain at the end."""
    eos, constraint = lm.tokenizer.eos_id, contains_all("river", "horse")
    assert eos is not None
    for prompt in ("the cat", "the bird likes the"):
        ids = lm.tokenizer.encode(prompt)
        guide = Guide(lm, constraint, max_new_tokens=LIMIT, must_end=True)
        out = llama.generate(  # type: ignore[operator]
            input_ids=torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
            **guide.generate_arguments(),
            num_beams=5,
            num_return_sequences=3,
            do_sample=False,
            length_penalty=0.0,
            return_dict_in_generate=True,
            output_scores=True,
        )
        before = math.log(lm.constraint_probability(prompt, constraint, LIMIT, until_eos=True))
        for row, score in zip(out.sequences.tolist(), out.sequences_scores.tolist(), strict=True):
            new = row[len(ids) :]
            new = new[: new.index(eos) + 1]
            assert score == pytest.approx(lm_log_prob(llama, ids, new) - before, abs=2e-3)


def test_padding_and_neighbours_change_nothing(lm: vlhmm.LanguageModel, llama: torch.nn.Module) -> None:
    """Each prompt by itself gives the scores that it gets in a padded batch, where rows are in another order at each step."""
    eos, constraint = lm.tokenizer.eos_id, contains("river")
    assert eos is not None
    rows = [lm.tokenizer.encode(prompt) for prompt in ("the", "the dog sees the", "the cat in")]
    width = max(map(len, rows))
    padded = torch.tensor([[eos] * (width - len(row)) + row for row in rows])
    batch = Guide(lm, constraint, max_new_tokens=4, pad_token_id=eos)
    told = Guide(lm, constraint, max_new_tokens=4, prompt_lengths=[len(row) for row in rows])
    alone = [Guide(lm, constraint, max_new_tokens=4) for _ in rows]
    generator = torch.Generator().manual_seed(0)
    order = [0, 1, 2]
    for _ in range(4):
        scores = torch.randn(3, HEAD, generator=generator)
        found = batch.step(padded, scores)
        assert torch.equal(told.step(padded, scores), found)
        own = [
            alone[who].step(padded[place : place + 1, width - len(rows[who]) :], scores[place : place + 1])
            for place, who in enumerate(order)
        ]
        torch.testing.assert_close(found, torch.cat(own), rtol=1e-5, atol=1e-5)
        assert not found.isnan().any()
        chosen = torch.cat([padded, found.argmax(1, keepdim=True)], dim=1)
        turn = [1, 2, 0]
        padded, order = chosen[turn], [order[place] for place in turn]


def test_nothing_but_one_step_is_kept(lm: vlhmm.LanguageModel) -> None:
    guide = Guide(lm, contains("river"), max_new_tokens=8)
    ids = torch.tensor([lm.tokenizer.encode("the cat")] * 3)

    def held() -> int:
        rows = guide._rows
        assert rows is not None
        return sum(value.numel() for value in vars(rows).values() if isinstance(value, Tensor)) - rows.ids.numel()

    sizes = []
    for _ in range(8):
        ids = torch.cat([ids, guide.step(ids, torch.zeros(3, HEAD)).argmax(1, keepdim=True)], dim=1)
        sizes.append(held())
    assert set(sizes) == {3 * lm.hmm.num_states}


def contains_token(num_tokens: int, token: int) -> Automaton:
    """Token `token` comes up."""
    return Automaton(
        (torch.arange(num_tokens) == token).long(), torch.tensor([[0, 1], [1, 1]]), 0, torch.tensor([False, True])
    )


def test_ended_rows_may_be_padded_with_anything_and_end_in_several_ways() -> None:
    hmm = HMM.from_probabilities([1.0], [[1.0]], [[0.1, 0.3, 0.2, 0.2, 0.2]])
    guide = Guide(hmm, contains_token(5, 0), max_new_tokens=4, eos_token_id=[3, 4])
    scores = torch.zeros(2, 7)
    ids = torch.tensor([[1, 2], [2, 1]])
    first = guide.step(ids, scores)
    # Not before the constraint is met, and never a token that the HMM does not know.
    assert first.isinf().tolist() == [[False, False, False, True, True, True, True]] * 2
    ids = torch.cat([ids, torch.tensor([[0], [1]])], dim=1)
    assert guide.step(ids, scores)[:, 3:5].isinf().tolist() == [[False, False], [True, True]]
    # The first row ends, and is then padded with a token beyond the HMM's.
    ids = torch.cat([ids, torch.tensor([[4], [1]])], dim=1)
    third = guide.step(ids, scores)
    assert not third.isnan().any()
    assert third[0].isfinite().tolist() == [False, False, False, True, False, False, False]
    assert (
        guide.step(torch.cat([ids, torch.tensor([[6], [2]])], dim=1), scores)[1].isfinite().tolist()
        == [True] + [False] * 6
    )


def test_where_the_hmm_gives_up_the_automaton_goes_on() -> None:
    """The HMM alternates 0 1 0 1; the language model writes 0 0, and the constraint asks for a 2 that the HMM hardly emits."""
    hmm = HMM.from_probabilities([1.0, 0.0], [[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0, 0.0], [0.0, 0.9, 0.1]])
    guide = Guide(hmm, contains_token(3, 2), max_new_tokens=3)
    scores = torch.tensor([[0.0, 0.0, 0.0]])
    # By the HMM 0 must come, then 2 with 0.1. After 1, impossible to it, the same, as states begin anew; 2 is all that is asked.
    gain = guide.step(torch.tensor([[0, 1]]), scores)
    torch.testing.assert_close(gain, torch.tensor([[0.0, 0.0, math.log(10)]]), rtol=1e-5, atol=1e-5)
    # The language model is forbidden all that the HMM allows: automaton and language model decide.
    after = guide.step(torch.tensor([[0, 1, 0]]), torch.tensor([[1.5, -torch.inf, -torch.inf]]))
    assert after.tolist() == [[1.5, -math.inf, -math.inf]]
    assert guide.step(torch.tensor([[0, 1, 0, 0]]), scores).isfinite().tolist() == [[False, False, True]]


def test_a_beam_that_left_the_constraint_is_out_but_a_text_never_leaves_it() -> None:
    hmm = HMM.from_probabilities([1.0], [[1.0]], [[0.1, 0.9]])
    guide = Guide(hmm, contains_token(2, 0), max_new_tokens=2)
    ids, scores = torch.tensor([[1], [1]]), torch.zeros(2, 2)
    guide.step(ids, scores)
    guide.step(torch.tensor([[1, 1], [1, 1]]), scores)
    guide.reset()
    assert guide.step(ids, scores).isfinite().all()
    only_zero = Automaton(torch.tensor([0, 1]), torch.tensor([[0, 1], [1, 1]]), 0, torch.tensor([True, False]))
    guide = Guide(hmm, only_zero, max_new_tokens=3)
    guide.step(ids, scores)
    assert guide.step(torch.tensor([[1, 0], [1, 1]]), scores).isfinite().tolist() == [[True, False], [False, False]]
    with pytest.raises(ValueError, match="all rows violate"):
        guide.step(torch.tensor([[1, 0, 1], [1, 1, 1]]), scores)


def test_bad_input_is_refused_before_generation(lm: vlhmm.LanguageModel) -> None:
    scores, eos = torch.zeros(2, HEAD), lm.tokenizer.eos_id
    with pytest.raises(ValueError, match="max_new_tokens is 0"):
        Guide(lm, contains("cat"), max_new_tokens=0)
    with pytest.raises(ValueError, match="0 constraints"):
        Guide(lm, [], max_new_tokens=3)
    with pytest.raises(ImpossibleConstraintError, match="takes at least 4 tokens, but at most 3 are allowed"):
        Guide(lm, contains_all("the cat", "the dog", "horse"), max_new_tokens=3)
    with pytest.raises(ImpossibleConstraintError, match=r"contains\('cat'\) & excludes\('cat'\) is impossible"):
        Guide(lm, contains("cat") & length(1, 4) & excludes("cat"), max_new_tokens=5)
    with pytest.raises(ValueError, match="give the language model's tokenizer="):
        Guide(lm.hmm, contains("cat"), max_new_tokens=5)
    other = tiny_corpus(1).tokenizer
    with pytest.raises(ValueError, match="the tokenizers differ: token"):
        Guide(lm, contains("cat"), max_new_tokens=5, tokenizer=other)
    guide = Guide(lm, [contains("cat"), contains("dog"), contains("bird")], max_new_tokens=5)
    with pytest.raises(ValueError, match="3 constraints for 2 rows"):
        guide.step(torch.tensor([[1], [1]]), scores)
    guide = Guide(lm, contains("cat"), max_new_tokens=2, prompt_lengths=[1, 5])
    with pytest.raises(ValueError, match=r"prompt_lengths are \[1, 5\]"):
        guide.step(torch.tensor([[1], [1]]), scores)
    guide.reset(prompt_lengths=[1, 0])
    guide.step(torch.tensor([[1], [1]]), scores)
    with pytest.raises(ValueError, match="or others than before"):
        guide.step(torch.tensor([[1], [2]]), scores)
    guide.reset()
    with pytest.raises(ValueError, match="scores 3 tokens"):
        guide.step(torch.tensor([[1], [1]]), scores[:, :3])
    with pytest.raises(ValueError, match="has token 31, but the HMM's vocabulary ends at"):
        guide.step(torch.tensor([[1], [31]]), scores)
    ids = torch.tensor([[eos], [1]])
    for _ in range(2):
        ids = torch.cat([ids, guide.step(ids, scores).argmax(1, keepdim=True)], dim=1)
    with pytest.raises(ValueError, match="token 3 is asked for, but max_new_tokens is 2"):
        guide.step(ids, scores)
    # No token is left that both allow.
    forbidding = scores.clone()
    forbidding[:, lm.tokenizer.token_id("cat")] = -torch.inf
    guide = Guide(lm, starts_with("cat"), max_new_tokens=5)
    with pytest.raises(ValueError, match=r"row 0 has no token left that satisfies starts_with\('cat'\)"):
        guide.step(torch.tensor([[1], [1]]), forbidding)


def test_a_prompt_or_constraint_of_probability_zero_is_refused() -> None:
    hmm = HMM.from_probabilities([1.0, 0.0], [[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]])
    with pytest.raises(
        ImpossibleTextError, match="row 0 has probability zero by the HMM from token 1 on: use read_prompt=False"
    ):
        Guide(hmm, contains_token(3, 0), max_new_tokens=3).step(torch.tensor([[1, 2]]), torch.zeros(1, 3))
    guide = Guide(hmm, contains_token(3, 2), max_new_tokens=3)
    with pytest.raises(ImpossibleConstraintError, match="the HMM gives the automaton probability zero within 3 tokens"):
        guide.step(torch.tensor([[1, 1]]), torch.zeros(1, 3))
    never = HMM.from_probabilities([1.0], [[1.0]], [[0.5, 0.5, 0.0]])
    with pytest.raises(ImpossibleConstraintError, match="the HMM gives the automaton probability zero"):
        Guide(never, contains_token(3, 2), max_new_tokens=3)


@pytest.mark.parametrize(
    "options",
    [{}, {"do_sample": True, "num_return_sequences": 2}, {"num_beams": 3}],
    ids=["greedy", "sampling", "beams"],
)
def test_generate_uses_the_guides_own_length_and_padding(
    lm: vlhmm.LanguageModel, llama: torch.nn.Module, options: dict[str, object]
) -> None:
    """Whatever length the model's own settings have; prompts are padded on the left with a token that also occurs in them."""
    torch.manual_seed(3)
    prompts = [lm.tokenizer.encode(prompt) for prompt in ("the cat", "the dog sees the bird in the")]
    pad, width = prompts[0][0], max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in prompts])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
    constraints = [contains_all("horse", "river", "fish"), length(7, 7)]
    guide = Guide(lm, constraints, max_new_tokens=9, must_end=True)
    for settings_length in (2, 30):
        llama.generation_config.max_new_tokens = settings_length  # type: ignore[union-attr]
        try:
            out = guide.generate(llama, ids, attention_mask=mask, pad_token_id=pad, **options)
        finally:
            llama.generation_config.max_new_tokens = None  # type: ignore[union-attr]
        each = len(out) // 2
        for row, tokens in enumerate(out[:, width:].tolist()):
            new = tokens[: tokens.index(lm.tokenizer.eos_id)]
            assert constraints[row // each].compile(lm.tokenizer).accepts(new)


def test_a_text_cut_off_before_the_guides_end_is_no_silent_violation(
    lm: vlhmm.LanguageModel, llama: torch.nn.Module
) -> None:
    ids = torch.tensor([lm.tokenizer.encode("the cat")])
    guide = Guide(lm, length(8, 8), max_new_tokens=10, must_end=True)
    for option in ({"max_new_tokens": 3}, {"max_length": 40}, {"max_new_tokens": 11}):
        with pytest.raises(ValueError, match="the guide has max_new_tokens 10"):
            guide.generate(llama, ids, **option)
    # Another EOS would let the text go on after its end; guesses are not made a token a step.
    with pytest.raises(ValueError, match="eos_token_id is 5, but the guide has"):
        guide.generate(llama, ids, eos_token_id=5)
    with pytest.raises(ValueError, match="prompt_lookup_num_tokens guesses several tokens"):
        guide.generate(llama, ids, prompt_lookup_num_tokens=3)
    # Nothing that may cut a text off is known beforehand; it is found in the end.
    with pytest.raises(ValueError, match=r"row 0 does not satisfy length\(8, 8\) after 4 tokens"):
        guide.generate(llama, ids, stopping_criteria=[lambda tokens, _: torch.full((1,), tokens.shape[1] >= 6)])
    eos = lm.tokenizer.eos_id
    assert eos is not None
    # In the hands of a caller of `generate`, stopping criteria cut off what only `check` finds, or the next call.
    stop = [lambda tokens, _: torch.full((1,), tokens.shape[1] >= 5)]
    short = llama.generate(ids, **guide.generate_arguments(), stopping_criteria=stop)  # type: ignore[operator]
    with pytest.raises(ValueError, match="after 3 tokens"):
        guide.check(short[:, ids.shape[1] :])
    with pytest.warns(UserWarning, match="cut off with 7 of 10 tokens left"):
        guide.step(ids, torch.zeros(1, HEAD))
    guide.check(guide.generate(llama, ids)[:, ids.shape[1] :])
    guide.check(guide.generate(llama, input_ids=ids, return_dict_in_generate=True).sequences[:, ids.shape[1] :])


def test_a_guide_is_no_logits_processor_without_its_own_length(lm: vlhmm.LanguageModel, llama: torch.nn.Module) -> None:
    """`generate` may stop at 4 tokens, of which a logits processor learns nothing: the guide would have planned for 30."""
    ids = torch.tensor([lm.tokenizer.encode("the cat")])
    guide = Guide(lm, contains("river"), max_new_tokens=LIMIT, must_end=True)
    unlikely = lm.tokenizer.token_id("river")

    class Down:
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            return scores.index_fill(1, torch.tensor([unlikely]), -40.0)

    for processors in ([guide], [Down(), guide]):
        with pytest.raises(ValueError, match=rf"plans for {LIMIT} tokens: use guide.generate\(model, ...\), or"):
            llama.generate(ids, logits_processor=processors, max_new_tokens=4, do_sample=True)  # type: ignore[operator]
    with pytest.raises(TypeError, match="multiple values for keyword argument 'max_new_tokens'"):
        llama.generate(ids, **guide.generate_arguments(), max_new_tokens=4)  # type: ignore[operator]
    for length_option in ({"max_new_tokens": 4}, {"max_length": 30}):
        with pytest.raises(ValueError, match=f"but the guide has max_new_tokens {LIMIT}"):
            guide.generate_arguments(**length_option)
    # Whatever length the model's own settings have, and with processors of one's own before the guide.
    llama.generation_config.max_new_tokens = 2  # type: ignore[union-attr]
    try:
        for _ in range(2):
            out = llama.generate(ids, **guide.generate_arguments(logits_processor=[Down()], do_sample=True))  # type: ignore[operator]
            guide.check(out[:, ids.shape[1] :])
    finally:
        llama.generation_config.max_new_tokens = None  # type: ignore[union-attr]
