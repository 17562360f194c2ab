"""An HMM drawn at random, in a file, and as probabilities."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from kinds import close, every_kind
from oracle import EVERY_KIND, Kind, dense_oracle, random_hmm
from test_hmm_bad_input import refused

import vlhmm
from vlhmm.control.token_texts import TokenTexts
from vlhmm.records import named_tensors
from vlhmm.tables import SoftmaxTransition, Tables, dense_support
from vlhmm.tensor_file import FolderError, read_tensors, write_tensors


@every_kind
def test_what_is_saved_is_loaded_bit_for_bit(kind, tmp_path: Path):
    _, tables = random_hmm(kind, seed=1)
    hmm = vlhmm.HMM(tables).with_precision("tf32")
    hmm.save(tmp_path / "sub" / "h")
    again = vlhmm.HMM.load(tmp_path / "sub" / "h").tables
    assert type(again.transition) is type(tables.transition)
    assert (again.reset_token, again.precision) == (tables.reset_token, "tf32")
    assert (again.num_states, again.support.partition) == (tables.num_states, tables.support.partition)
    for one, other in ((tables, again), (tables.transition, again.transition), (tables.support, again.support)):
        for name, tensor in named_tensors(one).items():
            loaded = named_tensors(other)[name]
            assert tensor.dtype == loaded.dtype
            # What is computed from the features may have another last digit.
            close(tensor, loaded) if name == "log_normalizer" else assert_equal(tensor, loaded)


def assert_equal(one: torch.Tensor, other: torch.Tensor) -> None:
    assert torch.equal(one, other)


def softmax_hmm(num_states: int) -> vlhmm.HMM:
    """More states than the rows that are sampled where all sums are known."""
    draw = torch.Generator().manual_seed(0)
    out, into = torch.randn(2, num_states, 3, generator=draw)
    start, emission = torch.randn(num_states, generator=draw), torch.randn(4, num_states, generator=draw)
    transition = SoftmaxTransition(out, into, (out @ into.T).logsumexp(1))
    return vlhmm.HMM(
        Tables(dense_support(4, num_states), start.log_softmax(0), transition, emission.log_softmax(0), reset_token=1)
    )


def test_normalisers_are_computed_and_never_read(tmp_path: Path):
    """Each row's, whatever the file says: another value, no number, another length, or nothing."""
    hmm = softmax_hmm(50)
    hmm.save(tmp_path / "h")
    tensors, metadata = read_tensors(tmp_path / "h")
    own = tensors["transition.log_normalizer"]
    others = [own.index_add(0, torch.tensor([row]), torch.tensor([-20.0])) for row in range(50)]
    for other in [*others, own * torch.nan, own[:3], None]:
        stored = {**tensors, "transition.log_normalizer": other}
        write_tensors(
            tmp_path / "x", {name: t for name, t in stored.items() if t is not None}, {"hmm": metadata["hmm"]}
        )
        assert torch.equal(vlhmm.HMM.load(tmp_path / "x").transition, hmm.transition)


def test_every_row_of_given_tables_is_checked():
    tables = softmax_hmm(50).tables
    for row in range(50):
        wrong = tables.transition.log_normalizer.index_add(0, torch.tensor([row]), torch.tensor([-1.0]))
        transition = replace(tables.transition, log_normalizer=wrong)
        refused(
            lambda transition=transition: vlhmm.HMM(replace(tables, transition=transition)), rf"row {row}\b", "sums"
        )


