"""Every public name is documented, and the examples in the docstrings run as they are printed."""

import ast
import dataclasses
import doctest
import functools
import importlib.util
import inspect
import re
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from public_names import FILE, PublicName, public_names, written
from tiny_teacher import write_tiny_teacher

import vlhmm
import vlhmm.reports

NAMES = public_names()
DESCRIBED = [one for one in NAMES if one.kind in ("class", "function", "method")]
REPORTS = [
    PublicName(f"vlhmm.reports.{name}", "class" if inspect.isclass(value) else "function", value)
    for name, value in ((name, getattr(vlhmm.reports, name)) for name in vlhmm.reports.__all__)
    if ">>> " in (value.__doc__ or "")
]
"""What is below the public names, for the command line and for servers: their examples are run too."""
ATTRIBUTES = [one for one in NAMES if one.kind in ("property", "field")]
MADE_BY_TRAIN, TEACHER = '"demo-model"', '"teacher"'
"""What an example says where it reads a folder that is there already."""


def docstring(one: PublicName) -> str:
    value = one.value.func if isinstance(one.value, functools.cached_property) else one.value
    return inspect.cleandoc(value.__doc__ or "")


def section(doc: str, title: str) -> str | None:
    """What a section of a Google-style docstring holds, without its indentation; None where there is none."""
    found = re.search(rf"^{title}:\n((?:[ ]{{4}}.*\n|\n)+)", doc + "\n", flags=re.M)
    return None if found is None else textwrap.dedent(found[1])


def documented_arguments(doc: str) -> list[str]:
    return re.findall(r"^(\*{0,2}\w+):", section(doc, "Args") or "", flags=re.M)


def parameters(function: Callable[..., object]) -> list[str]:
    prefix = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    found = inspect.signature(function).parameters.values()
    return [prefix.get(one.kind, "") + one.name for one in found if one.name not in ("self", "cls")]


@functools.cache
def field_docstrings(cls: type) -> dict[str, str]:
    """The string below each field of a dataclass, its bases included."""
    found: dict[str, str] = {}
    for base in (base for base in cls.__mro__ if dataclasses.is_dataclass(base)):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for field, below in zip(definition.body, definition.body[1:], strict=False):
            match field, below:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    found.setdefault(name, text)
    return found


def run_examples(name: str, doc: str) -> doctest.TestResults:
    test = doctest.DocTestParser().get_doctest(doc, {"torch": torch, "vlhmm": vlhmm}, name, None, 0)
    return doctest.DocTestRunner(verbose=False).run(test)


@pytest.fixture(scope="session")
def demo_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the example of `vlhmm.train` writes."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        results = run_examples("vlhmm.train", inspect.cleandoc(vlhmm.train.__doc__ or ""))
    assert results.attempted > 0
    assert results.failed == 0
    return folder / "demo-model"


def test_the_public_names_are_those_of_the_list() -> None:
    assert written() == FILE.read_text(encoding="utf-8"), "if this is meant, run: python tests/public_names.py"


def test_no_two_public_names_are_equal() -> None:
    assert len({one.name for one in NAMES}) == len(NAMES)


@pytest.mark.parametrize("one", [*DESCRIBED, *REPORTS], ids=str)
def test_a_docstring_names_arguments_and_results(one: PublicName) -> None:
    doc = docstring(one)
    summary = doc.partition("\n\n")[0]
    assert re.fullmatch(r"\S.*\.", summary), f"the summary is not one line that ends with a period: {summary!r}"
    if one.kind != "class":
        assert documented_arguments(doc) == parameters(one.value)
        returns_nothing = inspect.signature(one.value).return_annotation in (None, "None")
        assert (section(doc, "Returns") is None) == returns_nothing
    elif not (dataclasses.is_dataclass(one.value) or is_protocol(one.value)) and "__init__" in vars(one.value):
        assert documented_arguments(doc) == parameters(one.value.__init__)
    assert ">>> " in (section(doc, "Example") or "")


def is_protocol(cls: object) -> bool:
    """Python gives an interface an `__init__` that nobody calls."""
    return getattr(cls, "_is_protocol", False)


@pytest.mark.parametrize("one", ATTRIBUTES, ids=str)
def test_an_attribute_has_a_summary(one: PublicName) -> None:
    if one.kind == "field":
        assert one.owner is not None
        doc = field_docstrings(one.owner).get(one.name.rpartition(".")[2], "")
    else:
        doc = docstring(one)
    assert re.match(r"\S[^\n]*", doc.strip())
    assert doc.strip().endswith(".")


@pytest.mark.parametrize("one", [one for one in DESCRIBED if ">>>" in docstring(one)] + REPORTS, ids=str)
def test_an_example_prints_what_it_says(
    one: PublicName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    doc = docstring(one)
    if one.value is vlhmm.train:
        # Seconds long, and already run where the other examples get their model from.
        assert request.getfixturevalue("demo_model").is_dir()
        return
    monkeypatch.chdir(tmp_path)
    if MADE_BY_TRAIN in doc:
        made = request.getfixturevalue("demo_model")
        shutil.copytree(made, tmp_path / "demo-model")
        shutil.copy(made.with_name("animals.txt"), tmp_path)
    if TEACHER in doc:
        if not importlib.util.find_spec("transformers"):
            pytest.skip("transformers is not installed")
        write_tiny_teacher(tmp_path / "teacher")
    results = run_examples(one.name, doc)
    assert results.attempted > 0
    assert results.failed == 0
