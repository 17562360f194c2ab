"""The fields of a JSON object, each checked when it is read; fields that were not read are named in the warnings."""

from __future__ import annotations

import json
import math
from typing import Any

from vlhmm.server.errors import RequestError, shown


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a request's body."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8 (byte {error.start}: {error.reason}): send JSON as UTF-8") from None
    except RecursionError:
        raise RequestError("the body is nested too deeply: no field needs more than a few levels") from None
    except ValueError as error:
        raise RequestError(f"the body is not JSON ({error}): send one JSON object") from None
    if not isinstance(value, dict):
        raise RequestError(f"the body is {shown(value)}, but a JSON object is needed")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


class Fields:
    """One JSON object. null is as good as left out.

    Args:
        values: The object.
        name: What messages put before the names of its fields, such as `constraint.`.
    """

    def __init__(self, values: dict[str, Any], name: str = "") -> None:
        self._values, self._name = values, name
        self._read: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def raw(self, key: str) -> Any:
        """The value as it is; None where there is none."""
        self._read.add(key)
        return self._values.get(key)

    def integer(self, key: str, default: int, low: int, high: int) -> int:
        value = self.raw(key)
        if value is None:
            return default
        # 16.0 is an integer of JSON.
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
            raise self.error(key, f"is {shown(value)}, but an integer is needed")
        if not low <= value <= high:
            raise self.error(key, f"is {shown(value)}, but must be between {low} and {high}")
        return int(value)

    def optional_integer(self, key: str, low: int, high: int) -> int | None:
        return self.integer(key, low, low, high) if key in self else self.raw(key)

    def number(self, key: str, default: float, low: float, high: float) -> float:
        value = self.raw(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, f"is {shown(value)}, but a number is needed")
        if not low <= value <= high or math.isnan(value):
            raise self.error(key, f"is {shown(value)}, but must be between {low:g} and {high:g}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"is {shown(value)}, but true or false is needed")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.raw(key)
        if value is None:
            if default is None:
                raise self.error(key, "is missing: give a text")
            return default
        return self.checked_text(key, value)

    def checked_text(self, key: str, value: Any) -> str:
        if not isinstance(value, str):
            raise self.error(key, f"is {shown(value)}, but a text is needed")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise self.error(key, f"has half a character at {error.start}, which no UTF-8 can hold") from None
        return value

    def texts(self, key: str, most: int, *, one_will_do: bool = True) -> list[str]:
        """A list of texts, or one text; none where the field is left out."""
        value = self.raw(key)
        if value is None:
            return []
        if isinstance(value, str) and one_will_do:
            value = [value]
        if not isinstance(value, list):
            raise self.error(key, f"is {shown(value)}, but a list of texts is needed")
        if len(value) > most:
            raise self.error(key, f"has {len(value)} texts, but the limit is {most}")
        return [self.checked_text(key, one) for one in value]

    def object(self, key: str) -> Fields | None:
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, f"is {shown(value)}, but an object is needed")
        return Fields(value, f"{self._name}{key}.")

    def error(self, key: str, message: str) -> RequestError:
        name = f"{self._name}{key}"
        return RequestError(f"{name} {message}", param=name)

    def unread(self) -> list[str]:
        """Names of the fields that no one has asked for."""
        return sorted(set(self._values) - self._read)

    def warnings(self) -> list[str]:
        return [f"{shown(self._name + key)} is not a known field and was ignored" for key in self.unread()]
