"""Failures of the tokenizers' backend, which is written in Rust, as plain errors."""

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from vlhmm.data.json_file import one_line

_STDERR = threading.Lock()


@contextmanager
def backend_errors(message: str, *, quiet: bool = False) -> Iterator[None]:
    """Any failure of the backend as a ValueError, its own words in place of {}.

    `quiet` drops what a panic prints; it takes hold of stderr, so it is for loading, not for every text.
    """
    try:
        if quiet:
            with _without_panic_output():
                yield
        else:
            yield
    # Bare Exception is what the backend raises for anything it cannot read.
    except BaseException as error:
        if not isinstance(error, Exception) and not _is_panic(error):
            raise
        raise ValueError(message.format(one_line(error))) from None


def _is_panic(error: BaseException) -> bool:
    """A panic derives from BaseException, as an interrupt does, and its class cannot be imported."""
    return type(error).__name__ == "PanicException"


@contextmanager
def _without_panic_output() -> Iterator[None]:
    """Buffers stderr, and discards it if the block panics: the error has the same message in one line."""
    with _STDERR, tempfile.TemporaryFile() as held:
        try:
            sys.stderr.flush()
            saved = os.dup(2)
        # No stderr, or a closed one.
        except (OSError, ValueError, AttributeError):
            yield
            return
        dropped = False
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException as error:
            dropped = _is_panic(error)
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            if not dropped and held.seek(0, os.SEEK_END):
                held.seek(0)
                os.write(2, held.read())
