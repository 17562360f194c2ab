"""Model folders: what is saved comes back, and what is broken is refused with a reason."""

import json
import os
import resource
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from damage import as_first_edition
from tiny import tiny_corpus, tiny_model
from torch import Tensor

import vlhmm
from vlhmm.data.checksums import UncheckedFileWarning
from vlhmm.models import linear_hmm, scalar_hmm
from vlhmm.training.checkpoint import FolderError


@pytest.fixture
def lm() -> vlhmm.LanguageModel:
    corpus = tiny_corpus(100)
    return vlhmm.LanguageModel(tiny_model(corpus), corpus.tokenizer, {"corpus": {"name": "tiny"}})


def test_a_saved_model_comes_back_bit_for_bit(lm: vlhmm.LanguageModel, tmp_path: Path) -> None:
    lm.save(tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    again = vlhmm.load(tmp_path / "model")
    for name, value in lm.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name])
    assert again.tokenizer == lm.tokenizer
    assert again.about == lm.about
    assert again.next_tokens("the cat") == lm.next_tokens("the cat")


def test_whoever_may_read_one_file_may_read_all(lm: vlhmm.LanguageModel, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        lm.save(tmp_path / "model")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()} == {0o644}


@pytest.mark.parametrize("make", [scalar_hmm, linear_hmm])
@pytest.mark.parametrize("reset", ["eos", "carry"])
def test_every_parameterization_comes_back(tmp_path: Path, make: object, reset: str) -> None:
    corpus = tiny_corpus(100)
    blocks = vlhmm.brown_clusters(
        corpus.train, 4, eos_id=corpus.tokenizer.eos_id, vocab_size=corpus.tokenizer.vocab_size
    )
    model = make(blocks, states_per_block=3, eos_id=corpus.tokenizer.eos_id, reset=reset)  # type: ignore[operator]
    lm = vlhmm.LanguageModel(model, corpus.tokenizer)
    lm.save(tmp_path / "model")
    assert vlhmm.load(tmp_path / "model").perplexity(corpus.test) == lm.perplexity(corpus.test)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(lm: vlhmm.LanguageModel, tmp_path: Path, name: str) -> None:
    lm.save(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FolderError, match=f"has no {name}"):
        vlhmm.load(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
def test_a_file_cut_short_is_refused(lm: vlhmm.LanguageModel, tmp_path: Path, name: str, part: float) -> None:
    lm.save(tmp_path)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: int(part * len(content))])
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        vlhmm.load(tmp_path)


def test_files_of_two_models_are_not_taken_for_one(lm: vlhmm.LanguageModel, tmp_path: Path) -> None:
    lm.save(tmp_path / "one")
    vlhmm.LanguageModel(lm.model, lm.tokenizer, {"other": True}).save(tmp_path / "two")
    (tmp_path / "one" / "config.json").write_bytes((tmp_path / "two" / "config.json").read_bytes())
    with pytest.raises(FolderError, match=r"belongs to another config\.json"):
        vlhmm.load(tmp_path / "one")


def test_other_programs_and_later_versions_are_refused(lm: vlhmm.LanguageModel, tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="is no folder"):
        vlhmm.load(tmp_path / "nowhere")
    with pytest.raises(FolderError, match=r"has no config\.json"):
        vlhmm.load(tmp_path)
    lm.save(tmp_path)
    text = (tmp_path / "config.json").read_text()
    for version in (3, 99, 10**400):
        (tmp_path / "config.json").write_text(text.replace('"version": 2', f'"version": {version}'))
        with pytest.raises(FolderError, match=r"is of version [1-9].*reads versions up to 2: update vlhmm") as raised:
            vlhmm.load(tmp_path)
        assert str(version)[:20] in str(raised.value)
        assert str(tmp_path / "config.json") in str(raised.value)
        assert len(str(raised.value).splitlines()) == 1
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(FolderError, match="another program"):
        vlhmm.load(tmp_path)


@pytest.mark.parametrize("version", [0, -1, True, None, "2", 2.0, [2]])
def test_a_version_that_is_none_is_refused(lm: vlhmm.LanguageModel, tmp_path: Path, version: object) -> None:
    lm.save(tmp_path)
    as_first_edition(tmp_path, config=lambda values: values | {"version": version})
    with pytest.raises(FolderError, match="from 1 to 2 is needed: it was edited"), unchecked():
        vlhmm.load(tmp_path)


def test_a_config_without_a_version_is_that_of_the_first(lm: vlhmm.LanguageModel, tmp_path: Path) -> None:
    lm.save(tmp_path)
    as_first_edition(
        tmp_path, config=lambda values: {name: value for name, value in values.items() if name != "version"}
    )
    with unchecked():
        assert vlhmm.load(tmp_path).next_tokens("the cat") == lm.next_tokens("the cat")


