"""Reference pages that are made from the code at build time: the command line, the settings and the presets.

A page has a placeholder, `<!-- made at build time: NAME -->`; the Markdown made by the function of that name takes its place.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from typing import Any

import typer
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring

import experiments.cli
import vlhmm
from vlhmm.cli import app as cli_app
from vlhmm.control.possible import ImpossibleConstraintError
from vlhmm.inference.errors import ImpossibleTextError
from vlhmm.models import ModelSettings
from vlhmm.training.baseline_settings import AWDLSTMSettings
from vlhmm.training.checkpoint import FolderError
from vlhmm.training.presets import PRESETS, BlockSettings
from vlhmm.training.settings import TrainSettings
from vlhmm.training.stage_settings import PretrainedSettings, SampledText, Stages
from vlhmm.training.trainer import DivergedError

_SECTIONS_OF_DOCSTRINGS = ("Args:", "Returns:", "Yields:", "Raises:", "Example:", "Examples:", "Note:")
_PLACEHOLDER = re.compile(r"^<!-- made at build time: ([a-z-]+) -->$", re.MULTILINE)
_SECTIONS = {"blocks": BlockSettings, "model": ModelSettings, "train": TrainSettings}
_STAGES = {"teacher": AWDLSTMSettings, "samples": SampledText}
_ABOUT = {
    "teacher": "Beside `kind`: `awd-lstm`, whose settings these are, `lstm`, `feedforward`, `buys-hmm`, or `pretrained` with `model`, the "
    "folder of a baseline or the name of a language model.",
    "samples": "",
}


def commands() -> str:
    """All commands, each with its usage, arguments, options and examples."""
    root = typer.main.get_command(cli_app)
    return "\n".join(_command(root, ["vlhmm"], level=2))


def experiment_commands() -> str:
    """The same for the tables of the papers."""
    root = typer.main.get_command(experiments.cli.commands())
    return "\n".join(_command(root, ["python -m experiments"], level=3))


def _command(command: Any, path: list[str], level: int) -> Iterator[str]:
    context = command.make_context(" ".join(path), [], resilient_parsing=True)
    if len(path) > 1:
        yield f"{'#' * level} {' '.join(path)}\n"
    yield _escaped(textwrap.dedent(command.help or "").strip()) + "\n"
    yield f"```text\n{' '.join([*path, *command.collect_usage_pieces(context)])}\n```\n"
    for kind in ("argument", "option"):
        listed = [one.get_help_record(context) for one in command.params if one.param_type_name == kind]
        if any(listed):
            yield f"| {kind} | |\n|---|---|"
        yield from (f"| `{_cell(record[0])}` | {_cell(record[1])} |" for record in listed if record)
        yield ""
    if command.epilog:
        yield f"```text\n{inspect.cleandoc(command.epilog)}\n```\n"
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from _command(subcommand, [*path, name], level + (len(path) > 1))


def _cell(text: str | None) -> str:
    """Text for a cell of a Markdown table."""
    return _escaped(" ".join((text or "").split()).replace("|", "\\|"))


def _escaped(text: str) -> str:
    """`train*` is no emphasis."""
    return text.replace("*", "\\*")


def settings() -> str:
    """Every setting of the sections of a recipe, with type, default and meaning."""
    parts = []
    for section, kind in (_SECTIONS | _STAGES).items():
        documented = {
            name: text for base in reversed(_records_of(kind)) for name, text in _attribute_docstrings(base).items()
        }
        about = f"{_ABOUT[section]}\n\n" if _ABOUT.get(section) else ""
        parts.append(f"## `[{section}]`\n\n{about}| setting | values | default | |\n|---|---|---|---|")
        for field in fields(kind):
            values = _values(str(field.type))
            parts.append(
                f"| `{field.name}` | {values} | `{_shown(_field_default(field))}` | {_cell(documented.get(field.name))} |"
            )
        parts.append("")
    parts.append(
        "## `[finetune]`\n\nThe settings of `[train]`, for the training on the real text after that on the mixture.\n"
    )
    return "\n".join(parts)


def _records_of(kind: type[Any]) -> list[type[Any]]:
    """The class and those that it inherits settings from."""
    return [base for base in kind.__mro__ if is_dataclass(base)]


def _values(annotation: str) -> str:
    aliases = {
        "ScheduleKind": "Literal['cosine', 'plateau', 'constant']",
        "Precision": "Literal['bf16', 'tf32', 'highest']",
        "Reset": "Literal['eos', 'carry']",
    }
    annotation = aliases.get(annotation, annotation)
    if annotation.startswith("Literal["):
        return ", ".join(f"`{value}`" for value in ast.literal_eval(annotation.removeprefix("Literal")))
    return annotation


def _field_default(field: Field[Any]) -> Any:
    return field.default if field.default is not MISSING else field.default_factory()  # type: ignore[misc]


def _attribute_docstrings(kind: type[Any]) -> dict[str, str]:
    """The string behind each annotated name of a class."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for statement, after in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            assert isinstance(statement.target, ast.Name)
            found[statement.target.id] = str(after.value.value)
    return found


