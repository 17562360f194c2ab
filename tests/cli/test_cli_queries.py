"""Questions to a model on the command line: explanations, k-best paths and gaps."""

import json
import math
from io import StringIO
from pathlib import Path

import pytest
from cli_helpers import Run
from tiny import byte_tokenizer

import vlhmm
from vlhmm.lm import load

SENTENCE = "the file reads the name ."


def test_posterior_explains_each_token(run: Run, model_dir: Path) -> None:
    explained = load(model_dir).explain(SENTENCE, top=2)
    answer = run("posterior", model_dir, SENTENCE, "--top", 2, "--json").json
    assert answer["log_prob"] == explained.score.log_prob
    assert answer["path_entropy"] == explained.path_entropy
    for token, expected in zip(answer["tokens"], explained.tokens, strict=True):
        assert token["log_prob"] == expected.log_prob
        assert [state["state"] for state in token["states"]] == [one.state.state for one in expected.states]
        assert all(0 < state["next"][0]["prob"] <= 1 for state in token["states"])
    shown = run("posterior", model_dir, SENTENCE).out
    assert all(word in shown for word in ("its words", "before it", "after it", "perplexity"))


def test_a_narrow_terminal_has_no_room_for_neighbours(
    run: Run, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("posterior", model_dir, SENTENCE).out
    assert "before it" not in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "reads" in shown


def test_posterior_draws_a_picture(run: Run, model_dir: Path) -> None:
    pytest.importorskip("matplotlib")
    shown = run("posterior", model_dir, SENTENCE, "--plot", "states.png")
    assert shown.status == 0
    assert "states.png" in shown.out
    assert Path("states.png").read_bytes().startswith(b"\x89PNG")


def test_one_picture_is_of_one_text(run: Run, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("sys.stdin", StringIO(f"{SENTENCE}\n{SENTENCE}\n"))
    assert "--plot draws 1 text" in run("posterior", model_dir, "--plot", "states.png").error


def test_viterbi_gives_k_sorted_paths(run: Run, model_dir: Path) -> None:
    paths = [json.loads(line) for line in run("viterbi", model_dir, SENTENCE, "--k", 4, "--json").out.splitlines()]
    assert [path["rank"] for path in paths] == [1, 2, 3, 4]
    log_probs = [path["log_prob"] for path in paths]
    assert log_probs == sorted(log_probs, reverse=True)
    assert len({tuple(token["state"] for token in path["tokens"]) for path in paths}) == 4
    assert sum(map(math.exp, log_probs)) <= math.exp(load(model_dir).score(SENTENCE).log_prob) * (1 + 1e-4)
    shown = run("viterbi", model_dir, SENTENCE, "--k", 4).out
    assert "p given text" in shown
    assert f"{log_probs[3]:.2f}" in shown
    assert "between 1 and 100" in run("viterbi", model_dir, SENTENCE, "--k", 0).error


def test_paths_of_long_texts_show_every_state(run: Run, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    long = " ".join([SENTENCE] * 6)
    best = json.loads(run("viterbi", model_dir, long, "--json").out)
    shown = run("viterbi", model_dir, long, "--k", 2).out.split("token by token")[1]
    assert "…" not in shown
    states = [str(token["state"]) for token in best["tokens"]]
    assert shown.split()[3 : 3 + len(states)] == states


def test_infill_agrees_with_the_library(run: Run, model_dir: Path) -> None:
    text = "the ___ reads the ___{1,2} ."
    options = ("--num", 3, "--top", 4, "--seed", 5)
    answer = run("infill", model_dir, text, *options, "--json").json
    expected = load(model_dir).infill(text, num=0, top=4)
    assert answer["log_prob"] == expected.log_prob
    assert answer["best"]["text"] == expected.best.text
    assert len(answer["samples"]) == 3
    assert len(answer["gaps"][0]["positions"][0]) == 4
    assert math.isclose(sum(length["prob"] for length in answer["gaps"][1]["lengths"]), 1)
    shown = run("infill", model_dir, text, *options)
    assert shown.err == ""
    for one in (answer["best"], *answer["samples"]):
        assert one["text"] in shown.out
        assert one["text"].startswith("the ")
    assert run("infill", model_dir, text, *options).out == shown.out


def test_gaps_of_any_length_by_option(run: Run, model_dir: Path) -> None:
    by_option = run("infill", model_dir, "the ___ .", "--gap", "1-3", "--num", 0, "--json").json
    by_text = run("infill", model_dir, "the ___{1,3} .", "--num", 0, "--json").json
    assert by_option["gaps"] == by_text["gaps"]
    ended = run("infill", model_dir, "the ___{1,3} .", "--num", 0, "--eos", "--json").json
    assert ended["log_prob"] < by_text["log_prob"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("the file",), "0 gaps"),
        (("the ___{3,2}",), "between 3 and 2"),
        (("the ___", "--gap", "many"), "--gap is 'many'"),
        (("the ___", "--gap", "0-2"), "between 0 and 2"),
        (("the ___", "--num", "-1"), "num is -1"),
    ],
)
def test_bad_gaps_are_refused(run: Run, model_dir: Path, arguments: tuple[str, ...], expected: str) -> None:
    answer = run("infill", model_dir, *arguments)
    assert answer.status == 2
    assert expected in answer.error


def test_help_shows_an_example(run: Run) -> None:
    for command in ("posterior", "viterbi", "infill"):
        assert f"vlhmm {command} " in run(command, "--help").out.split("Example")[1]


@pytest.mark.parametrize("command", ["score", "next", "posterior", "viterbi", "info", "infill"])
def test_tables_show_tokens_as_people_read_them_and_json_their_names(
    command: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    tokenizer = byte_tokenizer()
    # One state for each token, which begins with it: what it emits next is known.
    hmm = vlhmm.HMM.random(4, tokenizer.vocab_size)
    vlhmm.LanguageModel(hmm, tokenizer).save(tmp_path)
    text = [] if command == "info" else ["M\u00e1 t\u2019 ___{1}" if command == "infill" else "M\u00e1 t\u2019"]
    many = ["--top", tokenizer.vocab_size] if command in ("next", "infill") else []
    out = run(command, tmp_path, *text, *many).out
    assert not set("\u0120\u00c3\u00a1\u0122\u010a") & set(out), out
    if command in ("score", "posterior", "viterbi"):
        assert all(shown in out for shown in ("\u00e1", "\u2423t", "<0xE2>", "<0x80>", "<0x99>"))
        names = [
            token if isinstance(token, str) else token["token"]
            for token in run(command, tmp_path, *text, "--json").json["tokens"]
        ]
        assert names == ["M", "\u00c3\u00a1", "\u0120t", "\u00e2", "\u0122", "\u013b"]
