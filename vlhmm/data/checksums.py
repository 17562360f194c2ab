"""SHA-256 of files, and whether they are compared with what was recorded."""

import hashlib
import os
from pathlib import Path
from typing import Final

VERIFY: Final = "VLHMM_VERIFY"
"""0 in this variable of the environment: checksums of large files are not compared."""


class UncheckedFileWarning(UserWarning):
    """A file of an earlier version, without checksums: damage inside it may go unnoticed."""


def verify_wanted(verify: bool | None) -> bool:
    """What the caller asked for; None: what the environment says, else yes."""
    if verify is not None:
        return verify
    value = os.environ.get(VERIFY, "1")
    if value not in ("0", "1"):
        raise ValueError(f"{VERIFY} is {value!r}, but must be 1 (compare checksums) or 0 (do not)")
    return value == "1"


def sha256_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
