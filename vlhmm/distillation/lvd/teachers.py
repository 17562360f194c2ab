"""Models whose contextual vectors give an HMM its first states: our own decoders, and language models of Hugging Face."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.data import Tokenizer
from vlhmm.data.json_file import read_json_object
from vlhmm.distillation.decoder import is_decoder_folder, load_decoder
from vlhmm.distillation.teachers import Teacher, load_teacher
from vlhmm.distillation.teachers.model import looks_like_path, require_transformers
from vlhmm.training.checkpoint import CONFIG

LEFT_AND_RIGHT = "ForMaskedLM"
"""How the architectures end that read a text from both sides."""


@runtime_checkable
class VectorTeacher(Protocol):
    """What distillation needs from a model: a vector for every token in its context."""

    @property
    def name(self) -> str: ...

    @property
    def num_words(self) -> int: ...

    @property
    def num_layers(self) -> int:
        """Layers from 1 to this one can be asked for; 0 are the embeddings."""
        ...

    @property
    def longest(self) -> int:
        """Tokens that it can read at once."""
        ...

    @property
    def sees_ahead(self) -> bool:
        """Whether a vector knows the tokens after its own."""
        ...

    @property
    def device(self) -> torch.device: ...

    def hidden(self, tokens: Int[Tensor, "B T"], layer: int) -> Float[Tensor, "B N D"]:
        """The vectors of a token that begins a text and of the T tokens after it: N = T + 1."""
        ...


@dataclass(frozen=True)
class PretrainedTeacher:
    """A causal or masked language model of transformers."""

    name: str
    model: Any
    num_words: int
    begin_id: int
    end_id: int | None
    """Masked models read a token behind the text too."""
    sees_ahead: bool

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def num_layers(self) -> int:
        return int(self.model.config.num_hidden_layers)

    @property
    def longest(self) -> int:
        limit = getattr(self.model.config, "max_position_embeddings", None)
        # RoBERTa and its kin count positions from behind the padding token on; two more are for the frame.
        return 1 << 62 if limit is None else int(limit) - 4

    @torch.no_grad()
    def hidden(self, tokens: Int[Tensor, "B T"], layer: int) -> Float[Tensor, "B N D"]:
        frame = [torch.full_like(tokens[:, :1], self.begin_id), tokens]
        if self.end_id is not None:
            frame.append(torch.full_like(tokens[:, :1], self.end_id))
        ids = torch.cat(frame, dim=1)
        last = layer in (-1, self.num_layers)
        # The body without the output layer: logits over the vocabulary would be the largest tensor.
        read = self.model.base_model(
            input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=not last, return_dict=True
        )
        vectors: Tensor = read.last_hidden_state if last else read.hidden_states[layer]
        return vectors[:, : tokens.shape[1] + 1].float()

    def output_matrix(self) -> Float[Tensor, "X D"]:
        """A vector for every word, as `vlhmm.models.set_word_embeddings` takes them."""
        layer = self.model.get_output_embeddings()
        if layer is None:
            raise ValueError(f"{self.name} has no output layer of one matrix: its words have no vectors to give")
        matrix: Tensor = layer.weight.detach()[: self.num_words].float()
        return matrix


def vector_teacher(teacher: Teacher) -> PretrainedTeacher:
    """A causal language model at hand, asked for its vectors."""
    return PretrainedTeacher(
        teacher.name,
        teacher.model,
        teacher.tokenizer.vocab_size,
        teacher.prompt_ids(None)[0][0],
        end_id=None,
        sees_ahead=False,
    )


def load_vector_teacher(name: str, tokenizer: Tokenizer, device: torch.device | str = "cpu") -> VectorTeacher:
    """The teacher of that name: a folder of `save_decoder`, or a causal or masked LM as `load_teacher` finds it.

    Refused unless its vocabulary is that of `tokenizer`.
    """
    teacher, own = teacher_and_tokenizer(name, device)
    require_vocabulary(name, own, tokenizer)
    return teacher


def teacher_and_tokenizer(name: str, device: torch.device | str = "cpu") -> tuple[VectorTeacher, Tokenizer]:
    """The teacher of that name and its own tokenizer, for text that is still to be tokenized."""
    if is_decoder_folder(Path(name)):
        return load_decoder(name, device)
    if _is_masked(name):
        return _load_masked(name, torch.device(device))
    teacher = load_teacher(name, device)
    return vector_teacher(teacher), teacher.tokenizer


def require_vocabulary(name: str, own: Tokenizer, tokenizer: Tokenizer) -> None:
    """Refuses a teacher that reads other tokens than those of a corpus."""
    if own.tokens() != tokenizer.tokens():
        raise ValueError(
            f"the corpus has {tokenizer.vocab_size} tokens ({tokenizer.hash[:12]}), {name} has {own.vocab_size} "
            f"({own.hash[:12]}), and they differ: prepare the text with the teacher's own tokenizer"
        )


def _is_masked(name: str) -> bool:
    config = Path(name) / CONFIG
    if config.is_file():
        architectures = read_json_object(config).get("architectures") or []
        return any(str(architecture).endswith(LEFT_AND_RIGHT) for architecture in architectures)
    # Files of packages and .gguf are causal; of a name on the hub its configuration tells.
    if Path(name).exists() or "/" not in name or looks_like_path(name):
        return False
    require_transformers()
    from transformers import AutoConfig

    try:
        architectures = AutoConfig.from_pretrained(name).architectures or []
    except (OSError, ValueError) as error:
        raise ValueError(f"{name} cannot be loaded as a language model: {error}") from error
    return any(architecture.endswith(LEFT_AND_RIGHT) for architecture in architectures)


def _load_masked(name: str, device: torch.device) -> tuple[PretrainedTeacher, Tokenizer]:
    require_transformers()
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    try:
        text_tokenizer: Any = AutoTokenizer.from_pretrained(name)
        model: Any = AutoModelForMaskedLM.from_pretrained(
            name, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32
        )
    except ImportError as error:
        raise ValueError(f'{name} needs a package that is missing ({error}): pip install "vlhmm[llm]"') from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{name} cannot be loaded as a masked language model: {error}") from error
    backend = getattr(text_tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"{name} has a tokenizer without tokenizer.json: convert it with transformers first")
    own = Tokenizer.from_backend(backend)
    begin = text_tokenizer.cls_token_id if text_tokenizer.cls_token_id is not None else text_tokenizer.bos_token_id
    end = text_tokenizer.sep_token_id if text_tokenizer.sep_token_id is not None else text_tokenizer.eos_token_id
    if begin is None or end is None:
        raise ValueError(f"{name} has no tokens that begin and end a text: give its tokenizer a CLS and a SEP token")
    teacher = PretrainedTeacher(name, model.to(device).eval(), own.vocab_size, begin, end, sees_ahead=True)
    return teacher, own
