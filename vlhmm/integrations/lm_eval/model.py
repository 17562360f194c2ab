"""A model of this package as lm-evaluation-harness asks it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs
except ModuleNotFoundError as missing:
    raise ValueError(f'lm-evaluation-harness needs {missing.name}: pip install "vlhmm[eval]"') from None

from vlhmm.arguments import check_count
from vlhmm.control.generate import Choice
from vlhmm.control.product import TransitionMatrix
from vlhmm.lm import load
from vlhmm.server.jobs import Choices, Reading, Writing
from vlhmm.server.next_tokens import NextTokens
from vlhmm.server.reading import Reader
from vlhmm.server.texts import Stops, Writer
from vlhmm.server.writing import Scribe
from vlhmm.tables import Belief

Request = tuple[Any, list[int], list[int]]
"""What a result is cached under, the tokens of a context, and those of its continuation."""


@register_model("vlhmm")
class VlhmmLM(TemplateLM):  # type: ignore[misc]
    """A model folder, as `--model vlhmm --model_args pretrained=FOLDER` names it.

    A text begins after EOS, as everywhere in this package. There is no longest text: a document is scored in one piece, whatever
    its length, so that its perplexity is exact.

    Args:
        pretrained: The folder.
        device: Where the model is placed. The harness says cuda:0 unless told otherwise; without a GPU that is the CPU.
        batch_size: Texts that are computed side by side; `auto` is 64.
        max_gen_toks: New tokens of a text where a task does not say.
        seed: Of the random numbers of tasks that sample.
        **_: Settings of the harness that mean nothing here.
    """

    def __init__(
        self,
        pretrained: str,
        device: str | None = None,
        batch_size: int | str | None = 64,
        max_gen_toks: int = 256,
        seed: int = 1234,
        **_: Any,
    ) -> None:
        super().__init__()
        self._lm = load(pretrained, device if device and torch.cuda.is_available() else "cpu")
        size = "auto" if batch_size is None else str(batch_size)
        self._batch_size = 64 if size.startswith("auto") else check_count("batch_size", int(size))
        self._max_gen_toks, self._seed = int(max_gen_toks), int(seed)
        tables, tokenizer = self._lm.hmm.tables, self._lm.tokenizer
        following = NextTokens(tables, TransitionMatrix(tables))
        self._reader = Reader(tables, following)
        self._scribe = Scribe(following, self._lm.opening, tokenizer.eos_id, tokenizer.undrawn_id)

    @property
    def eot_token_id(self) -> int | None:
        """The EOS token: a context that is empty is the end of the text before."""
        return self._lm.tokenizer.eos_id

    @property
    def tokenizer_name(self) -> str:
        """What results are cached under."""
        return self._lm.tokenizer.hash

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids of a text; no special token is added."""
        return self._lm.tokenizer.encode(string)

    def _loglikelihood_tokens(self, requests: Sequence[Request], **ignored: Any) -> list[tuple[float, bool]]:
        """log p(continuation | context), and whether each of its tokens is the most likely one."""
        # A context is read once, however many continuations it has.
        contexts = sorted({tuple(context) for _, context, _ in requests})
        after = {
            tuple(one.ids): one.belief for one in self._read([Reading(_discard, *self._begun(ids)) for ids in contexts])
        }
        asked = [
            Reading(_discard, list(continuation), after[tuple(self._begun(context)[0])], top=1)
            for _, context, continuation in requests
        ]
        found = [
            (
                math.fsum(one.log_probs),
                all(value == max(dict(top).values()) for value, top in zip(one.log_probs, one.tops, strict=True)),
            )
            for one in self._read(asked)
        ]
        for (key, _, _), answer in zip(requests, found, strict=True):
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, answer)
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """log p(document) of each, in one piece."""
        texts = [request.args[0] for request in requests]
        documents = [Reading(_discard, ids, self._lm.opening) for ids in self._lm.tokenizer.encode_batch(texts)]
        found = [math.fsum(one.log_probs) for one in self._read(documents)]
        for text, log_prob in zip(texts, found, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), log_prob)
        return found

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """A continuation of each context, up to one of its stop strings, EOS or a number of tokens."""
        texts: list[str] = []
        for some in _batches(requests, self._batch_size):
            prompts = self._lm.tokenizer.encode_batch([request.args[0] for request in some])
            begun = [Reading(_discard, *self._begun(ids)) for ids in prompts]
            self._read(begun)
            writings = [
                self._writing(ids, one.belief, request.args[1])
                for ids, one, request in zip(prompts, begun, some, strict=True)
            ]
            while going := [one for one in writings if one.going()]:
                self._scribe.step(going)
            for request, writing in zip(some, writings, strict=True):
                texts.append(writing.rows[0].text)
                self.cache_hook.add_partial("generate_until", request.args, texts[-1])
        return texts

    def _writing(self, prompt: list[int], belief: Belief | None, settings: dict[str, Any]) -> Writing:
        asked = normalize_gen_kwargs(settings, self._max_gen_toks)
        stops = [stop for stop in handle_stop_sequences(asked.get("until"), eos=None) if stop]
        temperature = float(asked.get("temperature", 0.0))
        choice = Choice(temperature, asked.get("top_k"), asked.get("top_p")) if temperature > 0 else Choice(top_k=1)
        device = self._lm.hmm.tables.device
        row = Choices(Writer(self._lm.tokenizer, prompt), Stops(stops) if stops else None, belief)
        generator = torch.Generator(device).manual_seed(self._seed)
        return Writing(_discard, prompt, belief, [row], asked["max_gen_toks"], choice, generator, None)

    def _begun(self, ids: Sequence[int | None]) -> tuple[list[int], Belief | None]:
        """The tokens of a context, and the belief before them. An EOS at its beginning is the one that every text follows."""
        tokens = [token for token in ids if token is not None]
        return tokens[bool(tokens) and tokens[0] == self._lm.tokenizer.eos_id :], self._lm.opening

    def _read(self, texts: list[Reading]) -> list[Reading]:
        """Reads all of them, those of similar length together."""
        for some in _batches(sorted(texts, key=lambda one: -one.left), self._batch_size):
            going = list(some)
            while going := [one for one in going if one.left]:
                self._reader.read(going)
        return texts


def _batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]


def _discard(_: Any) -> None:
    """Ignores the answer."""
