"""Texts written in fixed buffers, as a GPU does in a graph, are those written with keys that grow."""

import warnings
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from graphs import graphs_on_cpu
from tiny_teacher import write_tiny_teacher
from torch import Tensor

import vlhmm.distillation.teachers.drawing
from vlhmm.distillation.teachers import Teacher, TextDrawer, decoding, draw_texts, load_teacher
from vlhmm.distillation.teachers.decoding import (
    Drawn,
    Prompts,
    SamplingConfig,
    StaticCacheGenerator,
    arrivals_of,
    can_be_fixed,
    draw_tokens,
    one_query_attention,
    slots_of,
    write_growing,
)

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Teacher:
    folder = tmp_path_factory.mktemp("teacher")
    write_tiny_teacher(folder)
    return load_teacher(str(folder))


def grouped_model() -> Any:
    """Untrained, four query heads on two key heads; large weights, so that it is sure of what it writes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(config).eval()


def padded(*lengths: int, vocab_size: int = 40) -> Prompts:
    width, generator = max(lengths), torch.Generator().manual_seed(5)
    attended = (torch.arange(width) >= width - torch.tensor(lengths)[:, None]).long()
    return Prompts(torch.randint(vocab_size, (len(lengths), width), generator=generator) * attended, attended)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def assert_equal(first: Drawn, second: Drawn) -> None:
    assert first.tokens.tolist() == second.tokens.tolist()
    assert first.lengths.tolist() == second.lengths.tolist()
    torch.testing.assert_close(first.log_probs, second.log_probs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("eos", [None, 7])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_fixed_buffers_write_what_growing_keys_write(eos: int | None, temperature: float) -> None:
    model, prompts = grouped_model(), padded(1, 9, 4, 6, 2, 9, 3, 5)
    sampling_config = SamplingConfig(21, 37, eos, temperature)
    first, second = seeded(0), seeded(0)
    fixed = StaticCacheGenerator(model, 8, 9, sampling_config).write(prompts, first)
    growing = write_growing(model, prompts, sampling_config, second)
    assert_equal(fixed, growing)
    # Whatever is drawn next from the generator is the same too.
    assert torch.equal(first.get_state(), second.get_state())
    assert int(fixed.tokens.max()) < 37
    assert len(set(fixed.lengths.tolist())) > 1 or eos is None
    assert model.config._attn_implementation == "sdpa"


def test_one_writer_serves_batch_after_batch() -> None:
    model, sampling_config = grouped_model(), SamplingConfig(10, 40, 7, 1.0)
    writer = StaticCacheGenerator(model, 3, 6, sampling_config)
    for seed, prompts in enumerate((padded(6, 2, 4), padded(3, 3, 1), padded(5, 6, 6))):
        assert writer.fits(prompts)
        assert_equal(writer.write(prompts, seeded(seed)), write_growing(model, prompts, sampling_config, seeded(seed)))
    assert not writer.fits(padded(6, 2))
    assert not writer.fits(padded(slots_of(6, 10) - 9, 1, 1))


def test_log_probs_in_fixed_buffers_are_the_models_own() -> None:
    model, prompts = grouped_model(), padded(2, 7, 5)
    drawn = StaticCacheGenerator(model, 3, 7, SamplingConfig(12, 37, 7, 0.8)).write(prompts, seeded(3))
    for row, length in enumerate(drawn.lengths.tolist()):
        prompt = prompts.ids[row, prompts.attended[row].bool()]
        ids = torch.cat([prompt, drawn.tokens[row, :length]])
        with torch.no_grad():
            logits = model(ids[None]).logits[0, len(prompt) - 1 : -1, :37]
        expected = (logits.double() / 0.8).log_softmax(1).gather(1, ids[len(prompt) :, None]).sum()
        assert float(drawn.log_probs[row]) == pytest.approx(float(expected), abs=1e-3)


def test_texts_end_at_eos_or_at_max_tokens_and_are_zero_after() -> None:
    # One word in two is EOS, so that all texts end long before the last step.
    model = grouped_model()
    with torch.no_grad():
        model.lm_head.weight.zero_()
    prompts = padded(*[2] * 30)
    sampling_config = SamplingConfig(60, 2, 1, 1.0)
    fixed = StaticCacheGenerator(model, 30, 2, sampling_config).write(prompts, seeded(1))
    for drawn in (fixed, write_growing(model, prompts, sampling_config, seeded(1))):
        for row, length in zip(drawn.tokens.tolist(), drawn.lengths.tolist(), strict=True):
            assert row == [0] * (length - 1) + [1] + [0] * (60 - length)
        assert drawn.log_probs.tolist() == pytest.approx((-drawn.lengths * torch.log(torch.tensor(2.0))).tolist())
    cut = StaticCacheGenerator(model, 30, 2, SamplingConfig(1, 2, 1, 1.0)).write(prompts, seeded(1))
    assert cut.tokens.shape == (30, 1)
    assert cut.lengths.tolist() == [1] * 30


def test_a_writer_that_has_stopped_early_begins_anew() -> None:
    model, sampling_config = grouped_model(), SamplingConfig(20, 40, 7, 0.05)
    prompts = padded(4, 4)
    writer = StaticCacheGenerator(model, 2, 4, sampling_config)
    assert_equal(writer.write(prompts, seeded(0)), writer.write(prompts, seeded(0)))


def test_attention_of_one_query_is_that_with_repeated_keys() -> None:
    generator = seeded(0)
    query = torch.randn(3, 6, 1, 8, generator=generator)
    key, value = (torch.randn(3, 2, 5, 8, generator=generator) for _ in range(2))
    mask = torch.zeros(3, 1, 1, 5).masked_fill(torch.rand(3, 1, 1, 5, generator=generator) < 0.4, -torch.inf)
    mask[..., 0] = 0
    found, _ = one_query_attention(None, query, key, value, mask, scaling=0.3)
    weights = (query @ key.repeat_interleave(3, dim=1).mT * 0.3 + mask).softmax(-1)
    expected = (weights @ value.repeat_interleave(3, dim=1)).transpose(1, 2)
    torch.testing.assert_close(found, expected)
    with pytest.raises(NotImplementedError, match="softcap"):
        one_query_attention(None, query, key, value, mask, softcap=30.0)


def test_drawn_tokens_have_the_frequencies_of_a_softmax() -> None:
    num, sampling_config = 20_000, SamplingConfig(1, 5, None, 0.5)
    logits = torch.tensor([0.3, -1.0, 1.0, -torch.inf, 0.0, 9.0]).repeat(num, 1)
    drawn, log_probs = draw_tokens(logits, sampling_config, arrivals_of(num, sampling_config, seeded(0), logits.device))
    probs = (logits[0, :5].double() / 0.5).softmax(0)
    torch.testing.assert_close(log_probs.exp(), probs[drawn], rtol=1e-5, atol=0)
    spread = (probs * (1 - probs) / num).sqrt()
    assert bool(((torch.bincount(drawn, minlength=5) / num - probs).abs() <= 5 * spread).all())


def test_arrivals_of_a_row_do_not_depend_on_which_others_are_left() -> None:
    sampling_config, rows = SamplingConfig(1, 6, None, 1.0), torch.tensor([1, 3])
    every = arrivals_of(4, sampling_config, seeded(0), torch.device("cpu"))
    assert torch.equal(arrivals_of(4, sampling_config, seeded(0), torch.device("cpu"), rows), every[rows])


def test_models_with_windows_or_without_the_promise_are_not_fixed() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    assert can_be_fixed(grouped_model())
    sizes: Any = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    assert not can_be_fixed(MistralForCausalLM(MistralConfig(**sizes, sliding_window=4)))
    assert can_be_fixed(MistralForCausalLM(MistralConfig(**sizes, sliding_window=None)))
    assert not can_be_fixed(SimpleNamespace())


def as_on_a_gpu(drawer: TextDrawer) -> TextDrawer:
    drawer._may_fix = True
    return drawer


def test_a_drawer_gives_the_same_texts_either_way(teacher: Teacher) -> None:
    texts = ("the", "the cat sees", "the dog hears the")
    prompts = [teacher.text_tokenizer(text)["input_ids"] for text in texts] * 4
    drawer = as_on_a_gpu(TextDrawer(teacher, max_tokens=20, temperature=0.8))
    # A shorter batch in between needs other buffers.
    for seed, batch in enumerate((prompts, prompts[:5], prompts)):
        expected = draw_texts(teacher, batch, max_tokens=20, temperature=0.8, generator=seeded(seed))
        assert_equal(drawer(batch, seeded(seed)), expected)
        assert drawer._writer is not None


def test_a_drawer_that_knows_the_longest_prompt_keeps_its_buffers(teacher: Teacher) -> None:
    drawer = as_on_a_gpu(TextDrawer(teacher, max_tokens=8, longest_prompt=40))
    drawer([[1]] * 2, seeded(0))
    first = drawer._writer
    assert_equal(
        drawer([[1] * 40] * 2, seeded(1)), draw_texts(teacher, [[1] * 40] * 2, max_tokens=8, generator=seeded(1))
    )
    assert drawer._writer is first


def test_a_model_that_refuses_fixed_buffers_is_drawn_from_the_slow_way(
    teacher: Teacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = teacher.model.forward

    def forward(*, attention_mask: Tensor, **inputs: Any) -> Any:
        if attention_mask.ndim == 4:
            raise IndexError("a mask of two dimensions, please")
        return own(attention_mask=attention_mask, **inputs)

    prompts = teacher.prompt_ids(None) * 6
    expected = draw_texts(teacher, prompts, max_tokens=20, generator=seeded(0))
    monkeypatch.setattr(teacher.model, "forward", forward)
    drawer = as_on_a_gpu(TextDrawer(teacher, max_tokens=20))
    with pytest.warns(UserWarning, match="two dimensions, please"):
        drawn = drawer(prompts, seeded(0))
    assert_equal(drawn, expected)
    # It is said once.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_equal(drawer(prompts, seeded(0)), expected)


def test_broken_weights_are_no_reason_to_try_again(teacher: Teacher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vlhmm.distillation.teachers.drawing, "write_growing", lambda *_: pytest.fail("tried again"))
    monkeypatch.setattr(teacher.model.lm_head, "weight", torch.nn.Parameter(teacher.model.lm_head.weight * torch.nan))
    with pytest.raises(ValueError, match="its weights are broken"):
        as_on_a_gpu(TextDrawer(teacher, max_tokens=4))([[1], [1]], seeded(0))


def test_what_cannot_fit_is_refused_with_the_number_that_can(teacher: Teacher) -> None:
    with pytest.raises(
        ValueError, match=r"2 texts of 1 \+ 10,000,000,000 tokens .* GiB .* draw at most 0 side by side"
    ):
        draw_texts(teacher, [[1], [1]], max_tokens=10**10, generator=seeded(0))
    with pytest.raises(ValueError, match="0 prompts"):
        draw_texts(teacher, [], max_tokens=4, generator=seeded(0))


def test_a_graph_of_a_step_draws_what_steps_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is played by the step itself, and serves batch after batch."""
    made = graphs_on_cpu(monkeypatch)
    monkeypatch.setattr(decoding, "_waits", lambda: nullcontext([]))
    model, sampling_config = grouped_model(), SamplingConfig(10, 40, None, 1.0)
    writer = StaticCacheGenerator(model, 3, 6, sampling_config)
    for seed, prompts in enumerate((padded(6, 2, 4), padded(3, 3, 1))):
        assert_equal(writer.write(prompts, seeded(seed)), write_growing(model, prompts, sampling_config, seeded(seed)))
    assert writer.captured
    # The first token is read off the prompt, and the next two are drawn eagerly.
    assert [graph.replays for graph in made] == [7 + 9]


