"""A causal language model of Hugging Face that an HMM learns from: how it is found, and how text is drawn from it."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vlhmm.data import Tokenizer
from vlhmm.decoding import (
    BrokenModelError,
    Drawn,
    FixedWriter,
    Manner,
    Prompts,
    bytes_per_row,
    can_be_fixed,
    write_growing,
)
from vlhmm.memory import available_bytes, require_memory


@dataclass(frozen=True)
class Teacher:
    name: str
    model: Any
    """A causal language model of transformers, in evaluation mode."""
    text_tokenizer: Any
    """Its own tokenizer, which knows the chat template."""
    tokenizer: Tokenizer
    """The same vocabulary as vlhmm reads it."""

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    def prompt_ids(self, prompts: Sequence[str] | None) -> list[list[int]]:
        """What the model reads before it writes: each prompt as a user's message where there is a chat template.

        None: one prompt, the token that begins a text.
        """
        text = self.text_tokenizer
        if prompts is None:
            first = text.bos_token_id if text.bos_token_id is not None else text.eos_token_id
            if first is None:
                raise ValueError(f"{self.name} has neither a BOS nor an EOS token to begin from: give prompts")
            return [[first]]
        if not prompts:
            raise ValueError("0 prompts, at least 1 is needed")
        if text.chat_template:
            prompts = self._as_messages(prompts)
        ids: list[list[int]] = text(list(prompts), add_special_tokens=not text.chat_template)["input_ids"]
        empty = next((number for number, row in enumerate(ids) if not row), None)
        if empty is not None:
            raise ValueError(f"prompt {empty} has 0 tokens, at least 1 is needed")
        return ids

    def _as_messages(self, prompts: Sequence[str]) -> list[str]:
        def rendered(prompt: str) -> str:
            message = [{"role": "user", "content": prompt}]
            text: str = self.text_tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
            return text

        # A template takes long to fill in, so it is done once where it keeps prompts as they are.
        mark = "\x00prompt\x00"
        before, found, after = rendered(mark).partition(mark)
        if found and rendered(prompts[0]) == before + prompts[0] + after:
            return [before + prompt.strip() + after for prompt in prompts]
        return [rendered(prompt) for prompt in prompts]


def load_teacher(name: str, device: torch.device | str = "cpu", tokenizer: Tokenizer | None = None) -> Teacher:
    """The causal LM of that name: a folder, a `.gguf` file, an installed package that carries one, or a name on the hub.

    bf16 on a GPU, float32 elsewhere. `tokenizer`: the one its vocabulary must be.
    """
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError:
        raise ValueError('a teacher needs transformers: pip install "vlhmm[llm]"') from None
    device = torch.device(device)
    where, options = _find(name)
    try:
        text_tokenizer = AutoTokenizer.from_pretrained(where, **options)
        model: Any = AutoModelForCausalLM.from_pretrained(
            where, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32, **options
        )
    except ImportError as error:
        raise ValueError(f'{name} needs a package that is missing ({error}): pip install "vlhmm[llm]"') from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{name} cannot be loaded as a causal language model: {error}") from error
    return teacher_of(name, model.to(device).eval(), text_tokenizer, tokenizer)


def teacher_of(name: str, model: Any, text_tokenizer: Any, tokenizer: Tokenizer | None = None) -> Teacher:
    """A teacher from a model and tokenizer at hand; `tokenizer`: the one its vocabulary must be."""
    backend = getattr(text_tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"{name} has a tokenizer without tokenizer.json: convert it with transformers first")
    eos = _end_of_text(model, text_tokenizer)
    own = Tokenizer.from_backend(backend, None if eos is None else backend.id_to_token(eos))
    if own.vocab_size > model.config.vocab_size:
        raise ValueError(
            f"{name} writes {model.config.vocab_size} tokens, but its tokenizer has {own.vocab_size}: they do not belong together"
        )
    if tokenizer is not None and tokenizer.tokens() != own.tokens():
        raise ValueError(
            f"the tokenizer given has {tokenizer.vocab_size} tokens ({tokenizer.hash[:12]}), that of {name} has "
            f"{own.vocab_size} ({own.hash[:12]}), and they differ: use the teacher's own"
        )
    return Teacher(name, model, text_tokenizer, own)


def _end_of_text(model: Any, text_tokenizer: Any) -> int | None:
    """The token at which the model itself stops; its tokenizer may name another, or none."""
    own: int | None = text_tokenizer.eos_token_id
    stops = model.generation_config.eos_token_id
    if stops is None:
        return own
    stops = [stops] if isinstance(stops, int) else list(stops)
    return own if own in stops else stops[0]


def _find(name: str) -> tuple[str, dict[str, str]]:
    """Where transformers loads it from, and with which options."""
    path = Path(name)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ValueError(f"{name} is a file, but not .gguf: give a folder, a .gguf file or a name on the hub")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        return name, {}
    # The package itself is not imported: it may need more than its file.
    package = importlib.util.find_spec(name.replace("-", "_")) if name.replace("-", "_").isidentifier() else None
    for folder in (package.submodule_search_locations or []) if package else []:
        files = sorted(Path(folder).glob("*.gguf"))
        if files:
            return folder, {"gguf_file": files[0].name}
    return name, {}


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
        self._manner = Manner(max_tokens, teacher.tokenizer.vocab_size, teacher.tokenizer.eos_id, temperature)
        # On a CPU nothing is gained by fixed places, and rows that have ended are better left out.
        self._may_fix = teacher.device.type == "cuda" and can_be_fixed(teacher.model)
        self._writer: FixedWriter | None = None

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

    def _fixed(self, prompts: Prompts) -> FixedWriter:
        if self._writer is None:
            num, width = prompts.ids.shape
            self._writer = FixedWriter(self._teacher.model, num, max(width, self._longest_prompt), self._manner)
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
