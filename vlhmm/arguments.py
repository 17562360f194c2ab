"""Single arguments of public functions: each is what it should be, or one ValueError says what it is and what is needed."""

from __future__ import annotations

import numbers
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor


def check_count(name: str, value: Any, at_least: int = 1) -> int:
    """`value` as an integer of at least `at_least`; True and 2.0 are no counts."""
    if not is_integer(value):
        raise ValueError(f"{name} is {_shown(value)}, but an integer of at least {at_least} is needed")
    if value < at_least:
        raise ValueError(f"{name} is {value}, but it must be at least {at_least}")
    return int(value)


def is_integer(value: Any) -> bool:
    """Also those of numpy; True is none."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def check_number(name: str, value: Any) -> None:
    """Refuses what is no real number; NaN and infinity are for the caller to refuse."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"{name} is {_shown(value)}, but a number is needed")


def check_text(name: str, value: Any) -> None:
    """Refuses what is no text, and text that cannot be written as UTF-8."""
    if isinstance(value, bytes):
        raise ValueError(f"{name} is bytes, but text (str) is needed: decode it with .decode('utf-8')")
    if not isinstance(value, str):
        raise ValueError(f"{name} is {_shown(value)}, but text (str) is needed")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} has {value[error.start]!a} at character {error.start}, half of a character, which UTF-8 cannot hold: "
            "decode its bytes with the encoding they have"
        ) from None


def check_generator(generator: Any, device: torch.device, name: str = "generator") -> None:
    """Refuses what torch cannot draw with on `device`."""
    if generator is None:
        return
    if not isinstance(generator, torch.Generator):
        raise ValueError(f"{name} is {_shown(generator)}, but a torch.Generator is needed, or None")
    if generator.device.type != device.type:
        raise ValueError(
            f"{name} is on {generator.device}, but the model is on {device}: use torch.Generator({device.type!r})"
        )


def as_generator(seed: Any, generator: Any, device: torch.device) -> torch.Generator | None:
    """What to draw with on `device`: a number's own generator, the one that is given, or None. `generator`: the older name."""
    if generator is not None:
        seed = older_seed(seed, generator, stacklevel=4)
    if is_integer(seed):
        try:
            return torch.Generator(device).manual_seed(int(seed))
        except (RuntimeError, ValueError, OverflowError):
            raise ValueError(f"seed is {seed}, but must be between {-(1 << 63)} and {(1 << 64) - 1}") from None
    if seed is not None and not isinstance(seed, torch.Generator):
        raise ValueError(f"seed is {_shown(seed)}, but an integer or a torch.Generator is needed, or None")
    check_generator(seed, device, "seed")
    return seed


def older_seed(seed: Any, generator: Any, stacklevel: int = 3) -> Any:
    """`seed`, or `generator`, its older name, with a warning at the caller of the caller; only the newer name takes numbers."""
    if generator is None:
        return seed
    if seed is not None:
        raise ValueError("seed and generator are both given, but generator is the older name of seed: give seed alone")
    for one in generator if isinstance(generator, list | tuple) else [generator]:
        if not isinstance(one, torch.Generator):
            raise ValueError(
                f"generator is or has {_shown(one)}, but a torch.Generator is needed, or seed= with a number"
            )
    warnings.warn("generator= is now seed=, which takes a number as well", DeprecationWarning, stacklevel=stacklevel)
    return generator


def as_device(device: Any) -> torch.device | None:
    """`device` as one that this machine has; None stays None."""
    if device is None:
        return None
    known = "use 'cpu', 'cuda' or 'cuda:N'"
    if isinstance(device, bool) or not isinstance(device, str | int | torch.device):
        raise ValueError(f"device is {_shown(device)}, but a torch.device or its name is needed: {known}")
    try:
        found = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device is {device!r}, which is none that torch knows: {known}") from None
    if found.type == "meta":
        raise ValueError("device is 'meta', whose tensors hold no numbers: use 'cpu' or 'cuda'")
    if found.type == "cuda":
        count = torch.cuda.device_count()
        if (found.index or 0) >= count:
            raise ValueError(
                f"device is {str(found)!r}, but torch finds {count} CUDA devices on this machine: use 'cpu'"
            )
        return found
    try:
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError, ImportError):
        raise ValueError(
            f"device is {str(found)!r}, but this torch ({torch.__version__}) cannot use it: {known}"
        ) from None
    return found


def as_tensor(name: str, values: Any, what: str) -> Tensor:
    """An array-like as a tensor that holds numbers, dense, where it is; `what` it is needed as, for the message."""
    if not isinstance(values, Tensor):
        try:
            array = np.array(values)
        except ValueError:
            raise ValueError(
                f"{name} cannot be read as {what}: its rows have different lengths; pad them to one length"
            ) from None
        try:
            return torch.from_numpy(array)
        except TypeError:
            raise ValueError(
                f"{name} cannot be read as {what}: as an array it has dtype {array.dtype}; give numbers"
            ) from None
    check_tensor(name, values)
    return values


def check_tensor(name: str, values: Any) -> None:
    """Refuses what is no dense tensor with numbers in it."""
    if not isinstance(values, Tensor):
        raise ValueError(f"{name} is {_shown(values)}, but a tensor is needed")
    if values.device.type == "meta":
        raise ValueError(f"{name} is on the device 'meta' and holds no numbers: use a tensor on 'cpu' or 'cuda'")
    if values.layout != torch.strided:
        raise ValueError(
            f"{name} has layout {values.layout}, but a dense tensor is needed: convert it with .to_dense()"
        )


def _shown(value: Any) -> str:
    """Short, with its type."""
    text = repr(value)
    kind = type(value).__name__
    return f"a {kind}" if len(text) > 40 or "\n" in text else f"{text} ({kind})"