def test_weights_of_an_earlier_version_than_their_config_are_refused(lm: vlhmm.LanguageModel, tmp_path: Path) -> None:
    """Else a file that has lost its checksums would pass for one that never had any."""
    lm.save(tmp_path)
    as_first_edition(tmp_path, config=lambda values: values | {"version": 2})
    with pytest.raises(FolderError, match=r"is of version 1, but .* of version 2"), unchecked():
        vlhmm.load(tmp_path)


FIRST_EDITION = Path(__file__).parents[1] / "first_edition"


@pytest.mark.parametrize("name", ["neural", "scalar"])
def test_the_first_edition_loads_with_a_notice_and_the_same_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The only figure that has changed since: how a text opens that no other one precedes.
    monkeypatch.setattr("vlhmm.lm.belief_at", lambda tables, token, unknown: vlhmm.HMM(tables).filter([[token]]).belief)
    expected = json.loads((FIRST_EDITION / "expected.json").read_text())[name]
    with pytest.warns(UncheckedFileWarning, match=r"model\.safetensors has no checksum"):
        lm = vlhmm.load(FIRST_EDITION / name)
    assert lm.score(expected["text"]).log_prob == pytest.approx(expected["log_prob"], abs=1e-5)
    assert lm.perplexity(tiny_corpus(100).test) == pytest.approx(expected["perplexity"], rel=1e-6)


def test_a_folder_saved_again_has_checksums(tmp_path: Path) -> None:
    with pytest.warns(UncheckedFileWarning):
        lm = vlhmm.load(FIRST_EDITION / "neural")
    lm.save(tmp_path)
    vlhmm.load(tmp_path)
    before, after = (
        json.loads((folder / "config.json").read_text()) for folder in (FIRST_EDITION / "neural", tmp_path)
    )
    # Settings that came later have their defaults; all others keep their spelling and their values.
    assert {name: after["model"][name] for name in before["model"]} == before["model"]
    assert {**after, "model": None} == {**before, "model": None, "version": 2}


def test_any_change_of_any_file_is_refused(lm: vlhmm.LanguageModel, tmp_path: Path) -> None:
    lm.save(tmp_path)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        content = (tmp_path / name).read_bytes()
        for position in range(0, len(content), 37):
            changed = bytearray(content)
            changed[position] ^= 4
            (tmp_path / name).write_bytes(changed)
            with pytest.raises(FolderError, match=name.replace(".", r"\.")):
                vlhmm.load(tmp_path)
        (tmp_path / name).write_bytes(content)
    vlhmm.load(tmp_path)


def permuted_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    fields = json.loads(path.read_text())
    vocabulary = fields["model"]["vocab"]
    fields["model"]["vocab"] = dict(zip(vocabulary, [*list(vocabulary.values())[1:], 0], strict=True))
    path.write_text(json.dumps(fields))


def test_a_permuted_tokenizer_is_refused(lm: vlhmm.LanguageModel, tmp_path: Path) -> None:
    lm.save(tmp_path)
    permuted_tokenizer(tmp_path)
    with pytest.raises(FolderError, match=r"tokenizer\.json is damaged or of another model"):
        vlhmm.load(tmp_path)
    with pytest.raises(FolderError, match=r"tokenizer\.json is tokenizer \w+, but .*model\.safetensors was saved with"):
        vlhmm.load(tmp_path, verify=False)


def test_a_changed_weight_passes_only_when_nobody_looks(lm: vlhmm.LanguageModel, tmp_path: Path) -> None:
    lm.save(tmp_path)
    content = bytearray((tmp_path / "model.safetensors").read_bytes())
    content[-4] ^= 1
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(FolderError, match="SHA-256"):
        vlhmm.load(tmp_path)
    assert vlhmm.load(tmp_path, verify=False).next_tokens("the")


def changed_tensor(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: tensors | {name: change(tensors[name])}


def without(name: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {kept: value for kept, value in tensors.items() if kept != name}


def flipped(tensor: Tensor) -> Tensor:
    """Bit 30 of the first number, as a flipped bit of a file leaves it."""
    changed = tensor.clone()
    changed[0] ^= 1 << 30
    return changed


EMBEDDING = "encoder.embedding.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("group_of_word"), "group_of_word is missing"),
        (without(EMBEDDING), f"lacks {EMBEDDING}"),
        (lambda tensors: tensors | {"more": torch.zeros(1)}, "has more too much"),
        (changed_tensor(EMBEDDING, Tensor.double), "float64, but torch.float32 is needed"),
        (changed_tensor(EMBEDDING, lambda weight: weight.view(torch.int32)), "int32, but torch.float32 is needed"),
        (changed_tensor(EMBEDDING, lambda weight: weight[:-1].clone()), "has shape"),
        (changed_tensor(EMBEDDING, lambda weight: weight * torch.nan), "NaN"),
        (changed_tensor("group_of_word", flipped), r"word 0 is in group 107\d{7}"),
        (changed_tensor("group_of_word", lambda groups: groups.int()), "int32"),
        (changed_tensor("states_of_group", lambda states: states.flip(0)), "partition"),
        (changed_tensor("states_of_group", lambda states: states + (1 << 40)), "states are numbered from 0"),
    ],
)
def test_wrong_tensors_without_checksums_are_refused_and_nothing_is_cast(
    lm: vlhmm.LanguageModel, tmp_path: Path, change: Callable[..., dict[str, Tensor]], message: str
) -> None:
    lm.save(tmp_path)
    as_first_edition(tmp_path, tensors=change)
    with pytest.raises(FolderError, match=message) as raised, limited_memory(), unchecked():
        vlhmm.load(tmp_path)
    assert "model.safetensors" in str(raised.value)


