"""What lm-evaluation-harness reads of a server, and the way between text and token ids."""

from __future__ import annotations

import pytest
import torch
from serving import Served

PROMPTS = ["the cat sees a bird", "a", "the dog hears the unknownword in the garden", "is", "<eos> the cat"]


def test_echo_scores_every_token_of_the_prompt_and_one_more(served: Served) -> None:
    tokenizer = served.lm.tokenizer
    lists = [tokenizer.encode(prompt) for prompt in PROMPTS]
    found = served.complete(prompt=lists, max_tokens=1, logprobs=1, echo=True, temperature=0, seed=1234)
    for ids, choice in zip(lists, found["choices"], strict=True):
        given = choice["logprobs"]
        log_probs, tops = given["token_logprobs"], given["top_logprobs"]
        assert len(log_probs) == len(tops) == len(given["tokens"]) == len(ids) + 1
        assert given["tokens"][:-1] == [tokenizer.token(token) for token in ids]
        assert log_probs[0] is None
        assert tops[0] is None
        stream = served.lm.hmm.stream(belief=served.lm.opening)
        # An EOS at the beginning is the one that every text follows.
        for place, (token, value, top) in enumerate(zip(ids, log_probs[:-1], tops[:-1], strict=True)):
            if not place and token == tokenizer.eos_id:
                continue
            probs = stream.next_token_probs()[0]
            scored = float(stream.feed([token])[0, 0])
            if top is None:
                continue
            assert value == pytest.approx(max(scored, -9999.0), rel=1e-6, abs=1e-6)
            # Equal bit by bit exactly where no token is more likely: what `is_greedy` of the harness is decided by.
            assert (max(top.values()) == value) == bool(probs[token] == probs.max())
            assert top[tokenizer.token(token)] == value


def test_two_tokens_as_likely_as_each_other_are_both_the_best() -> None:
    from serving import serving

    import vlhmm
    from vlhmm.data import word_tokenizer

    tokenizer = word_tokenizer(["heads", "tails"], unk=False)
    hmm = vlhmm.HMM.from_probabilities([1.0], [[1.0]], [[1 / 3, 1 / 3, 1 / 3]])
    with serving(vlhmm.LanguageModel.from_hmm(hmm, tokenizer)) as one:
        found = one.complete(prompt=[0, 1, 0, 1], max_tokens=1, logprobs=1, echo=True)
    given = found["choices"][0]["logprobs"]
    for value, top in zip(given["token_logprobs"][1:4], given["top_logprobs"][1:4], strict=True):
        assert value == max(top.values())


def test_prompts_scored_together_have_the_numbers_of_each_alone(server: Served) -> None:
    lists = [server.lm.tokenizer.encode(prompt) for prompt in PROMPTS]
    body = {"max_tokens": 0, "logprobs": 0, "echo": True}
    together = [choice["logprobs"]["token_logprobs"][1:] for choice in server.complete(prompt=lists, **body)["choices"]]
    alone = [server.complete(prompt=ids, **body)["choices"][0]["logprobs"]["token_logprobs"][1:] for ids in lists]
    for several, one in zip(together, alone, strict=True):
        torch.testing.assert_close(torch.tensor(several), torch.tensor(one), rtol=1e-6, atol=1e-6)


def test_long_texts_are_read_in_parts(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlhmm.server.reading.PART_TOKENS", 7)
    text = " ".join(["the cat sees a bird in the garden and"] * 6)
    found = server.complete(prompt=text, max_tokens=0, logprobs=2, echo=True)["choices"][0]["logprobs"]
    expected = [token.log_prob for token in server.lm.score(text).tokens]
    torch.testing.assert_close(
        torch.tensor(found["token_logprobs"][1:]), torch.tensor(expected[1:]), rtol=1e-5, atol=1e-5
    )
    assert all(len(top) in (2, 3) for top in found["top_logprobs"][1:])


def test_text_to_tokens_and_back(server: Served) -> None:
    tokenizer = server.lm.tokenizer
    text = "the cat sees a bird"
    found = server.post("/tokenize", prompt=text, add_special_tokens=False, return_token_strs=True).json()
    assert found["tokens"] == tokenizer.encode(text)
    assert found["count"] == 5
    assert found["token_strs"] == text.split()
    assert server.post("/detokenize", tokens=found["tokens"]).json()["prompt"] == text
    assert server.post("/detokenize", tokens=[]).json()["prompt"] == ""
    info = server.get("/tokenizer_info").json()
    assert server.post("/tokenize", prompt=info["eos_token"]).json()["tokens"] == [tokenizer.eos_id]
    assert info["bos_token"] is None
    assert "between 0 and" in server.refused("/detokenize", tokens=[10**6])["message"]
