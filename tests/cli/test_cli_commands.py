"""Every command on a small model: what it prints, as text and as JSON."""

import io
import json
import math
from pathlib import Path

import pytest
import tokenizers
from cli_helpers import SMALL, Run

from vlhmm.lm import load

SENTENCE = "the file reads the name ."
COMMANDS = (
    "prepare",
    "cluster",
    "train",
    "eval",
    "score",
    "next",
    "posterior",
    "viterbi",
    "generate",
    "info",
    "inspect",
    "explore",
    "demo",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(run: Run, command: str) -> None:
    shown = run(command, "--help")
    assert shown.status == 0
    assert f"vlhmm {command} " in shown.out.split("Example")[1] or command == "demo"


def test_help_names_every_command(run: Run) -> None:
    shown = run()
    assert shown.status == 0
    assert all(command in shown.out for command in COMMANDS)


def test_version_is_the_package_version(run: Run) -> None:
    from vlhmm import __version__

    assert run("--version").out == f"vlhmm {__version__}\n"


def test_score_agrees_with_the_library(run: Run, model_dir: Path) -> None:
    expected = load(model_dir).score(SENTENCE)
    shown = run("score", model_dir, SENTENCE, "--json").json
    assert shown["log_prob"] == expected.log_prob
    assert shown["perplexity"] == expected.perplexity
    assert [token["token"] for token in shown["tokens"]] == SENTENCE.split()
    assert f"perplexity {expected.perplexity:,.1f}" in run("score", model_dir, SENTENCE).out


def test_output_without_a_terminal_is_plain(run: Run, model_dir: Path) -> None:
    for command in ("score", "posterior", "viterbi", "next"):
        shown = run(command, model_dir, SENTENCE)
        assert shown.status == 0
        assert "\x1b" not in shown.out
        assert all(line == line.rstrip() for line in shown.out.splitlines())
        assert shown.err == ""


@pytest.mark.parametrize("command", ["score", "posterior", "viterbi"])
def test_each_line_of_stdin_is_a_text(run: Run, model_dir: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{SENTENCE}\n\na list holds the value .\n"))
    piped = [json.loads(line) for line in run(command, model_dir, "--json").out.splitlines()]
    assert [answer["text"] for answer in piped] == [SENTENCE, "a list holds the value ."]
    assert piped[0] == run(command, model_dir, SENTENCE, "--json").json


def test_empty_stdin_is_refused(run: Run, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert "0 lines" in run("score", model_dir).error


def test_stdin_that_is_no_text_is_refused(run: Run, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\n"), errors="surrogateescape"))
    assert "not UTF-8" in run("score", model_dir).error


def test_next_is_sorted_and_as_long_as_asked(run: Run, model_dir: Path) -> None:
    answer = run("next", model_dir, "the file", "--top", 4, "--json").json
    probs = [token["prob"] for token in answer["next"]]
    assert len(probs) == 4
    assert probs == sorted(probs, reverse=True)
    everything = run("next", model_dir, "--top", 10_000, "--json").json["next"]
    assert math.isclose(sum(token["prob"] for token in everything), 1, rel_tol=1e-4)


def test_posterior_has_the_states_of_each_token(run: Run, model_dir: Path) -> None:
    tokens = run("posterior", model_dir, SENTENCE, "--top", 4, "--json").json["tokens"]
    assert [token["token"] for token in tokens] == SENTENCE.split()
    for token in tokens:
        assert math.isclose(sum(state["prob"] for state in token["states"]), 1, rel_tol=1e-4)
        assert len({state["block"] for state in token["states"]}) == 1


def test_viterbi_is_no_likelier_than_the_text(run: Run, model_dir: Path) -> None:
    path = run("viterbi", model_dir, SENTENCE, "--json").json
    assert len(path["tokens"]) == len(SENTENCE.split())
    assert path["log_prob"] <= run("score", model_dir, SENTENCE, "--json").json["log_prob"]


def test_generate_gives_a_text_a_line_and_the_same_for_a_seed(run: Run, model_dir: Path) -> None:
    options = ("--num", 5, "--max-tokens", 7, "--prompt", "the file", "--seed", 3)
    drawn = run("generate", model_dir, *options).out
    assert len(drawn.splitlines()) == 5
    assert all(line.startswith("the file") and len(line.split()) <= 9 for line in drawn.splitlines())
    assert run("generate", model_dir, *options).out == drawn
    as_json = [json.loads(line)["text"] for line in run("generate", model_dir, *options, "--json").out.splitlines()]
    assert as_json == drawn.splitlines()


def test_info_describes_the_run(run: Run, model_dir: Path) -> None:
    lm = load(model_dir)
    answer = run("info", model_dir, "--json").json
    assert answer["num_states"] == 24
    assert answer["num_parameters"] == lm.model.num_parameters
    assert answer["training"]["stopped"] == "finished"
    assert "24 in 6 blocks of 4" in run("info", model_dir).out


def test_eval_of_the_corpus_is_what_training_found(run: Run, model_dir: Path, text_file: Path) -> None:
    results = json.loads((model_dir / "results.json").read_text())
    lines = text_file.read_text().splitlines()
    folder = text_file.parent / "split"
    folder.mkdir(exist_ok=True)
    (folder / "train.txt").write_text("\n".join(lines[:140]))
    (folder / "valid.txt").write_text("\n".join(lines[140:190]))
    (folder / "test.txt").write_text("\n".join(lines[190:]))
    answer = run("eval", model_dir, folder, "--json").json
    assert answer["num_tokens"] == sum(len(line.split()) + 1 for line in lines[190:])
    assert answer["baselines"]["unigram"] < answer["baselines"]["uniform"]
    assert "one exact stream" in answer["protocol"]
    # The last fifty lines as a file, or on stdin, are the same text.
    assert run("eval", model_dir, folder / "test.txt", "--json").json["log_prob"] == answer["log_prob"]
    assert math.isclose(answer["perplexity"], results["test"]["perplexity"], rel_tol=0.5)
    shown = run("eval", model_dir, folder).out
    assert f"{answer['perplexity']:,.2f} per token" in shown
    assert "per byte" not in shown


def test_eval_reads_stdin(run: Run, model_dir: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text_file.read_text()))
    from_stdin = run("eval", model_dir, "-", "--json").json
    assert from_stdin["log_prob"] == run("eval", model_dir, text_file, "--json").json["log_prob"]


def test_eval_without_a_text_scores_what_training_kept_back(run: Run, model_dir: Path, text_file: Path) -> None:
    results = json.loads((model_dir / "results.json").read_text())
    answer = run("eval", model_dir, "--json").json
    assert answer["text"].startswith("test of ")
    assert answer["split"] == "test"
    assert math.isclose(answer["perplexity"], results["test"]["perplexity"], rel_tol=1e-5)
    # The file itself is read as a whole, which is said.
    whole = run("eval", model_dir, text_file)
    assert "read in training" in whole.err
    assert "leave --split out" in run("eval", model_dir, text_file, "--split", "test").error


def test_eval_refuses_a_corpus_of_another_tokenizer(run: Run, model_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("\n".join(["quite other words here"] * 100))
    assert run("prepare", other, "--out", tmp_path / "other").status == 0
    assert "tokenizer" in run("eval", model_dir, tmp_path / "other").error


def test_prepare_then_train_equals_training_on_the_text(run: Run, text_file: Path, tmp_path: Path) -> None:
    prepared = run("prepare", text_file, "--tokenizer", "words", "--out", tmp_path / "small", "--json").json
    plan = run("train", text_file, "--out", tmp_path / "run", *SMALL, "--dry-run", "--json").json
    assert prepared["hash"] == plan["corpus"]["hash"]
    assert prepared["tokens"]["train"] == plan["tokens"]
    assert "exists already" in run("prepare", text_file, "--out", tmp_path / "small").error


def test_eval_of_subwords_counts_words_and_bytes(run: Run, text_file: Path) -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    # Texts come back from its tokens unchanged: else bits per byte would be null.
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=280, special_tokens=["</s>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train([str(text_file)], trainer)
    backend.save("tokenizer.json")
    assert run("prepare", text_file, "--tokenizer", "tokenizer.json", "--out", "corpus").status == 0
    assert run("train", "corpus", "--out", "run", *SMALL[:-2], "--set", "epochs=1").status == 0
    answer = run("eval", "run", "corpus", "--json").json
    num_bytes = -answer["log_prob"] / math.log(2) / answer["bits_per_byte"]
    assert math.isclose(answer["byte_perplexity"] ** num_bytes, math.exp(-answer["log_prob"]), rel_tol=1e-6)
    assert answer["word_perplexity"] > answer["perplexity"] > answer["byte_perplexity"]
    shown = run("eval", "run", "corpus").out
    assert "per word" in shown
    assert "bits per byte" in shown


def test_cluster_writes_blocks_that_train_takes(run: Run, text_file: Path, tmp_path: Path) -> None:
    answer = run("cluster", text_file, "--blocks", 5, "--json").json
    lines = Path(answer["file"]).read_text().splitlines()
    assert {line.split("\t")[0] for line in lines} == set("01234")
    assert answer["information"] > 0
    options = ("--preset", "demo", "--dry-run", "--json", "--blocks", answer["file"])
    assert run("train", text_file, "--out", tmp_path / "run", *options).json["num_blocks"] == 5
    shown = run("cluster", text_file, "--blocks", 5, "--out", tmp_path / "new" / "again.tsv")
    assert f"{answer['information']:.4f} nats" in shown.out
    assert (tmp_path / "new" / "again.tsv").read_text() == Path(answer["file"]).read_text()


@pytest.mark.parametrize("kind", ["one", "cloned"])
def test_cluster_of_other_kinds(run: Run, text_file: Path, kind: str) -> None:
    answer = run("cluster", text_file, "--kind", kind, "--json").json
    if kind == "one":
        assert answer["num_blocks"] == 1
        assert math.isclose(answer["information"], 0, abs_tol=1e-9)
    else:
        assert answer["num_blocks"] == len(Path(answer["file"]).read_text().splitlines())


def test_demo_twice_uses_two_folders(run: Run, text_file: Path) -> None:
    small = ("--set", "num_blocks=4", "--set", "states_per_block=2", "--set", "dim=4", "--set", "epochs=1")
    for folder in ("runs/demo", "runs/demo-2"):
        shown = run("demo", "--data", text_file, "--device", "cpu", *small, "--set", "batch_size=8")
        assert shown.status == 0
        for expected in (
            "uniform",
            "unigram",
            "HMM",
            "Ten sentences",
            f"{folder}/learning_curve.png",
            f"{folder}/explorer.html",
            f"score {folder} ",
        ):
            assert expected in shown.out
        assert Path(folder, "results.json").exists()
