"""Text in, text out: each answer of the language model against the HMM it stands on."""

import math
from pathlib import Path

import pytest
import torch
from tiny import tiny_corpus, tiny_model

import vlhmm


@pytest.fixture(scope="module", params=["eos", "carry"])
def lm(request: pytest.FixtureRequest) -> vlhmm.LanguageModel:
    corpus = tiny_corpus()
    model = tiny_model(corpus, reset=request.param)
    vlhmm.train(model, corpus, epochs=6, batch_size=4, window=16, checks_per_epoch=1)
    return vlhmm.LanguageModel(model, corpus.tokenizer)


def test_scores_add_up_over_the_next_token_probabilities(lm: vlhmm.LanguageModel) -> None:
    words = ["the", "cat", "sees", "the", "dog"]
    score = lm.score(" ".join(words))
    assert [token.token for token in score.tokens] == words
    for position, token in enumerate(score.tokens):
        probs = dict(lm.next_tokens(" ".join(words[:position]), top=lm.tokenizer.vocab_size, unk=True))
        assert math.log(probs[token.token]) == pytest.approx(token.log_prob, abs=1e-4)
    assert score.perplexity == pytest.approx(math.exp(-score.log_prob / 5))


def test_next_token_probabilities_sum_to_one(lm: vlhmm.LanguageModel) -> None:
    for text in ("", "the", "the cat sees the dog in the"):
        assert sum(prob for _, prob in lm.next_tokens(text, top=10_000)) == pytest.approx(1, abs=1e-5)


def test_a_trained_model_knows_its_grammar(lm: vlhmm.LanguageModel) -> None:
    # A noun is followed by a verb, by a place, or by nothing.
    likely = lm.next_tokens("the cat", top=6)
    assert {word for word, _ in likely} == {"sees", "hears", "likes", "follows", "in", "<eos>"}
    assert sum(prob for _, prob in likely) > 0.9


def test_the_posterior_names_states_that_emit_the_word(lm: vlhmm.LanguageModel) -> None:
    for token in lm.posterior("the dog likes the bird", top=100):
        assert sum(prob for _, prob in token.states) == pytest.approx(1, abs=1e-5)
        best, _ = token.states[0]
        assert token.token in [word for word, _ in lm.name_state(best.state, top=100).words]
        assert 0 <= token.entropy <= math.log(len(token.states)) + 1e-5


def test_the_best_path_is_at_most_as_likely_as_the_text(lm: vlhmm.LanguageModel) -> None:
    text = "the horse follows the fish in the river"
    path = lm.viterbi(text)
    assert path.tokens == text.split()
    assert len(path.states) == len(path.tokens)
    assert path.log_prob <= lm.score(text).log_prob + 1e-5


def test_generation_is_reproducible_and_ends_at_eos(lm: vlhmm.LanguageModel) -> None:
    def texts() -> list[str]:
        return lm.generate("the cat", num=20, max_tokens=30, seed=3)

    assert texts() == texts()
    assert all(text.startswith("the cat") for text in texts())
    assert all("<eos>" not in text for text in texts())
    assert len(set(texts())) > 1


def test_the_likeliest_token_is_chosen_by_top_one(lm: vlhmm.LanguageModel) -> None:
    (best, _), *_ = lm.next_tokens("the bird", top=1)
    assert lm.generate("the bird", top_k=1, max_tokens=1) == [f"the bird {best}"]


def test_bad_requests_are_refused(lm: vlhmm.LanguageModel) -> None:
    with pytest.raises(ValueError, match="0 tokens"):
        lm.score("")
    with pytest.raises(ValueError, match="top is 0"):
        lm.next_tokens("the", top=0)
    with pytest.raises(ValueError, match="temperature is 0"):
        lm.generate(temperature=0.0)
    with pytest.raises(ValueError, match="num is 0"):
        lm.generate(num=0)
    with pytest.raises(ValueError, match="state is 99999"):
        lm.name_state(99999)
    other = tiny_corpus(1)
    with pytest.raises(ValueError, match="tokenizer that the model was trained with"):
        vlhmm.LanguageModel(lm.model, other.tokenizer)


def test_a_model_saved_in_bf16_is_the_rounded_model_in_half_the_bytes(lm: vlhmm.LanguageModel, tmp_path: Path) -> None:
    lm.save(tmp_path / "whole")
    lm.save(tmp_path / "half", dtype=torch.bfloat16)
    loaded = vlhmm.load(tmp_path / "half")
    for name, tensor in lm.model.state_dict().items():
        rounded = tensor.to(torch.bfloat16).to(tensor.dtype) if tensor.dtype == torch.float32 else tensor
        # torch.equal alone holds for tensors of different types.
        assert loaded.model.state_dict()[name].dtype == tensor.dtype, name
        assert torch.equal(loaded.model.state_dict()[name], rounded), name
    assert math.isfinite(loaded.score("the cat").log_prob)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("whole", "half")]
    floats = sum(t.numel() for t in lm.model.state_dict().values() if t.dtype == torch.float32)
    # The headers, which are no weights, name the types.
    assert abs(sizes[0] - sizes[1] - 2 * floats) < 200
    with pytest.raises(ValueError, match=r"dtype is torch\.float16"):
        lm.save(tmp_path / "other", dtype=torch.float16)


def test_a_file_or_another_programs_model_is_not_replaced(tmp_path: Path, lm: vlhmm.LanguageModel) -> None:
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(ValueError, match="letter is a file, but a model is saved as a folder"):
        lm.save(tmp_path / "letter")
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match=r"config.json is not of a vlhmm model, and would be replaced"):
        lm.save(tmp_path / "llama")
    assert (tmp_path / "llama" / "config.json").read_text() == '{"model_type": "llama"}'
    for _ in range(2):
        lm.save(tmp_path / "own")
