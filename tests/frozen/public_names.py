"""Public names as lines of text: what `vlhmm` offers in Python, and the commands and options of its command line.

A name stands at the left margin, what belongs to it below, indented. Each line is one promise: lines may be added by recording
anew, but a line that is gone breaks someone's code.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import vlhmm

from . import entry_points, records

API, COMMANDS = records.FOLDER / "public_api.txt", records.FOLDER / "commands.txt"


def api_lines() -> list[str]:
    lines: list[str] = []
    for name in sorted(vlhmm.__all__):
        value = getattr(vlhmm, name)
        if inspect.isclass(value):
            lines += _class_lines(name, value)
        elif callable(value):
            lines += [name, *_parameter_lines(value)]
        else:
            lines.append(name)
    return lines


def _class_lines(name: str, of: type) -> Iterator[str]:
    yield name
    if getattr(of, "_is_protocol", False):
        return
    yield from _parameter_lines(of)
    # Fields without a default are no attributes of the class.
    fields = getattr(of, "__dataclass_fields__", {})
    ours = {key for base in of.__mro__ if base.__module__.partition(".")[0] == "vlhmm" for key in vars(base)}
    for attribute in sorted(ours | set(fields)):
        if attribute.startswith("_") and attribute != "__call__":
            continue
        value = inspect.getattr_static(of, attribute, None)
        if isinstance(value, (staticmethod, classmethod)) or inspect.isfunction(value):
            yield f"{name}.{attribute}"
            yield from _parameter_lines(getattr(of, attribute))
        else:
            yield f"{name}.{attribute} (attribute)"


def _parameter_lines(callable_: Any) -> Iterator[str]:
    """A positional parameter by its place, a keyword-only one by its name, each with its default."""
    parameters = [
        parameter for parameter in inspect.signature(callable_).parameters.values() if parameter.name != "self"
    ]
    for place, parameter in enumerate(parameters, 1):
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        match parameter.kind:
            case parameter.POSITIONAL_ONLY:
                yield f"    {place}. {parameter.name} (positional only){default}"
            case parameter.POSITIONAL_OR_KEYWORD:
                yield f"    {place}. {parameter.name}{default}"
            case parameter.KEYWORD_ONLY:
                yield f"    {parameter.name} (keyword only){default}"
            case parameter.VAR_POSITIONAL:
                yield f"    *{parameter.name}"
            case parameter.VAR_KEYWORD:
                yield f"    **{parameter.name}"


def command_lines() -> list[str]:
    return list(_command_lines("vlhmm", entry_points.root_command()))


def _command_lines(path: str, command: Any) -> Iterator[str]:
    yield path
    place = 0
    # Of the function itself: how typer keeps types differs between its versions.
    hints = get_type_hints(inspect.unwrap(command.callback)) if command.callback is not None else {}
    for parameter in command.params:
        argument = parameter.param_type_name == "argument"
        place += argument
        names = " / ".join([*parameter.opts, *parameter.secondary_opts])
        yield f"    {f'{place}. argument' if argument else names} {' '.join(_facts(parameter, hints.get(parameter.name)))}".rstrip()
    for name in sorted(getattr(command, "commands", {})):
        yield from _command_lines(f"{path} {name}", command.commands[name])


def _facts(parameter: Any, hint: Any) -> Iterator[str]:
    """The type with its bounds or choices, the metavar, and the default; not the wording of the help."""
    if hint is not None:
        yield _type_name(hint)
    for bound in ("min", "max"):
        # On the parameter, or in other versions of typer on its type.
        value = getattr(parameter, bound, getattr(getattr(parameter, "type", None), bound, None))
        if value is not None:
            yield f"{bound}={value}"
    if parameter.metavar:
        yield f"metavar={parameter.metavar}"
    for fact in ("required", "multiple", "is_flag"):
        if getattr(parameter, fact, False):
            yield fact
    if parameter.nargs != 1:
        yield f"nargs={parameter.nargs}"
    if parameter.envvar:
        yield f"envvar={parameter.envvar}"
    default = parameter.default() if callable(parameter.default) else parameter.default
    yield f"default={getattr(default, 'value', default)!s}"


def _type_name(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_type_name(one) for one in get_args(hint) if one is not type(None))
    if get_origin(hint) is list:
        return f"list of {_type_name(get_args(hint)[0])}"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "|".join(str(choice.value) for choice in hint)
    return getattr(hint, "__name__", str(hint))


def promises(lines: list[str]) -> set[str]:
    """Each line with the name that it belongs to."""
    found: set[str] = set()
    name = ""
    for line in lines:
        if not line.startswith(" "):
            name = line
            found.add(name)
        else:
            found.add(f"{name}: {line.strip()}")
    return found


def read(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]


def changes(path: Path, now: list[str]) -> tuple[list[str], list[str]]:
    """The promises that are gone, and the new ones."""
    before, after = promises(read(path)), promises(now)
    return sorted(before - after), sorted(after - before)


def record() -> None:
    """Refuses to forget a promise: whoever takes one back deletes its line by hand, where a reviewer sees it."""
    for path, now in ((API, api_lines()), (COMMANDS, command_lines())):
        if path.exists():
            gone, _ = changes(path, now)
            if gone:
                raise SystemExit(
                    f"{path.name} has lines that no longer hold: {gone}; delete them by hand if that is meant"
                )
        path.write_text("\n".join(now) + "\n", encoding="utf-8")