@pytest.mark.parametrize("kind", {kind.transition: kind for kind in EVERY_KIND}.values(), ids=str)
def test_errors_in_what_a_file_holds_name_the_file(kind, tmp_path: Path):
    """Every tensor in turn with a row that is wrong, one too few, NaN, of another type and shape, with a valid checksum."""
    _, tables = random_hmm(kind, seed=1)
    vlhmm.HMM(tables).save(tmp_path / "h")
    tensors, metadata = read_tensors(tmp_path / "h")
    for name, tensor in tensors.items():
        damaged = [tensor[:-1], tensor[None], tensor.flatten()[0], tensor[:0]]
        if tensor.is_floating_point():
            damaged += [tensor * torch.nan, tensor.half(), tensor.long(), tensor + torch.inf]
            if name in ("log_start", "log_emission", "transition.log_prob", "transition.log_block"):
                damaged.append(tensor + 1)
        else:
            damaged += [tensor + 1000, tensor - 1, tensor.double()]
        if name == "transition.log_normalizer":
            continue
        for other in damaged:
            write_tensors(tmp_path / "x", {**tensors, name: other.contiguous()}, {"hmm": metadata["hmm"]})
            for verify in (None, False):
                with pytest.raises(FolderError, match=re.escape(str(tmp_path / "x"))):
                    vlhmm.HMM.load(tmp_path / "x", verify=verify)


def test_tables_that_share_memory_are_saved(tmp_path: Path):
    _, tables = random_hmm(Kind("blocked", "softmax", reset=False), seed=0)
    shared = torch.zeros(tables.num_states, 2, dtype=torch.float64)
    transition = type(tables.transition)(
        shared, shared, torch.full((tables.num_states,), np.log(tables.num_states), dtype=torch.float64)
    )
    hmm = vlhmm.HMM(type(tables)(tables.support, tables.log_start, transition, tables.log_emission))
    hmm.save(tmp_path / "h")
    assert torch.equal(vlhmm.HMM.load(tmp_path / "h").transition, hmm.transition)


def test_a_damaged_or_foreign_file_is_refused(tmp_path: Path):
    vlhmm.HMM.random(3, 4).save(tmp_path / "h")
    content = bytearray((tmp_path / "h").read_bytes())
    content[-3] ^= 1
    (tmp_path / "damaged").write_bytes(content)
    (tmp_path / "short").write_bytes(content[:-20])
    (tmp_path / "text").write_text("no tensors")
    tensors, metadata = read_tensors(tmp_path / "h")
    about = {"hmm": metadata["hmm"]}
    write_tensors(tmp_path / "model", tensors, {})
    write_tensors(tmp_path / "lacks", {name: tensors[name] for name in tensors if name != "log_start"}, about)
    write_tensors(tmp_path / "later", tensors, {"hmm": metadata["hmm"].replace('"table"', '"quantum"')})
    write_tensors(tmp_path / "broken", tensors, {"hmm": "[1, 2"})
    wrong = {**tensors, "log_start": tensors["log_start"][:2]}
    write_tensors(tmp_path / "wrong", wrong, about)
    for name, patterns in {
        "damaged": ["SHA-256"],
        "short": ["short"],
        "text": ["safetensors"],
        "missing": ["there is no file", "missing"],
        "model": ["holds no HMM"],
        "lacks": ["log_start"],
        "later": ["quantum", "low-rank"],
        "broken": ["JSON"],
        "wrong": ["log_start", r"\b3\b"],
        ".": ["folder", "vlhmm.load"],
    }.items():
        refused(lambda name=name: vlhmm.HMM.load(tmp_path / name), *patterns)
    with pytest.raises(FolderError):
        vlhmm.HMM.load(tmp_path / "damaged")
    refused(lambda: vlhmm.HMM.random(3, 4).save(tmp_path), "is a folder", "hmm.safetensors")
    vlhmm.HMM.load(tmp_path / "h", "cpu", verify=True)


@every_kind
def test_probabilities_are_those_of_the_enumeration(kind):
    _, tables = random_hmm(kind, seed=2)
    hmm, oracle = vlhmm.HMM(tables), dense_oracle(tables)
    close(hmm.start, oracle.start)
    close(hmm.transition, oracle.transition)
    close(hmm.emission, oracle.emission)


