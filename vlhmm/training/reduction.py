"""All-reduce of gradients over ranks: gradients are packed into flat buffers (buckets), so that there are few messages."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from vlhmm.distributed import NCCL_EXTRA_SECONDS, World, collective, gather_objects, group_time_limit

ALIGNMENT = 64
"""Numbers: where a gradient begins, kernels that move several at once may read it."""


class FlatGradients:
    """The gradients of some parameters and the loss, as views of one buffer for each dtype, summed over all ranks.

    A step copies its gradients into the buffers, which a CUDA graph can capture. `reduce` runs between two graphs.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], here: World) -> None:
        self._here = here
        device = parameters[0].device
        places = list[tuple[torch.dtype, int, int]]()
        sizes = dict[torch.dtype, int]()
        for numel, dtype in [*((one.numel(), one.dtype) for one in parameters), (1, parameters[0].dtype)]:
            begin = sizes.get(dtype, 0)
            places.append((dtype, begin, begin + numel))
            sizes[dtype] = -(-(begin + numel) // ALIGNMENT) * ALIGNMENT
        self._buffers = {dtype: torch.zeros(size, dtype=dtype, device=device) for dtype, size in sizes.items()}
        *views, loss = (self._buffers[dtype][begin:end] for dtype, begin, end in places)
        self.gradients: list[Tensor] = [view.view(one.shape) for view, one in zip(views, parameters, strict=True)]
        self.loss = loss.view(())
        self.group = _group(device, here)

    @property
    def num_bytes(self) -> int:
        """That a rank gives to the others in a step."""
        return sum(buffer.numel() * buffer.element_size() for buffer in self._buffers.values())

    def copy(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradients, copied to where they are summed."""
        made = [gradient for gradient in gradients if gradient is not None]
        assert len(made) == len(self.gradients)
        torch._foreach_copy_(self.gradients, made)
        return list(self.gradients)

    def average(self, tensors: Sequence[Tensor], what: str) -> None:
        """Replaces other tensors of the parameters' shapes by their mean over all ranks, through the same buffers."""
        torch._foreach_copy_(self.gradients, list(tensors))
        self.reduce(what)
        torch._foreach_div_(self.gradients, self._here.size)
        torch._foreach_copy_(list(tensors), self.gradients)

    def reduce(self, what: str) -> None:
        """Sums gradients and loss over all ranks, to the same bits on each; `what`: said if one of them is missing."""
        with collective(self._here, what):
            for buffer in self._buffers.values():
                dist.all_reduce(buffer, group=self.group)


def _group(device: torch.device, here: World) -> dist.ProcessGroup | None:
    """NCCL where every rank has a GPU of its own; None: the group that all are in, gloo, which moves a GPU's memory through the
    CPU's."""
    if here.size == 1 or device.type != "cuda":
        return None
    own = torch.cuda.get_device_properties(device).uuid
    places = gather_objects((socket.gethostname(), str(own)), here, "the choice of GPUs")
    if len(set(places)) < here.size or not dist.is_nccl_available():
        return None
    if "cuda:nccl" in str(dist.get_backend_config()):
        # The caller's own process group.
        return None
    torch.cuda.set_device(device)
    limit = timedelta(seconds=group_time_limit() + NCCL_EXTRA_SECONDS)
    group: dist.ProcessGroup = dist.new_group(backend="nccl", timeout=limit)
    return group
