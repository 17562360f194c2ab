"""Texts drawn from a teacher, many side by side."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch

from vlhmm.distillation.teachers.decoding import (
    BrokenModelError,
    Drawn,
    Prompts,
    SamplingConfig,
    StaticCacheGenerator,
    bytes_per_row,
    can_be_fixed,
    write_growing,
)
from vlhmm.distillation.teachers.model import Teacher
from vlhmm.memory import available_bytes, require_memory


class TextDrawer:
    """Draws texts up to EOS or `max_tokens`, batch after batch.

    On a GPU what was captured for one batch serves the next ones of the same size, so keep it while there is more to draw.
    `longest_prompt`: of all batches to come, so that what is drawn from one does not depend on those before it.
    """

    def __init__(self, teacher: Teacher, *, max_tokens: int, temperature: float = 1.0, longest_prompt: int = 1) -> None:
        if max_tokens < 1:
            raise ValueError(f"max_tokens is {max_tokens}, but must be at least 1")
        if not (temperature > 0 and math.isfinite(temperature)):
            raise ValueError(f"temperature is {temperature}, but must be finite and above 0")
        self._teacher, self._longest_prompt = teacher, longest_prompt
        self._manner = SamplingConfig(max_tokens, teacher.tokenizer.vocab_size, teacher.tokenizer.eos_id, temperature)
        # On a CPU static buffers have no advantage, and removing finished rows saves work.
        self._may_fix = teacher.device.type == "cuda" and can_be_fixed(teacher.model)
        self._writer: StaticCacheGenerator | None = None

    def __call__(self, prompts: Sequence[Sequence[int]], generator: torch.Generator) -> Drawn:
        """One text for every prompt; the generator is on the teacher's device."""
        if not prompts:
            raise ValueError("0 prompts, at least 1 is needed")
        model, read = self._teacher.model, _left_padded(prompts, self._teacher.device)
        if self._writer is not None and not self._writer.fits(read):
            self._writer = None
        if self._writer is None:
            self._require_memory(read)
        before = generator.get_state()
        if self._may_fix:
            try:
                return self._fixed(read).write(read, generator)
            except (torch.OutOfMemoryError, BrokenModelError):
                raise
            # Any model may be given, and it may raise anything where it does not take fixed buffers.
            except Exception as error:
                warnings.warn(f"{self._teacher.name} is drawn from the slow way: {error!r}", stacklevel=2)
                self._may_fix, self._writer = False, None
                generator.set_state(before)
        return write_growing(model, read, self._manner, generator)

    def _fixed(self, prompts: Prompts) -> StaticCacheGenerator:
        if self._writer is None:
            num, width = prompts.ids.shape
            self._writer = StaticCacheGenerator(
                self._teacher.model, num, max(width, self._longest_prompt), self._manner
            )
        return self._writer

    def _require_memory(self, prompts: Prompts) -> None:
        num, width = len(prompts.ids), max(prompts.ids.shape[1], self._longest_prompt)
        device, row = self._teacher.device, bytes_per_row(self._teacher.model, width, self._manner)
        require_memory(
            num * row,
            f"{num:,} texts of {width} + {self._manner.max_tokens:,} tokens by {self._teacher.name}",
            f"draw at most {available_bytes(device) // row:,} side by side, or make max_tokens smaller",
            device,
        )


def draw_texts(
    teacher: Teacher,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    temperature: float = 1.0,
    generator: torch.Generator,
) -> Drawn:
    """One text for every prompt, up to EOS or `max_tokens`; for more than one batch keep a `TextDrawer`."""
    return TextDrawer(teacher, max_tokens=max_tokens, temperature=temperature)(prompts, generator)


def _left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> Prompts:
    width = max(len(prompt) for prompt in prompts)
    ids = torch.zeros(len(prompts), width, dtype=torch.int64)
    attended = torch.zeros(len(prompts), width, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        attended[row, width - len(prompt) :] = 1
    return Prompts(ids.to(device), attended.to(device))
