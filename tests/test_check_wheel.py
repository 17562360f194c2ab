"""The environment of the built package has what its metadata asks for, at the versions asked for, and nothing else."""

import pytest
from packaging.requirements import Requirement

from tools.check_wheel import required


def closure(*lines: str) -> set[str]:
    return set(required(map(Requirement, lines)))


def test_requirements_are_followed_with_their_own() -> None:
    found = closure("torch>=2.0", "tokenizers")
    assert {"torch", "tokenizers", "sympy", "mpmath", "huggingface-hub"} <= found
    assert not {"pytest", "transformers", "vlhmm"} & found


def test_extras_and_markers_decide() -> None:
    assert "numpy" not in closure("safetensors")
    assert "numpy" in closure("safetensors[numpy]")
    assert closure('numpy; extra == "plot"', 'nothere; python_version < "3"') == set()


def test_what_is_missing_or_too_old_is_named() -> None:
    with pytest.raises(SystemExit, match="nothere>=1 is required, and not installed here"):
        closure("nothere>=1")
    with pytest.raises(SystemExit, match=r"numpy>=99 is required, but .* is installed here"):
        closure("numpy>=99")