@pytest.mark.parametrize("reason", ["waits", "refused"])
def test_a_model_that_cannot_be_captured_is_drawn_from_eagerly(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    def refused(*_: object, **__: object) -> None:
        raise RuntimeError("operation not permitted\nand more")

    graphs_on_cpu(monkeypatch)
    monkeypatch.setattr("vlhmm.capture._capture_graph", refused)
    waits = [SimpleNamespace(message="called a synchronizing operation")] if reason == "waits" else []
    monkeypatch.setattr(decoding, "_waits", lambda: nullcontext(waits))
    model, prompts, sampling_config = grouped_model(), padded(6, 2, 4), SamplingConfig(10, 40, None, 1.0)
    writer = StaticCacheGenerator(model, 3, 6, sampling_config)
    with pytest.warns(UserWarning, match="waits for the device" if reason == "waits" else "not permitted$"):
        drawn = writer.write(prompts, seeded(0))
    assert_equal(drawn, write_growing(model, prompts, sampling_config, seeded(0)))
    assert not writer.captured
    assert_equal(writer.write(prompts, seeded(0)), drawn)


@pytest.mark.gpu
def test_a_step_of_a_writer_is_a_graph_on_a_gpu() -> None:
    model, sampling_config = grouped_model().cuda(), SamplingConfig(10, 40, None, 1.0)
    writer = StaticCacheGenerator(model, 3, 6, sampling_config)
    for prompts in (padded(6, 2, 4), padded(3, 3, 1)):
        there = Prompts(prompts.ids.cuda(), prompts.attended.cuda())
        ours, theirs = (torch.Generator("cuda").manual_seed(0) for _ in range(2))
        assert_equal(writer.write(there, ours), write_growing(model, there, sampling_config, theirs))
    assert writer.captured