def in_model(**changes: object) -> Callable[[dict[str, Any]], Any]:
    return lambda values: values | {"model": values["model"] | changes}


def in_support(**changes: object) -> Callable[[dict[str, Any]], Any]:
    return lambda values: values | {"support": values["support"] | changes}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: [], "another program"),
        (lambda values: values | {"model": []}, "model = "),
        (lambda values: values | {"support": None}, "support = None"),
        (lambda values: values | {"about": "text"}, "about = 'text'"),
        (lambda values: values | {"reset_token": "0"}, "reset_token = '0'"),
        (lambda values: values | {"reset_token": 10**9}, "reset token is 1000000000"),
        (in_support(num_words="12"), "num_words = '12'"),
        (in_support(num_states=10**12), "num_states is 1000000000000"),
        (in_support(num_states=31), "partition"),
        (in_support(num_states=10**12, partition=False), "num_states is 1000000000000"),
        (in_support(num_groups=10**12), "states_of_group is"),
        (in_support(states_per_word=True), "states_per_word = True"),
        (in_support(partition=1), "partition = 1"),
        (in_model(dim=10**12), "dim is 1000000000000"),
        (in_model(dim=10**400), "dim is 1000"),
        (in_model(dim=32), "has shape"),
        (in_model(dim="16"), "dim is '16'"),
        (in_model(dim=16.0), "dim is 16.0"),
        (in_model(out_scale=10**400), "too large"),
        (in_model(states_per_block=10**12), "states per block"),
        (in_model(parameterization="transformer", decoder_layers=10**9), "decoder_layers is 1000000000"),
        (in_model(parameterization="transformer", decoder_hidden=10**12), "decoder_hidden is 1000000000000"),
        (in_model(transition=["softmax"]), "transition is"),
        (in_model(colour="red"), "unknown setting 'colour'"),
    ],
)
def test_wrong_configs_without_checksums_are_refused_before_anything_is_built(
    lm: vlhmm.LanguageModel, tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    lm.save(tmp_path)
    as_first_edition(tmp_path, config=change)
    with pytest.raises(FolderError, match=message) as raised, limited_memory(), unchecked():
        vlhmm.load(tmp_path)
    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe{}", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"version": ' + b"1" * 5000 + b"}", "not JSON"),
        (b"[]", "another program"),
        (b'"vlhmm"', "another program"),
        (b" " * ((1 << 24) + 1), "more than 16,777,216 bytes"),
    ],
)
def test_a_config_that_cannot_be_read_is_named(
    lm: vlhmm.LanguageModel, tmp_path: Path, content: bytes, message: str
) -> None:
    lm.save(tmp_path)
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(FolderError, match=message) as raised:
        vlhmm.load(tmp_path)
    assert "config.json" in str(raised.value)


@pytest.mark.parametrize("transition", ["softmax", "block-factored"])
def test_one_huge_row_never_makes_a_probability_above_one(tmp_path: Path, transition: str) -> None:
    """Logits of 1e12 are rounded to thousands: rows would sum to anything, and log p be positive."""
    corpus = tiny_corpus(100)
    model = tiny_model(corpus, 9, transition=transition)
    vlhmm.LanguageModel(model, corpus.tokenizer).save(tmp_path)
    for row in range(model.support.num_states):

        def huge(tensors: dict[str, Tensor], row: int = row) -> dict[str, Tensor]:
            weight = tensors[EMBEDDING].clone()
            weight[row] = torch.where(torch.arange(16) % 3 == 0, 1e12, -1e12)
            return tensors | {EMBEDDING: weight}

        folder = tmp_path / f"{row}"
        shutil.copytree(tmp_path, folder, ignore=shutil.ignore_patterns("[0-9]*"))
        as_first_edition(folder, tensors=huge)
        with unchecked():
            damaged = vlhmm.load(folder)
        if transition == "softmax":
            with pytest.raises(
                FolderError, match=r"model\.safetensors holds no HMM: transition: row \d+ has logits up to"
            ):
                damaged.score("the cat")
        else:
            # Normalised where they are used: whatever the logits, rows are distributions.
            assert damaged.score("the cat sees the dog in the garden").log_prob <= 0


@contextmanager
def limited_memory(limit: int = 1 << 30) -> Iterator[None]:
    """What is allocated beyond the present and `limit` fails, as on a small machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@contextmanager
def unchecked() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UncheckedFileWarning)
        yield
