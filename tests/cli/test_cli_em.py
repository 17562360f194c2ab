"""`vlhmm train --method em`: Baum-Welch from the command line, stopped and resumed."""

from pathlib import Path

from cli_helpers import Run, same_weights

EM = [
    *("--method", "em", "--device", "cpu", "--set", "states_per_block=5", "--set", "batch_size=4"),
    *("--set", "window=16", "--set", "iterations=3", "--set", "batches_per_step=5"),
]


def test_em_learns_and_goes_on_to_the_same_bits(run: Run, text_file: Path, tmp_path: Path) -> None:
    whole = run("train", text_file, "--out", tmp_path / "whole", *EM, "--json").json
    assert whole["stopped"] == "finished"
    assert whole["perplexity"]["HMM"]["valid"] < whole["perplexity"]["uniform"]["valid"]
    parts = run("train", text_file, "--out", tmp_path / "parts", *EM, "--max-seconds", 0, "--json").json
    assert (parts["stopped"], parts["step"]) == ("time", whole["step"] // 3)
    again = run("train", "--out", tmp_path / "parts", "--resume", "--json").json
    assert again["step"] == again["num_steps"] == whole["step"]
    assert same_weights(tmp_path / "whole", tmp_path / "parts")
    assert "5 in 1 blocks of 5" in run("info", tmp_path / "whole").out


def test_a_section_of_the_file_asks_for_em(run: Run, text_file: Path) -> None:
    Path("em.toml").write_text(
        "[em]\niterations = 7\nrate = 0.5\nbatch_size = 4\n[model]\nstates_per_block = 3\n", encoding="utf-8"
    )
    plan = run(
        "train", text_file, "--out", "run", "--config", "em.toml", "--set", "rate=0.2", "--dry-run", "--json"
    ).json
    assert plan["recipe"]["em"]["iterations"] == 7
    assert plan["recipe"]["em"]["rate"] == 0.2
    assert plan["num_states"] == 3
    assert "train" not in plan["recipe"]
    refused = run("train", text_file, "--out", "run", "--config", "em.toml", "--method", "gradient")
    assert "has settings under [em]" in refused.error


def test_what_em_cannot_do_is_said_in_one_line(run: Run, text_file: Path) -> None:
    neural = run("train", text_file, "--out", "run", "--method", "em", "--preset", "demo")
    assert "the model is 'neural': use --preset scalar" in neural.error
    assert "rate is 2.0" in run("train", text_file, "--out", "run", *EM, "--set", "rate=2").error
    assert "unknown setting 'iteration'" in run("train", text_file, "--out", "run", *EM, "--set", "iteration=2").error
    assert run("train", text_file, "--out", "run", *EM, "--max-seconds", 0).status == 0
    assert "iterations = 3, not 4" in run("train", "--out", "run", "--resume", "--set", "iterations=4").error
    assert "--method em, not gradient" in run("train", "--out", "run", "--resume", "--method", "gradient").error
