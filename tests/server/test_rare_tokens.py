"""Tokens whose probability is beneath every float32, or beneath every float64: drawn, named and scored as in Python."""

import math

import pytest
import torch
from serving import serving

import vlhmm
from vlhmm.data import word_tokenizer
from vlhmm.inference.errors import ImpossibleTextError

# In float32 tables a word may have any log-probability; probabilities of float64 make them.
LOG_PROBS = pytest.mark.parametrize("log_prob", [math.log(0.3), -100.0, -115.13, -600.0, -2000.0])


def rare_lm(log_prob: float, more: float = -math.inf) -> vlhmm.LanguageModel:
    """After "a" comes <unk>, or "b" of this log-probability, or "c" of `more`; then "c" or the end, evenly."""
    tokenizer = word_tokenizer(["a", "b", "c"])
    a, b, c = (tokenizer.token_id(word) for word in "abc")
    emission = torch.zeros(3, tokenizer.vocab_size, dtype=torch.float64)
    emission[0, a] = 1
    emission[1, tokenizer.unk_id] = 1 - math.exp(log_prob) - math.exp(more)
    emission[2, [c, tokenizer.eos_id]] = 0.5
    transition = torch.tensor([[0, 1.0, 0], [0, 0, 1], [0, 0, 1]], dtype=torch.float64)
    hmm = vlhmm.HMM.from_probabilities([1.0, 0, 0], transition, emission / emission.sum(1, keepdim=True))
    tables = hmm.tables.to(dtype=torch.float32)
    tables.log_emission[[b, c], 1] = torch.tensor([log_prob, more])
    tables.log_emission[tokenizer.unk_id, 1] = math.log1p(-math.exp(log_prob) - math.exp(more))
    return vlhmm.LanguageModel.from_hmm(vlhmm.HMM(tables).with_reset_token(tokenizer.eos_id), tokenizer)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_where_no_token_can_be_drawn_both_refuse() -> None:
    lm = rare_lm(-math.inf)
    with pytest.raises(ImpossibleTextError, match="nothing but token"):
        lm.generate("a", max_tokens=4)
    with pytest.raises(ImpossibleTextError, match="nothing but token"):
        lm.next_tokens("a", top=3)
    with serving(lm) as server:
        for body in ({}, {"temperature": 0}, {"n": 3, "logprobs": 2}, {"top_p": 0.5}):
            error = server.refused("/v1/completions", prompt="a", max_tokens=4, seed=0, **body)
            assert "nothing but token" in error["message"]
        # Others go on; a stream, whose status was sent, says so in an event.
        assert server.complete(prompt="c", max_tokens=0, echo=True)["choices"][0]["text"] == "c"
        sent = server.post("/v1/completions", prompt="a", max_tokens=4, stream=True)
        assert "nothing but token" in sent.text


def test_what_follows_an_impossible_prompt_has_no_probability() -> None:
    with serving(rare_lm(-math.inf)) as server:
        body = {"prompt": "a b", "max_tokens": 1, "echo": True, "logprobs": 2, "seed": 0}
        found = server.complete(**body)["choices"][0]["logprobs"]
        assert found["tokens"][:2] == ["a", "b"]
        assert len(found["tokens"]) == 3
        assert found["token_logprobs"] == [None, -9999.0, None]
        assert found["top_logprobs"][2] is None
        streamed = server.post("/v1/completions", **body, stream=True).text
        assert '"token_logprobs": [null]' in streamed


@LOG_PROBS
def test_a_rare_token_is_drawn_where_nothing_else_can_be(log_prob: float) -> None:
    lm = rare_lm(log_prob)
    assert lm.generate("a", max_tokens=1, seed=seeded(0)) == ["a b"]
    assert lm.next_tokens("a", top=1) == [("b", pytest.approx(1.0))]
    ids = lm.tokenizer.encode("a")
    stream = lm.hmm.stream()
    stream.feed(ids)
    assert stream.next_tokens(top=1, without=lm.tokenizer.unk_id).tokens.tolist() == [lm.tokenizer.encode("b")]
    with serving(lm) as server:
        written = server.complete(prompt="a", max_tokens=1, seed=0, logprobs=3)["choices"][0]
        assert written["text"] == " b"
        read = server.complete(prompt="a b", max_tokens=0, echo=True, logprobs=3)["choices"][0]["logprobs"]
        for scores, tops in (
            (written["logprobs"]["token_logprobs"][0], written["logprobs"]["top_logprobs"][0]),
            (read["token_logprobs"][1], read["top_logprobs"][1]),
        ):
            assert scores == pytest.approx(log_prob, rel=1e-5)
            assert tops["b"] == scores


@pytest.mark.parametrize(("rare", "rarer"), [(-50.0, -70.0), (-110.0, -130.0), (-1000.0, -1020.0)])
def test_a_high_temperature_draws_what_floats_cannot_hold(rare: float, rarer: float) -> None:
    """At temperature 10 "b" has e^-2 of the weight of "c", whatever the weight of <unk>, which is left out."""
    lm = rare_lm(rarer, rare)
    expected = math.exp(-2) / (1 + math.exp(-2))
    num = 2000
    for top_p in (None, 1.0):
        drawn = lm.generate("a", max_tokens=1, num=num, temperature=10.0, seed=seeded(1), top_p=top_p)
        share = drawn.count("a b") / num
        assert abs(share - expected) < 5 * math.sqrt(expected * (1 - expected) / num)
    # With <unk>, at a temperature at which it is as likely as both.
    drawn = lm.generate("a", max_tokens=1, num=num, temperature=-rare / 2, seed=seeded(1), unk=True)
    weights = [1, math.exp(-2), math.exp(2 * rarer / -rare)]
    assert abs(drawn.count("a c") / num - weights[1] / sum(weights)) < 0.04


@LOG_PROBS
def test_rare_tokens_before_others_are_read_by_the_server_as_by_python(log_prob: float) -> None:
    lm = rare_lm(log_prob)
    with serving(lm) as server:
        found = server.complete(prompt="a b c c", max_tokens=0, echo=True, logprobs=5)["choices"][0]["logprobs"]
    expected = [token.log_prob for token in lm.score("a b c c").tokens]
    assert found["token_logprobs"][1:] == pytest.approx(expected[1:4], rel=1e-5)
    for token, log_prob_of_it, top in list(
        zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True)
    )[1:]:
        assert top[token] == log_prob_of_it
