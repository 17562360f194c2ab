"""The description of the API, as OpenAPI 3.1 has it: what is sent, and what comes back."""

from __future__ import annotations

from typing import Any

from vlhmm._version import __version__
from vlhmm.control.count_constraints import MAX_COUNT
from vlhmm.server.constraint_fields import KEYS, MAX_PHRASES
from vlhmm.server.settings import ServerSettings

TEXT: dict[str, Any] = {"type": "string"}
NUMBER: dict[str, Any] = {"type": "number"}
FLAG: dict[str, Any] = {"type": "boolean"}
WARNINGS = {"type": "array", "items": TEXT, "description": "What was ignored, such as unknown fields."}


def _integer(low: int, high: int, about: str = "", default: int | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "integer", "minimum": low, "maximum": high}
    if about:
        found["description"] = about
    return found if default is None else {**found, "default": default}


def _texts(most: int, about: str = "") -> dict[str, Any]:
    return {"anyOf": [TEXT, {"type": "array", "items": TEXT, "maxItems": most}], "description": about}


def _object(properties: dict[str, Any], *required: str, about: str = "", closed: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        found["required"] = list(required)
    if about:
        found["description"] = about
    return {**found, "additionalProperties": False} if closed else found


def _list(of: dict[str, Any]) -> dict[str, Any]:
    return _object({"object": {"const": "list"}, "data": {"type": "array", "items": of}, "warnings": WARNINGS}, "data")


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def description(settings: ServerSettings) -> dict[str, Any]:
    """The whole description; its numbers are the limits of this server."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "vlhmm",
            "version": __version__,
            "description": "A hidden Markov language model: completions as OpenAI's API has them, and exact queries.",
        },
        "security": [{"key": []}] if settings.api_keys else [],
        "paths": _paths(settings),
        "components": {
            "schemas": _schemas(settings),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _paths(settings: ServerSettings) -> dict[str, Any]:
    posts = {
        "/v1/completions": ("Write continuations of prompts.", "CompletionRequest", _ref("Completion")),
        "/tokenize": ("Text to token ids.", "TokenizeRequest", _ref("Tokenized")),
        "/detokenize": ("Token ids to text.", "DetokenizeRequest", _ref("Detokenized")),
        "/v1/vlhmm/score": ("log p of each token.", "ScoreRequest", _list(_ref("Score"))),
        "/v1/vlhmm/next": ("The most likely next tokens.", "NextRequest", _list(_ref("NextTokens"))),
        "/v1/vlhmm/posterior": ("The most likely states of each token.", "PosteriorRequest", _list(_ref("Record"))),
        "/v1/vlhmm/viterbi": ("The most likely state paths.", "ViterbiRequest", _list(_ref("Record"))),
        "/v1/vlhmm/infill": ("What may stand in the gaps of a text.", "InfillRequest", _list(_ref("Record"))),
        "/v1/vlhmm/constraint_probability": (
            "The probability that the next tokens satisfy a constraint.",
            "ConstraintRequest",
            _list(_ref("ConstraintProbability")),
        ),
        "/v1/vlhmm/analyze": ("What the page shows of a text.", "AnalyzeRequest", _ref("Record")),
    }
    gets = {
        "/v1/models": ("The model.", _list(_ref("Model"))),
        f"/v1/models/{settings.model_name}": ("The model.", _ref("Model")),
        "/version": ("The version of vlhmm.", _object({"version": TEXT}, "version")),
        "/health": ("Whether requests are answered.", _object({"status": TEXT}, "status")),
        "/tokenizer_info": ("The tokenizer.", _ref("Record")),
        "/openapi.json": ("This description.", _ref("Record")),
    }
    paths = {path: {"post": _post(*what)} for path, what in posts.items()}
    paths |= {path: {"get": _operation(about, _json(answer), {})} for path, (about, answer) in gets.items()}
    plain = {"text/plain": {"schema": TEXT}}
    paths["/metrics"] = {"get": _operation("Counters for Prometheus.", plain, {})}
    # Before OpenAPI 3.2 the schema of a stream is that of each event.
    events = {"text/event-stream": {"schema": _ref("Event")}}
    paths["/v1/completions"]["post"]["responses"]["200"]["content"] |= events
    return paths


def _post(about: str, asked: str, answer: dict[str, Any]) -> dict[str, Any]:
    operation = _operation(about, _json(answer), _errors())
    return {**operation, "requestBody": {"required": True, "content": _json(_ref(asked))}}


def _operation(about: str, content: dict[str, Any], errors: dict[str, Any]) -> dict[str, Any]:
    ok = {"description": "The answer.", "content": content}
    return {"summary": about, "responses": {"200": ok, "401": _error("No valid API key."), **errors}}


def _errors() -> dict[str, Any]:
    said = {
        "400": "The request cannot be answered; the message says why.",
        "404": "No such model.",
        "408": "The body did not arrive in time.",
        "413": "The body is too long.",
        "429": "Too many requests at a time; `Retry-After` says when to try again.",
        "503": "Out of memory, or the server ends.",
        "504": "The request was not answered in time.",
    }
    return {status: _error(about) for status, about in said.items()}


def _error(about: str) -> dict[str, Any]:
    return {"description": about, "content": _json(_ref("Error"))}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _schemas(settings: ServerSettings) -> dict[str, Any]:
    model = {"type": "string", "enum": [settings.model_name]}
    texts = _queried(settings, r"\S", "One text or several, each with at least one token.")
    seed = _integer(-(1 << 63), (1 << 64) - 1, "The same seed draws the same texts.")
    return {
        "Error": _object(
            {
                "error": _object(
                    {
                        "message": TEXT,
                        "type": TEXT,
                        "param": {"type": ["string", "null"]},
                        "code": {"type": ["string", "null"]},
                    },
                    *("message", "type", "param", "code"),
                )
            },
            "error",
        ),
        "Record": {"type": "object", "description": "A record of the Python API as JSON."},
        "Model": _object({"id": TEXT, "object": {"const": "model"}, "max_model_len": {"type": "integer"}}, "id"),
        "Constraint": _constraint("ConstraintPart"),
        "ConstraintPart": _constraint(None),
        "CompletionRequest": _completion_request(settings, model, seed),
        "Completion": _completion(),
        "Event": _object(
            {
                "data": {
                    **TEXT,
                    "description": "JSON: a `Completion` with new text of one choice, without usage; after the choices, if asked "
                    "for, one without choices and with usage; an `Error` if the request fails while it is answered. "
                    "The last event is `[DONE]`.",
                }
            },
            "data",
            about="A server-sent event.",
        ),
        "TokenizeRequest": _object({"model": model, "prompt": TEXT, "return_token_strs": FLAG}, "prompt"),
        "Tokenized": _object(
            {"tokens": _ids(), "count": {"type": "integer"}, "max_model_len": {"type": "integer"}}, "tokens"
        ),
        "DetokenizeRequest": _object({"model": model, "tokens": _ids()}, "tokens"),
        "Detokenized": _object({"prompt": TEXT}, "prompt"),
        "ScoreRequest": _object({"model": model, "text": texts, "eos": FLAG}, "text"),
        "Score": _object({"text": TEXT, "log_prob": _nullable(NUMBER), "perplexity": _nullable(NUMBER)}, "log_prob"),
        "NextRequest": _object(
            {"model": model, "text": texts, "top": _integer(1, settings.max_top, default=10)}, "text"
        ),
        "NextTokens": _object({"text": TEXT, "next": {"type": "array", "items": _ref("Record")}}, "next"),
        "PosteriorRequest": _object({"model": model, "text": texts, "top": _integer(1, settings.max_top)}, "text"),
        "ViterbiRequest": _object({"model": model, "text": texts, "k": _integer(1, 100, "Paths.", 1)}, "text"),
        "InfillRequest": _object(
            {
                "model": model,
                "text": _queried(settings, "___", "`___` is a gap, `___{1,4}` one of one to four tokens."),
                "num": _integer(0, settings.max_texts, "Samples.", 5),
                "top": _integer(1, settings.max_top, "Tokens of each position.", 5),
                "gap": {"type": "array", "items": _integer(1, 20), "minItems": 2, "maxItems": 2},
                "eos": FLAG,
                "exclude": _texts(settings.max_texts, "Tokens that are never filled in."),
                "seed": seed,
            },
            "text",
        ),
        "ConstraintRequest": _object(
            {
                "model": model,
                "text": texts,
                "constraint": _ref("Constraint"),
                "length": _integer(1, settings.max_tokens, "Tokens that come next."),
                "until_eos": FLAG,
            },
            *("text", "constraint", "length"),
        ),
        "ConstraintProbability": _object({"text": TEXT, "constraint": TEXT, "probability": NUMBER}, "probability"),
        "AnalyzeRequest": _object(
            {
                "model": model,
                "text": {**TEXT, "pattern": r"\S", "description": f"Up to {settings.max_analysed_length} tokens."},
                "top": _integer(1, 10, default=4),
                "constraint": _ref("Constraint"),
            },
            "text",
        ),
    }


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "type": [schema["type"], "null"]}


def _ids() -> dict[str, Any]:
    return {"type": "array", "items": {"type": "integer", "minimum": 0}}


def _queried(settings: ServerSettings, pattern: str, about: str) -> dict[str, Any]:
    text = {**TEXT, "pattern": pattern}
    several = {"type": "array", "items": text, "minItems": 1, "maxItems": settings.max_texts}
    return {"anyOf": [text, several], "description": about}


def _constraint(part: str | None) -> dict[str, Any]:
    """A constraint object. It may be nested further than is described: clients choke on schemas that refer to themselves."""
    least, most = _integer(0, MAX_COUNT), _nullable(_integer(0, MAX_COUNT))
    pair = {"type": "array", "prefixItems": [least, most], "items": False, "minItems": 2, "maxItems": 2}
    bounds = {"anyOf": [least, pair]}
    phrase = {**TEXT, "minLength": 1}
    several_phrases = {"type": "array", "items": phrase, "minItems": 1, "maxItems": MAX_PHRASES}
    phrases = {"anyOf": [phrase, several_phrases]}
    nested: dict[str, Any] = {}
    if part is not None:
        several = {"type": "array", "items": _ref(part), "minItems": 1, "maxItems": MAX_PHRASES}
        nested = {"all": several, "any": several, "not": _ref(part)}
    described = _object(
        {
            "contains": {**phrases, "description": "All of these occur."},
            "contains_any": {**phrases, "description": "One of these occurs."},
            "in_order": {**phrases, "description": "These occur in this order."},
            "excludes": {**phrases, "description": "None of these occurs."},
            "starts_with": phrase,
            "ends_with": phrase,
            "words": {
                **bounds,
                "description": "Between so many words, the smaller number first; null: no limit. A number: so many.",
            },
            "length": {**bounds, "description": "Between so many tokens, as `words`."},
            "regex": {**TEXT, "description": "A regular expression that the whole text matches."},
            "choice": {**phrases, "description": "The text is one of these."},
            "json_schema": {"type": "object", "description": "The text is JSON of this schema."},
            **nested,
            "whole_words": {**FLAG, "default": True},
            "ignore_case": {**FLAG, "default": False},
        },
        about="What new text must satisfy: all of these, at least one.",
        closed=part is None,
    )
    known = [key for key in KEYS if key in described["properties"]]
    return {**described, "anyOf": [{"required": [key]} for key in known]}


def _completion_request(settings: ServerSettings, model: dict[str, Any], seed: dict[str, Any]) -> dict[str, Any]:
    schema = _object({"schema": {"type": "object"}, "name": TEXT, "strict": FLAG}, "schema")
    kinds = {"type": "string", "enum": ["text", "json_schema"]}
    return _object(
        {
            "model": model,
            "prompt": {
                "anyOf": [
                    TEXT,
                    {"type": "array", "items": TEXT, "minItems": 1, "maxItems": settings.max_texts},
                    {**_ids(), "minItems": 1},
                    {"type": "array", "items": _ids(), "minItems": 1, "maxItems": settings.max_texts},
                ],
                "description": "A text, texts, token ids, or lists of token ids.",
            },
            "max_tokens": _integer(0, settings.max_tokens, "New tokens; 0 only with echo.", 16),
            "n": _integer(1, settings.max_texts, "Continuations of each prompt.", 1),
            "temperature": {
                **NUMBER,
                "minimum": 0,
                "maximum": 100,
                "default": 1,
                "description": "0: the most likely token.",
            },
            "top_k": _integer(-1, (1 << 31) - 1, "Only the k most likely tokens; 0 and -1: all.", -1),
            "top_p": {**NUMBER, "exclusiveMinimum": 0, "maximum": 1, "default": 1},
            "seed": seed,
            "stop": _texts(settings.max_stop, "The text ends before the first of these."),
            "logprobs": _integer(0, 20, "Most likely tokens that are named for each position."),
            "echo": {**FLAG, "description": "Begin each choice with its prompt."},
            "stream": {**FLAG, "description": "Send server-sent events."},
            "stream_options": _object({"include_usage": FLAG}),
            "response_format": _object({"type": kinds, "json_schema": schema}, "type"),
            "guided_regex": TEXT,
            "guided_choice": _texts(MAX_PHRASES),
            "guided_json": {"type": "object"},
            "constraint": _ref("Constraint"),
            "user": TEXT,
        }
    )


def _completion() -> dict[str, Any]:
    values = {"type": "array", "items": {"type": ["number", "null"]}}
    log_probs = _object(
        {
            "tokens": {"type": "array", "items": TEXT},
            "token_logprobs": values,
            "top_logprobs": {"type": "array", "items": {"type": ["object", "null"]}},
            "text_offset": {"type": "array", "items": {"type": "integer"}},
        }
    )
    choice = _object(
        {
            "index": {"type": "integer"},
            "text": TEXT,
            "finish_reason": {"type": "string", "enum": ["stop", "length"]},
            "logprobs": {"anyOf": [log_probs, {"type": "null"}]},
            "constraint": _object({"probability": NUMBER, "log_prob": NUMBER}),
        },
        *("index", "text", "finish_reason"),
    )
    return _object(
        {
            "id": TEXT,
            "object": {"const": "text_completion"},
            "created": {"type": "integer"},
            "model": TEXT,
            "choices": {"type": "array", "items": choice},
            "usage": _ref("Record"),
            "warnings": WARNINGS,
        },
        *("id", "object", "choices", "usage"),
    )