def test_tables_that_do_not_fit_are_refused_with_a_number(monkeypatch: pytest.MonkeyPatch):
    hmm = vlhmm.HMM.random(50, 4)
    monkeypatch.setattr("vlhmm.memory.available_bytes", lambda device: 5000)
    refused(lambda: hmm.transition, "50 x 50", "GiB", "log_rows")
    assert hmm.emission.shape == (50, 4)
    refused(lambda: vlhmm.HMM.random(50, 4), "50 states", "GiB")


def test_random_hmms_follow_the_seed_alone():
    one, same, other = (vlhmm.HMM.random(3, 5, seed=seed) for seed in (4, torch.Generator().manual_seed(4), 5))
    assert torch.equal(one.transition, same.transition)
    assert not torch.equal(one.transition, other.transition)
    assert torch.equal(vlhmm.HMM.random(3, 5).start, vlhmm.HMM.random(3, 5, 0).start)
    assert torch.equal(one.to(dtype=torch.float64).start.float(), one.start)
    assert vlhmm.HMM.random(3, 5, dtype=torch.float64, reset_token=2).tables.reset_token == 2
    assert vlhmm.HMM.random(1, 1).emission.tolist() == [[1.0]]


def test_the_concentration_is_that_of_a_dirichlet_distribution():
    """The variance of an entry of a symmetric Dirichlet distribution over n is (n - 1) / (n^2 (n c + 1))."""
    for concentration in (0.05, 1.0, 20.0):
        rows = vlhmm.HMM.random(300, 4, seed=1, concentration=concentration, dtype=torch.float64).emission
        expected = 3 / (16 * (4 * concentration + 1))
        np.testing.assert_allclose(rows.var(dim=0).mean(), expected, rtol=0.15)
        np.testing.assert_allclose(rows.sum(1), 1.0, rtol=1e-12)


def test_bad_arguments_are_refused():
    refused(lambda: vlhmm.HMM.random(0, 4), "num_states", r"\b0\b")
    refused(lambda: vlhmm.HMM.random(3, 4, seed=1 << 70), "seed", "between")
    refused(lambda: vlhmm.HMM.random(3, 4, concentration=0.0), "concentration")
    refused(lambda: vlhmm.HMM.random(3, 4, concentration=float("nan")), "concentration")
    refused(lambda: vlhmm.HMM.random(3, 4, reset_token=4), r"\b4\b", r"\b3\b")


def test_records_are_shown_on_one_short_line():
    hmm = vlhmm.HMM.random(40, 70)
    answers = [
        *(hmm.tables, hmm.tables.support, hmm.tables.transition),
        *(hmm.posterior([0, 1]), hmm.viterbi([0, 1], k=2), hmm.filter([0, 1]), hmm.filter([0, 1]).belief),
        *(hmm.posterior_entropy([0, 1]), hmm.expected_counts([0, 1]), hmm.sample(3, 40, seed=0)),
        *(hmm.infill([0, 1], [True, False], seed=0), hmm.stream().next_tokens(20)),
    ]
    for answer in answers:
        shown = repr(answer)
        assert "\n" not in shown
        assert shown.startswith(type(answer).__name__ + "(")
        assert len(shown) < 500
    assert repr(vlhmm.HMM.from_probabilities([1.0], [[1.0]], [[0.25, 0.75]]).viterbi([[0, 1]])) == (
        "Paths(states=[[[0, 0]]], log_prob=[[-1.674]])"
    )
    assert "transition=<float32 (40, 40)>" in repr(hmm.expected_counts([0, 1]))


def test_blocks_and_guides_are_shown_by_their_sizes():
    assert repr(vlhmm.Blocks(np.zeros(2000, np.int64), 1)) == "Blocks(2,000 words, 1 blocks)"
    wanted, tokens = vlhmm.length(2, 3), TokenTexts((b"a", b"b", None), joiner=b" ")
    guide = vlhmm.Guide(vlhmm.HMM.random(2, 3), wanted, max_new_tokens=4, tokenizer=tokens, eos_token_id=2)
    assert repr(guide) == f"Guide({wanted!r}; HMM of 2 states, 3 words)"
