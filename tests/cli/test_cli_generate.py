"""`vlhmm generate` under constraints."""

import json
import re
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from cli_helpers import Run

import vlhmm
from vlhmm.cluster import random_blocks
from vlhmm.lm import LanguageModel


def test_every_line_satisfies_what_was_asked(run: Run, model_dir: Path) -> None:
    asked = ("--must-contain", "file", "--must-contain", "a name", "--exclude", "list", "--words", "5-9")
    options = ("--prompt", "the", "--num", 6, "--max-tokens", 12, "--seed", 3)
    drawn = run("generate", model_dir, *options, *asked)
    assert drawn.status == 0, drawn.err
    lines = drawn.out.splitlines()
    assert len(lines) == 6
    for line in lines:
        new = line.removeprefix("the ")
        assert 5 <= len(new.split()) <= 9
        assert "list" not in new.split()
        assert re.search(r"\bfile\b", new)
        assert "a name" in new
    assert run("generate", model_dir, *options, *asked).out == drawn.out
    as_json = run("generate", model_dir, *options, *asked, "--json").out.splitlines()
    assert [json.loads(line)["text"] for line in as_json] == lines


def test_many_texts_are_drawn_a_part_at_a_time(run: Run, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlhmm.cli.generate.DRAWN_AT_ONCE", 2)
    drawn = list[int]()
    generate = LanguageModel.generate

    def counted(lm: LanguageModel, *texts: object, num: int, **options: object) -> list[str]:
        drawn.append(num)
        return generate(lm, *texts, num=num, **options)

    monkeypatch.setattr(LanguageModel, "generate", counted)
    shown = run("generate", model_dir, "--num", 5, "--max-tokens", 4, "--seed", 0)
    assert len(shown.out.splitlines()) == 5
    assert drawn == [2, 2, 1]


def test_beginning_end_pattern_and_length_hold_at_any_temperature(run: Run, model_dir: Path) -> None:
    options = ("--num", 4, "--max-tokens", 9, "--temperature", 5, "--top-k", 4, "--top-p", 0.9)
    ends = run("generate", model_dir, *options, "--starts-with", "a value", "--ends-with", "while .", "--length", 6)
    assert all(re.fullmatch(r"a value \S+ \S+ while\.", line) for line in ends.out.splitlines())
    pattern = "(the|a) [a-z]+ opens .*"
    matched = run("generate", model_dir, *options, "--regex", pattern)
    assert len(matched.out.splitlines()) == 4
    assert all(re.fullmatch(pattern, line) for line in matched.out.splitlines())


def test_the_best_text_is_one_and_says_how_likely_it_is(run: Run, model_dir: Path) -> None:
    best = run(
        "generate", model_dir, "--best", "--must-contain", "MODULE", "--ignore-case", "--max-tokens", 8, "--json"
    ).json
    assert "module" in best["text"].split()
    assert best["log_prob"] < 0
    free = run("generate", model_dir, "--best", "--max-tokens", 8, "--json").json
    assert free["log_prob"] >= best["log_prob"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--words", "nine"), r"--words is 'nine', but it must be a range such as 8-15, 8- or 8"),
        (("--length", "9-3"), r"length\(9, 3\) is no range"),
        (("--regex", "(a"), "position 0"),
        (("--must-contain", "unicorn"), "spells 'unicorn'"),
        (("--words", "20-", "--max-tokens", 5), r"takes at least 20 tokens, but at most 5 are allowed"),
        (("--must-contain", "file", "--exclude", "file"), r"contains\('file'\) & excludes\('file'\) is impossible"),
        (("--best", "--num", 3), "--best is one text"),
        (("--top-p", 0), "top_p is 0"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(run: Run, model_dir: Path, options: tuple[object, ...], says: str) -> None:
    failed = run("generate", model_dir, *options)
    assert failed.status == 2
    assert re.search(says, failed.error)


def test_time_limit_of_constraints_is_told(run: Run, model_dir: Path) -> None:
    command = ("generate", model_dir, "--must-contain", "file", "--max-tokens", 6, "--time-limit")
    refused = run(*command, 0)
    assert refused.status == 2
    assert "not compiled within 0 s, the time limit" in refused.err
    assert run(*command, "inf").status == 0
    assert "time_limit is -1.0, but must be at least 0" in run(*command, -1).err


SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}, "kind": {"enum": ["cat", "dog"]}},
    "required": ["age", "kind"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def spelling_model(text_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model over byte-level pieces, which spell every text."""
    tokenizer = vlhmm.load_corpus(text_file).tokenizer
    blocks = random_blocks(tokenizer.vocab_size, 4, np.random.default_rng(0))
    folder = tmp_path_factory.mktemp("runs") / "spelling"
    LanguageModel(vlhmm.neural_hmm(blocks, 3, 4, eos_id=tokenizer.eos_id), tokenizer).save(folder)
    return folder


def test_texts_satisfy_the_schema_of_a_file(run: Run, spelling_model: Path) -> None:
    Path("schema.json").write_text(json.dumps(SCHEMA))
    drawn = run("generate", spelling_model, "--json-schema", "schema.json", "--num", 5, "--max-tokens", 60, "--json")
    assert drawn.status == 0, drawn.err
    texts = [json.loads(line)["text"] for line in drawn.out.splitlines()]
    assert len(texts) == 5
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)


def test_texts_are_among_the_choices(run: Run, spelling_model: Path) -> None:
    choices = ["cat", "two dogs", "\u00e9t\u00e9"]
    asked = [part for choice in choices for part in ("--choice", choice)]
    drawn = run("generate", spelling_model, *asked, "--num", 30, "--max-tokens", 20, "--seed", 0)
    assert drawn.status == 0, drawn.err
    assert len(drawn.out.splitlines()) == 30
    assert set(drawn.out.splitlines()) <= set(choices)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "schema.json"),
        (b"{", "the schema is no JSON"),
        (b"\xff", "UTF-8"),
        (b'{"type": "animal"}', "no JSON schema"),
        (b'{"type": "array", "uniqueItems": true}', "uniqueItems"),
        (b'{"type": "integer", "minimum": 2, "maximum": 1}', "is impossible"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(
    run: Run, spelling_model: Path, content: bytes | None, says: str
) -> None:
    if content is not None:
        Path("schema.json").write_bytes(content)
    assert says in run("generate", spelling_model, "--json-schema", "schema.json").error
