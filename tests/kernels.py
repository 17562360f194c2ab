"""Where a kernel's tests run: in Triton's interpreter, or on a GPU with -m gpu. Imported before anything that imports triton."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    # Read by triton when it is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

DEVICES = [
    pytest.param(
        "cpu",
        marks=pytest.mark.skipif(
            torch.cuda.is_available(), reason="a process has kernels compiled or interpreted, not both"
        ),
        id="interpreter",
    ),
    pytest.param("cuda", marks=pytest.mark.gpu, id="gpu"),
]
