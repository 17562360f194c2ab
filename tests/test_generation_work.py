"""Drawing computes what its texts need and no more, and refuses what cannot fit before it draws."""

from collections.abc import Callable

import pytest
import torch
from tiny import tiny_corpus, tiny_model

import vlhmm
from vlhmm.tables import Belief


@pytest.fixture(scope="module", params=["eos", "carry"])
def lm(request: pytest.FixtureRequest) -> vlhmm.LanguageModel:
    corpus = tiny_corpus()
    model = tiny_model(corpus, reset=request.param)
    vlhmm.train(model, corpus, epochs=4, batch_size=4, window=16, checks_per_epoch=1)
    return vlhmm.LanguageModel(model, corpus.tokenizer)


def drawn_to_the_end(lm: vlhmm.LanguageModel, prompt: str, num: int, max_tokens: int, seed: int) -> list[str]:
    """The definition: every text is continued for `max_tokens` tokens, and then cut at its first EOS."""
    generator = torch.Generator().manual_seed(seed)
    ids = lm.tokenizer.encode(prompt)
    belief = lm.hmm.filter([ids], belief=lm.opening).belief
    belief = Belief(belief.token.expand(num), belief.log_probs.expand(num, -1))
    columns = []
    for _ in range(max_tokens):
        log_probs = lm.hmm.next_token_probs(belief).log()
        token = (log_probs - torch.empty_like(log_probs).exponential_(generator=generator).log()).argmax(1)
        columns.append(token)
        belief = lm.hmm.filter(token[:, None], belief=belief).belief
    eos = lm.tokenizer.eos_id
    rows = [row[: row.index(eos)] if eos in row else row for row in torch.stack(columns, 1).tolist()]
    return [lm.tokenizer.decode(ids + row) for row in rows]


@pytest.mark.parametrize("max_tokens", [1, 3, 40])
def test_texts_are_those_of_drawing_every_one_to_the_end(lm: vlhmm.LanguageModel, max_tokens: int) -> None:
    for seed in range(3):
        ours = lm.generate("the cat", num=12, max_tokens=max_tokens, seed=seed)
        assert ours == drawn_to_the_end(lm, "the cat", 12, max_tokens, seed)


@pytest.mark.parametrize("num", [1, 7])
def test_texts_that_have_ended_take_no_more_work(
    lm: vlhmm.LanguageModel, num: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million tokens are allowed; the model is asked for a token once for every token drawn, EOS included."""
    asked: list[int] = []
    predict: Callable[..., torch.Tensor] = vlhmm.HMM.next_token_probs

    def counted(hmm: vlhmm.HMM, belief: Belief | None = None) -> torch.Tensor:
        probs = predict(hmm, belief)
        asked.append(num if belief is None else probs.shape[0])
        return probs

    monkeypatch.setattr(vlhmm.HMM, "next_token_probs", counted)
    texts = lm.generate(num=num, max_tokens=1_000_000, seed=0)
    lengths = [len(lm.tokenizer.encode(text)) + 1 for text in texts]
    assert len(asked) == max(lengths)
    assert sum(asked) == sum(lengths)


def test_draws_that_cannot_fit_are_refused_with_how_many_can(lm: vlhmm.LanguageModel) -> None:
    many, tokens = 10**12, [[1, 2, 3]]
    for draw in (
        lambda: lm.generate(num=many),
        lambda: lm.generate(num=many, top_p=0.5),
        lambda: lm.infill("the ___ sees", num=many),
        lambda: lm.hmm.sample(many, 4),
        lambda: lm.hmm.sample(4, many),
        lambda: lm.hmm.sample_posterior(tokens, many),
        lambda: lm.hmm.infill(tokens, [[False, True, False]], num=many),
    ):
        with pytest.raises(
            ValueError, match=r"GiB, but .* GiB are available on cpu: draw at most [\d,]+ at a time|shorter"
        ):
            draw()


def test_the_bytes_counted_are_those_of_a_larger_request(
    lm: vlhmm.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same request passes where there is room for it, and is refused where there is a quarter."""
    monkeypatch.setattr("vlhmm.inference.sampling.available_bytes", lambda device: 1 << 20)
    monkeypatch.setattr("vlhmm.memory.available_bytes", lambda device: 1 << 20)
    with pytest.raises(ValueError, match="draw at most") as refused:
        lm.generate(num=100_000)
    fits = int(str(refused.value).split("at most ")[1].split()[0].replace(",", ""))
    assert len(lm.generate(num=fits, max_tokens=50)) == fits
    with pytest.raises(ValueError, match="draw at most"):
        lm.generate(num=4 * fits)
