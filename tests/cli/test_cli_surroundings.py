"""Whatever a command is run in - closed streams, other locales, narrow terminals, read-only places - it answers or says why."""

import json
import os
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path

import pytest
from cli_helpers import SMALL, Ran, Run

import vlhmm
from vlhmm.cli import main
from vlhmm.data.pydocs import pydocs_documents

pytestmark = pytest.mark.skipif(os.name != "posix", reason="streams and locales of POSIX")


def in_child(
    *arguments: object, stdin: str = os.devnull, stdout: str = "pipe", stderr: str = "pipe", reader: bool = True
) -> Ran:
    """A command in a child process that has this one's modules and streams of its own: a file, "pipe" or "closed".

    Without `reader` the other end of its pipes is closed before it begins.
    """
    wanted = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
    pipes = {name: os.pipe() for name, kind in wanted.items() if kind == "pipe"}
    if not reader:
        for end, _ in pipes.values():
            os.close(end)
    child = os.fork()
    if child == 0:
        status = 70
        try:
            for number, (name, kind) in enumerate(wanted.items()):
                if kind == "closed":
                    os.close(number)
                else:
                    file = pipes[name][1] if kind == "pipe" else os.open(kind, os.O_RDWR if number else os.O_RDONLY)
                    os.dup2(file, number)
                # As Python itself does when it starts.
                stream = None if kind == "closed" else os.fdopen(number, "w" if number else "r", encoding="utf-8")
                setattr(sys, name, stream)
            sys.argv = ["vlhmm", *map(str, arguments)]
            os.environ.pop("VLHMM_DEBUG", None)
            status = main()
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        except BaseException:
            traceback.print_exc()
            with suppress(Exception):
                sys.stderr.flush()
        finally:
            os._exit(status)
    heard = dict.fromkeys(("stdout", "stderr"), "")
    for name, (end, written) in pipes.items():
        os.close(written)
        if reader:
            with os.fdopen(end, encoding="utf-8") as file:
                heard[name] = file.read()
    return Ran(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), heard["stdout"], heard["stderr"])


def test_closed_streams(model_dir: Path) -> None:
    no_input = in_child("score", model_dir, stdin="closed")
    assert no_input.status == 2
    assert "stdin has 0 lines" in no_input.error
    no_output = in_child("score", model_dir, "the file", stdout="closed")
    assert no_output.status == 0
    assert no_output.err == "warning: stdout is closed, so nothing that is printed there is seen\n"
    nobody_hears = in_child("score", model_dir, "the file", stderr="closed")
    assert nobody_hears.status == 0
    assert "perplexity" in nobody_hears.out
    closed = dict.fromkeys(("stdin", "stdout", "stderr"), "closed")
    assert in_child("score", model_dir, "the file", **closed) == Ran(0, "", "")
    assert in_child("no-such-command", **closed) == Ran(2, "", "")


def test_readers_that_have_heard_enough(model_dir: Path) -> None:
    for command in (("train", "--help"), ("--version",), (), ("score", model_dir, "the file"), ("info", model_dir)):
        ran = in_child(*command, stderr=os.devnull, reader=False)
        assert ran.status == 0, command
    assert in_child("no-such-command", reader=False).status == 2


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full")
def test_a_full_disk_under_stdout_is_named(model_dir: Path) -> None:
    for command in (("--version",), ("train", "--help"), ("score", model_dir, "the file", "--json")):
        ran = in_child(*command, stdout="/dev/full")
        assert ran.status == 2
        assert ran.error == "error: stdout: No space left on device"


def test_arguments_that_are_not_utf8(run: Run) -> None:
    # So Python passes on a byte that is no character.
    text = os.fsdecode(b"caf\xe9")
    for command in (
        ("score", "m", text),
        ("generate", "m", "--prompt", text),
        ("infill", "m", "___", "--exclude", text),
    ):
        ran = run(*command)
        assert ran.status == 2
        assert "the text 'caf\\xe9' is not UTF-8" in ran.error
    assert "is no folder" in run("score", text, "text").error


def test_locales_without_unicode(text_file: Path, tmp_path: Path) -> None:
    """Names and texts that the locale cannot show are read, trained on and answered all the same."""
    words = text_file.read_text(encoding="utf-8").replace("module", "café")
    (tmp_path / "über.txt").write_text(words, encoding="utf-8")
    script = (
        "import sys; from vlhmm.cli import main; given = sys.argv[1:]; cut = given.index('then')\n"
        "for command in (given[:cut], given[cut + 1 :]):\n    sys.argv = ['vlhmm', *command]; assert main() == 0"
    )
    train = ["train", "über.txt", "--out", "mögen", *SMALL, "--set", "epochs=1", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(vlhmm.__file__).parents[1])}
    ran = subprocess.run(
        [sys.executable, "-c", script, *train, "then", "score", "mögen", "the café", "--json"],
        cwd=tmp_path,
        capture_output=True,
        timeout=120,
        env={**environment, "LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    )
    assert ran.returncode == 0, ran.stderr
    trained, scored = (json.loads(line) for line in ran.stdout.decode("ascii").splitlines())
    assert trained["corpus"]["name"] == "über.txt"
    config = json.loads((tmp_path / "mögen" / "config.json").read_text(encoding="utf-8"))
    assert config["about"]["corpus"]["name"] == "über.txt"
    assert [token["token"] for token in scored["tokens"]] == ["the", "café"]


def test_narrow_terminals_show_the_words(run: Run, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    for command in ("score", "posterior", "viterbi"):
        shown = run(command, model_dir, "the string returns")
        assert shown.status == 0
        for word in ("the", "string", "retu"):
            assert any(row.startswith(word) for row in shown.out.splitlines()), f"{command}: {shown.out}"
    for command in (("next", model_dir, "the"), ("info", model_dir), ("infill", model_dir, "the ___ returns")):
        assert run(*command).status == 0


def test_a_cache_that_cannot_be_written_costs_time_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("VLHMM_CACHE", str(tmp_path / "file" / "cache"))
    documents = [[f"sentence {number} of document {document} ."] * 400 for document in range(10) for number in range(1)]
    monkeypatch.setattr("vlhmm.data.pydocs._read_documentation", lambda: documents)
    with pytest.warns(UserWarning, match=r"cache.* cannot be written \(Not a directory\).*set VLHMM_CACHE"):
        splits = pydocs_documents()
    assert sum(map(len, splits.values())) == 10


def test_resuming_nothing_says_how_to_begin(run: Run, tmp_path: Path) -> None:
    missing = run("train", "--out", "new run", "--resume")
    assert missing.status == 2
    assert "nothing to resume in new run: there is no such folder" in missing.error
    assert "vlhmm train CORPUS --out 'new run'" in missing.error
    assert not (tmp_path / "new run").exists()
    (tmp_path / "empty").mkdir()
    empty = run("train", "--out", "empty", "--resume")
    assert "it has no recipe.json" in empty.error
    assert list((tmp_path / "empty").iterdir()) == []
