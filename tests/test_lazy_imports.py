"""`import vlhmm` and `--help` import no torch; every public name is there all the same."""

import ast
import importlib
import json
import os
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

import vlhmm

HEAVY = {"torch", "numpy", "tokenizers", "matplotlib"}
HELP = """
import contextlib, io, json, sys
import typer.main
from vlhmm.cli import app, main

pages = {}
for name in ("", *typer.main.get_command(app).commands):
    sys.argv = ["vlhmm", *name.split(), "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as page:
        status = main()
    pages[name] = [status, page.getvalue(), sorted({module.partition(".")[0] for module in sys.modules})]
print(json.dumps(pages))
"""


def _python(program: str, **environment: str) -> str:
    package = str(Path(vlhmm.__file__).parents[1])
    kept = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**kept, "PYTHONPATH": package, **environment},
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_help_of_every_command_imports_no_torch() -> None:
    pages = json.loads(_python(HELP))
    # `table` hands its arguments, --help among them, to `python -m experiments`, which needs the library.
    del pages["table"]
    assert {"", "train", "score", "demo"} <= pages.keys()
    for name, (status, page, modules) in pages.items():
        assert status == 0, name
        assert "Usage:" in page, name
        assert set(modules).isdisjoint(HEAVY), name


def test_importing_vlhmm_sets_the_policy_of_waiting_threads_and_leaves_torch_alone() -> None:
    program = "import os, sys, vlhmm; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    assert _python(program).split() == ["PASSIVE", "False"]
    assert _python(program, OMP_WAIT_POLICY="ACTIVE").split() == ["ACTIVE", "False"]


def test_every_name_comes_from_the_module_that_type_checkers_read() -> None:
    source = ast.parse(Path(vlhmm.__file__).read_text(encoding="utf-8"))
    blocks = [node for node in source.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imported = {
        alias.name: statement.module
        for block in blocks
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert imported == vlhmm._MODULE_OF
    assert {*imported, "__version__"} == set(vlhmm.__all__)
    for name, module in imported.items():
        assert getattr(vlhmm, name) is getattr(importlib.import_module(module or ""), name)


def test_a_new_process_has_all_names_by_every_way_of_asking() -> None:
    program = """
import vlhmm
assert set(vlhmm.__all__) <= set(dir(vlhmm))
names = {}
exec("from vlhmm import *", names)
assert set(vlhmm.__all__) <= set(names)
assert names["train"] is vlhmm.train and vlhmm.train.__module__ == "vlhmm.training.gradient"
# Modules too, as when all of them were imported at once.
assert vlhmm.evaluate.evaluate and vlhmm.training.gradient.train is vlhmm.train
assert not hasattr(vlhmm, "nothing") and not hasattr(vlhmm, "experiments") and not hasattr(vlhmm, "__main__")
"""
    _python(program)


def test_no_module_has_a_public_name() -> None:
    assert [name for name in vlhmm.__all__ if PathFinder.find_spec(f"vlhmm.{name}", vlhmm.__path__)] == []


def test_an_unknown_name_gets_the_usual_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'vlhmm' has no attribute 'nothing'"):
        _ = vlhmm.nothing
