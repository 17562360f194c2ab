"""What a client asks of `/v1/completions`, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vlhmm.control import Constraint
from vlhmm.control.generate import MIN_TEMPERATURE, Choice
from vlhmm.data import Tokenizer
from vlhmm.server.constraint_fields import asked_constraint
from vlhmm.server.errors import RequestError, shown
from vlhmm.server.fields import Fields
from vlhmm.server.settings import ServerSettings

GREEDY = Choice(top_k=1)
MAX_LOGPROBS = 20
WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "suffix": ("",),
    "min_p": (0,),
    "min_tokens": (0,),
}
"""Fields of other servers, and the values at which they do nothing; with any other value they are ignored with a warning."""


@dataclass(frozen=True)
class CompletionRequest:
    """What is to be written."""

    prompts: list[list[int]]
    max_tokens: int
    num: int
    """Continuations of each prompt."""
    choice: Choice
    seed: int | None
    stop: tuple[str, ...]
    logprobs: int | None
    """Most likely tokens that are named for each position; None: no log-probabilities."""
    echo: bool
    stream: bool
    include_usage: bool
    constraint: Constraint | None
    warnings: list[str]


def completion_request(fields: Fields, tokenizer: Tokenizer, settings: ServerSettings) -> CompletionRequest:
    """Read a request; raises `RequestError` where it cannot be answered."""
    check_model(fields, settings)
    fields.raw("user")
    prompts = token_lists(fields, "prompt", tokenizer, settings)
    num = fields.integer("n", 1, 1, settings.max_texts)
    if num * len(prompts) > settings.max_texts:
        raise RequestError(
            f"n is {num} for {len(prompts)} prompts: {num * len(prompts)} choices, but the limit is {settings.max_texts}",
            param="n",
        )
    echo = fields.flag("echo")
    max_tokens = fields.integer("max_tokens", 16, 0, settings.max_tokens)
    if not max_tokens and not echo:
        raise RequestError(
            "max_tokens is 0, and nothing is written: ask for at least 1, or use echo", param="max_tokens"
        )
    stop = fields.texts("stop", settings.max_stop)
    if "" in stop:
        raise RequestError("stop has an empty text (0 characters): give longer ones", param="stop")
    stream = fields.flag("stream")
    options = fields.object("stream_options")
    if options is not None and not stream:
        raise RequestError("stream_options are given without stream: use stream=true", param="stream_options")
    constraint, warnings = asked_constraint(fields)
    if constraint is not None and stop:
        raise RequestError(
            "stop and a constraint are given together, but a text cut off at a stop string may violate the constraint: "
            "leave one out",
            param="stop",
        )
    request = CompletionRequest(
        prompts,
        max_tokens,
        num,
        _choice(fields, tokenizer),
        fields.optional_integer("seed", -(1 << 63), (1 << 64) - 1),
        tuple(stop),
        fields.optional_integer("logprobs", 0, MAX_LOGPROBS),
        echo,
        stream,
        options is not None and options.flag("include_usage"),
        constraint,
        warnings,
    )
    for name, neutral in WITHOUT_EFFECT.items():
        value = fields.raw(name)
        if value is not None and value not in neutral:
            warnings.append(f"{name} has no effect here and was ignored")
    warnings += ([] if options is None else options.warnings()) + fields.warnings()
    return request


def check_model(fields: Fields, settings: ServerSettings) -> None:
    name = fields.text("model", settings.model_name)
    if name != settings.model_name:
        raise RequestError(
            f"the model {shown(name)} is not served here: use {shown(settings.model_name)}, or leave the field out",
            404,
            param="model",
            code="model_not_found",
        )


def _choice(fields: Fields, tokenizer: Tokenizer) -> Choice:
    temperature = fields.number("temperature", 1.0, 0.0, 100.0)
    # -1 is vLLM's way, 0 that of others, to say: all.
    top_k = fields.integer("top_k", -1, -1, (1 << 31) - 1)
    top_p = fields.number("top_p", 1.0, 0.0, 1.0)
    if top_p == 0:
        raise RequestError(
            "top_p is 0, but must be above 0: use temperature 0 for the most likely token", param="top_p"
        )
    if temperature == 0:
        return GREEDY
    try:
        return Choice(
            max(temperature, MIN_TEMPERATURE),
            top_k if 0 < top_k < tokenizer.vocab_size else None,
            top_p if top_p < 1 else None,
        )
    except ValueError as error:
        raise RequestError(str(error)) from None


def token_lists(fields: Fields, key: str, tokenizer: Tokenizer, settings: ServerSettings) -> list[list[int]]:
    """A text, texts, token ids or lists of token ids, as lists of token ids."""
    value = fields.raw(key)
    if value is None:
        value = ""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not value:
        raise fields.error(
            key, f"is {shown(value)}, but a text, a list of texts, token ids or lists of token ids are needed"
        )
    if _is_id(value[0]):
        value = [value]
    if len(value) > settings.max_texts:
        raise fields.error(key, f"has {len(value)} texts, but the limit is {settings.max_texts}")
    if isinstance(value[0], str):
        texts = [fields.checked_text(key, one) for one in value]
        _check_characters(key, texts, settings)
        try:
            lists = tokenizer.encode_batch(texts)
        except ValueError as error:
            raise fields.error(key, f"cannot be read: {error}") from None
    else:
        lists = [_checked_ids(fields, key, one, tokenizer) for one in value]
    check_lengths(key, lists, settings)
    return lists


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _checked_ids(fields: Fields, key: str, ids: Any, tokenizer: Tokenizer) -> list[int]:
    if not isinstance(ids, list) or not all(map(_is_id, ids)):
        raise fields.error(key, f"has {shown(ids)}, but all of it must be texts, or all of it lists of token ids")
    wrong = next((token for token in ids if not 0 <= token < tokenizer.vocab_size), None)
    if wrong is not None:
        raise fields.error(key, f"has token {shown(wrong)}, but ids are between 0 and {tokenizer.vocab_size - 1}")
    return ids


def _check_characters(key: str, texts: list[str], settings: ServerSettings) -> None:
    """A token may have many characters, but a text beyond this is not worth being read."""
    longest = max(map(len, texts))
    if longest > 64 * settings.max_length:
        raise RequestError(
            f"{key} has a text of {longest} characters, but the limit is {64 * settings.max_length}: cut it", param=key
        )


def check_lengths(key: str, lists: list[list[int]], settings: ServerSettings) -> None:
    longest, total = max(map(len, lists)), sum(map(len, lists))
    if longest > settings.max_length:
        raise RequestError(
            f"{key} has a text of {longest} tokens, but the limit is {settings.max_length}: cut it",
            param=key,
            code="context_length_exceeded",
        )
    if total > settings.max_total_length:
        raise RequestError(
            f"{key} has {total} tokens in all, but the limit is {settings.max_total_length}: send several requests",
            param=key,
        )
