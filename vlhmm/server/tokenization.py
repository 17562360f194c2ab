"""Between text and token ids, as vLLM answers it and the remote tokenizer of lm-evaluation-harness asks it."""

from __future__ import annotations

from typing import Any

from vlhmm.server.answering import Asked
from vlhmm.server.completion_request import check_lengths, check_model, token_lists
from vlhmm.server.service import Service


async def tokenize(service: Service, asked: Asked) -> dict[str, Any]:
    """`POST /tokenize`. The name of the EOS token by itself is that token; within a text it is text."""
    fields, tokenizer, settings = asked.fields, service.tokenizer, service.settings
    check_model(fields, settings)
    prompt = fields.text("prompt")
    # No token is special enough to be added.
    fields.flag("add_special_tokens")
    with_names = fields.flag("return_token_strs")
    eos = tokenizer.eos_id
    if eos is not None and prompt == tokenizer.token(eos):
        ids = [eos]
    else:
        ids = (await asked.parsed(lambda: token_lists(fields, "prompt", tokenizer, settings)))[0]
    found: dict[str, Any] = {"count": len(ids), "max_model_len": settings.max_length, "tokens": ids}
    if with_names:
        found["token_strs"] = [tokenizer.token(token) for token in ids]
    return {**found, "warnings": fields.warnings()}


async def detokenize(service: Service, asked: Asked) -> dict[str, Any]:
    """`POST /detokenize`."""
    fields, tokenizer = asked.fields, service.tokenizer
    check_model(fields, service.settings)
    ids = fields.raw("tokens")
    if not isinstance(ids, list) or any(not isinstance(one, int) or isinstance(one, bool) for one in ids):
        raise fields.error("tokens", "must be a list of token ids")
    wrong = next((one for one in ids if not 0 <= one < tokenizer.vocab_size), None)
    if wrong is not None:
        raise fields.error("tokens", f"has {wrong}, but ids are between 0 and {tokenizer.vocab_size - 1}")
    if ids:
        check_lengths("tokens", [ids], service.settings)
    text = await asked.parsed(lambda: tokenizer.decode(ids))
    return {"prompt": text, "warnings": fields.warnings()}


def tokenizer_info(service: Service) -> dict[str, Any]:
    """`GET /tokenizer_info`. A text begins after EOS, so there is no BOS beside it."""
    tokenizer = service.tokenizer

    def name(token: int | None) -> str | None:
        return None if token is None else tokenizer.token(token)

    return {
        "tokenizer_class": "Tokenizer",
        "vocab_size": tokenizer.vocab_size,
        "model_max_length": service.settings.max_length,
        "bos_token": None,
        "eos_token": name(tokenizer.eos_id),
        "unk_token": name(tokenizer.unk_id),
        "pad_token": None,
        "chat_template": None,
    }
