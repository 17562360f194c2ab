"""What tests of kernels share."""

import pytest
import torch
from torch import Tensor


@pytest.fixture
def unwritten_is_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that a kernel ought to write, and does not, is NaN, or a number that is none of its own."""
    empty, empty_like, new_empty = torch.empty, torch.empty_like, Tensor.new_empty

    def poisoned(tensor: Tensor) -> Tensor:
        return tensor.fill_(torch.nan if tensor.is_floating_point() else 77)

    monkeypatch.setattr(torch, "empty", lambda *given, **named: poisoned(empty(*given, **named)))
    monkeypatch.setattr(torch, "empty_like", lambda *given, **named: poisoned(empty_like(*given, **named)))
    monkeypatch.setattr(Tensor, "new_empty", lambda *given, **named: poisoned(new_empty(*given, **named)))
