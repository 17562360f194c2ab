"""JSON from files that may be damaged or foreign: read in bounded memory, or refused in one line that names the file."""

import json
import os
from pathlib import Path
from typing import Any, Final

MAX_JSON_BYTES: Final = 1 << 24
"""Of a config, a manifest, a log of results. Vocabularies are larger and say so."""


def one_line(error: object, max_chars: int = 200) -> str:
    """What a library or a damaged file says, fit to stand in a message."""
    told = " ".join(str(error).split()) or type(error).__name__
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in told[:max_chars])
    return shown + "..." * (len(told) > max_chars)


def parse_json(text: str | bytes, where: str) -> Any:
    """The value of `text`; `where` names it in the error."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(f"{where} is JSON nested too deeply to be read: it is damaged or of another program") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is not UTF-8 ({error.reason} at byte {error.start}): it is damaged") from None
    # Not JSONDecodeError alone: an integer of more than 4,300 digits is a plain ValueError.
    except ValueError as error:
        raise ValueError(f"{where} is not JSON ({one_line(error)}): it was cut short or edited") from None


def read_text(path: str | os.PathLike[str], max_bytes: int = MAX_JSON_BYTES) -> str:
    """A small text file as a whole."""
    path = Path(path)
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(
            f"{path} has more than {max_bytes:,} bytes, the limit for such a file: it was written by another program"
        )
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}): it is damaged") from None


def read_json_object(path: str | os.PathLike[str], max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """The object in a file; other JSON values are refused."""
    values = parse_json(read_text(path, max_bytes), str(path))
    if not isinstance(values, dict):
        raise ValueError(
            f"{path} holds a {type(values).__name__}, but an object is needed: it was written by another program"
        )
    return values
