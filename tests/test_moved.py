"""Module paths of the first edition: they warn and lead to the same modules, and never hide a public function."""

import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import vlhmm
from vlhmm._moved import GONE, MOVED, install

INSIDE = {
    "vlhmm.lvd.kmeans": "vlhmm.distillation.lvd.kmeans",
    "vlhmm.decoder.folder": "vlhmm.distillation.decoder.folder",
    "vlhmm.teacher.samples": "vlhmm.distillation.teachers.samples",
}
"""Some modules of packages that have moved."""


def _is_old(name: str) -> bool:
    return any(name == old or name.startswith(old + ".") for old in MOVED)


@pytest.fixture(autouse=True)
def never_imported() -> Iterator[None]:
    """By their old names; only the first import warns."""

    def forget() -> None:
        for name in [name for name in sys.modules if _is_old(name)]:
            del sys.modules[name]
            package, _, attribute = name.rpartition(".")
            if package == "vlhmm":
                vars(vlhmm).pop(attribute, None)

    forget()
    yield
    forget()


@pytest.mark.parametrize(("old", "new"), [*MOVED.items(), *INSIDE.items()])
def test_an_old_path_is_the_same_module_with_a_warning_that_names_the_new_one(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match="has moved") as caught:
        module = importlib.import_module(old)
    messages = [str(warning.message) for warning in caught]
    assert any(message.startswith(f"{old} has moved") and message.endswith(f"import {new}") for message in messages)
    assert module is importlib.import_module(new)
    assert module.__name__ == module.__spec__.name == new


def test_the_warning_points_at_the_import_and_comes_once() -> None:
    # In a process of its own: here functions have wrappers that check shapes.
    program = "import vlhmm\nfrom vlhmm.em import em\nfrom vlhmm.em import em as again\nassert em is again\n"
    ran = subprocess.run([sys.executable, "-W", "always", "-c", program], capture_output=True, text=True, check=True)
    shown = [line for line in ran.stderr.splitlines() if "has moved" in line]
    assert len(shown) == 1
    assert shown[0].startswith("<string>:2: DeprecationWarning: vlhmm.em has moved")


def test_a_class_has_one_identity_by_either_path() -> None:
    with pytest.warns(DeprecationWarning, match="has moved"):
        from vlhmm.lvd.settings import LVDSettings
    from vlhmm.distillation.lvd.settings import LVDSettings as Same

    assert LVDSettings is Same


def test_the_package_itself_uses_no_old_path() -> None:
    assert [name for name in sys.modules if _is_old(name)] == []


@pytest.mark.parametrize(
    ("name", "place"), [("train", "vlhmm.training.gradient"), ("distill", "vlhmm.distillation.pipeline")]
)
def test_a_public_function_is_not_hidden_by_a_module_and_the_error_names_the_new_one(name: str, place: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=place.replace(".", r"\.")) as error:
        importlib.import_module(f"vlhmm.{name}")
    assert error.value.name == f"vlhmm.{name}"
    importlib.import_module(place)
    function = getattr(vlhmm, name)
    assert inspect.isfunction(function)
    assert function.__module__ == place


def test_names_that_never_were_get_the_usual_error_and_places_exist() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'vlhmm\.nothing'"):
        importlib.import_module("vlhmm.nothing")
    with pytest.raises(ModuleNotFoundError, match="python -m experiments"):
        importlib.import_module("vlhmm.experiments.rows")
    root = Path(vlhmm.__file__).parent.parent
    for old in (*MOVED, *GONE):
        # A file of that name would never be found.
        assert not (root / old.replace(".", "/")).with_suffix(".py").exists()
        assert not (root / old.replace(".", "/") / "__init__.py").exists()


def test_other_packages_are_imported_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The path of a namespace package is no list.
    (tmp_path / "some_namespace").mkdir()
    (tmp_path / "some_namespace" / "inside.py").write_text("VALUE = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module("some_namespace.inside").VALUE == 3


def test_installing_twice_changes_nothing() -> None:
    before = list(sys.meta_path)
    install()
    assert sys.meta_path == before