def presets() -> str:
    """Every preset by what it sets differently from the defaults."""
    parts = ["| preset | settings that differ from the defaults |", "|---|---|"]
    for name, recipe in PRESETS.items():
        given = [
            f"`{setting}={_shown(value)}`"
            for section, kind in _SECTIONS.items()
            for setting, value in asdict(getattr(recipe, section)).items()
            if value != asdict(kind())[setting]
        ]
        if recipe.stages is not None:
            usual = Stages(
                type(recipe.stages.teacher)()
                if not isinstance(recipe.stages.teacher, PretrainedSettings)
                else recipe.stages.teacher
            )
            defaults = usual.to_dict()
            given += [
                f"`{section}.{setting}={_shown(value)}`"
                for section, values in recipe.stages.to_dict().items()
                for setting, value in values.items()
                if value != defaults[section][setting] or setting == "kind"
            ]
        parts.append(f"| `{name}` | {', '.join(given) or 'none'} |")
    return "\n".join(parts) + "\n"


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def records() -> str:
    """The records that public functions and methods return, and those that such records hold, as autodoc directives.

    They are found by their annotations: where in the package they are defined is no part of the public interface.
    """
    public = [getattr(vlhmm, name) for name in vlhmm.__all__ if name != "__version__"]
    found: dict[type[Any], None] = {}
    for one in public:
        callables = [one] if inspect.isfunction(one) else [function for _, function in _public_callables(one)]
        for function in callables:
            for record in _records_in(typing.get_type_hints(function).get("return")):
                _collect(record, found)
    names = sorted((f"{kind.__module__}.{kind.__qualname__}" for kind in found if kind not in public), key=_last_name)
    return "\n".join(
        f"## {_last_name(name)}\n\n```{{eval-rst}}\n.. autoclass:: {name}()\n   :members:\n   :undoc-members:\n```\n"
        for name in names
    )


def exceptions() -> str:
    """The errors that a caller may want to tell from others."""
    kinds = (ImpossibleTextError, ImpossibleConstraintError, FolderError, DivergedError)
    return "\n".join(
        f"```{{eval-rst}}\n.. autoexception:: {kind.__module__}.{kind.__qualname__}()\n```\n" for kind in kinds
    )


def _last_name(path: str) -> str:
    return path.rpartition(".")[2]


def _public_callables(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    for name, member in vars(kind).items():
        function = getattr(member, "__func__", getattr(member, "fget", None) or getattr(member, "func", member))
        if not name.startswith("_") and inspect.isfunction(function):
            yield name, function


def _records_in(annotation: Any) -> Iterator[type[Any]]:
    """Classes of this package in an annotation, inside list[...] and unions too."""
    if isinstance(annotation, type) and annotation.__module__.startswith("vlhmm"):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _records_in(argument)


def _collect(kind: type[Any], found: dict[type[Any], None]) -> None:
    if kind in found:
        return
    found[kind] = None
    if is_dataclass(kind):
        for hint in typing.get_type_hints(kind).values():
            for record in _records_in(hint):
                _collect(record, found)


_MAKERS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "experiment-commands": experiment_commands,
    "settings": settings,
    "presets": presets,
    "records": records,
    "exceptions": exceptions,
}


def _fill(app: Sphinx, docname: str, source: list[str]) -> None:
    source[0] = _PLACEHOLDER.sub(lambda found: _MAKERS[found[1]](), source[0])


class _Docstring(GoogleDocstring):
    """Our `Returns` have no types, annotations do: what stands before a colon is text."""

    def _consume_returns_section(self, preprocess_types: bool = False) -> list[tuple[str, str, list[str]]]:
        return [("", "", self._dedent(self._consume_to_next_section()))]


def _read_sections(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Google-style sections of docstrings (Args, Returns, Raises, Example).

    The extension sphinx.ext.napoleon does the same, but takes what stands before a colon in an attribute's docstring for its type.
    """
    if what == "class" and lines and lines[0].startswith(f"{_last_name(name)}("):
        # Not a docstring: the signature, which `dataclass` writes where there is none.
        lines.clear()
    if what in ("class", "exception", "function", "method"):
        lines[:] = _Docstring(list(_as_rst(lines)), Config(), app, what, name, obj).lines()


def _as_rst(lines: list[str]) -> Iterator[str]:
    """Lists need no blank line before them in our docstrings, and indented lines are code, as in Markdown."""
    before, indented = "", False
    for line in lines:
        if line.startswith("- ") and before and not before.startswith(("- ", "  ")):
            yield ""
        if (
            line.startswith("    ")
            and not indented
            and not before
            and _last_text(lines, line) not in _SECTIONS_OF_DOCSTRINGS
        ):
            yield from (".. code-block:: python", "")
        indented = line.startswith("    ") or (indented and not line)
        before = line
        yield line


def _last_text(lines: list[str], line: str) -> str:
    """The last line before `line` that is not blank."""
    return next((one for one in reversed(lines[: lines.index(line)]) if one), "")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", _fill)
    app.connect("autodoc-process-docstring", _read_sections)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
