"""Continuations of several prompts, drawn side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.arguments import as_generator, check_count
from vlhmm.control.generate import BATCH_BYTES, Choice
from vlhmm.hmm import HMM
from vlhmm.inference.past import Past
from vlhmm.inference.predict import PreciseNextTokens, min_certain, without_token
from vlhmm.inference.sampling import Generators, exponential_noise, require_drawn
from vlhmm.tables import Belief

DEFAULT_TOKENS = 50


@dataclass(frozen=True)
class Wanted:
    """What is to be drawn after each prompt."""

    max_tokens: int
    num: int
    choice: Choice


def wanted_texts(
    *,
    max_tokens: int | None,
    num: int | None,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    max_new_tokens: int | None,
    num_return_sequences: int | None,
    do_sample: bool | None,
) -> Wanted:
    """The arguments of `LanguageModel.generate`, among them other names for the same; those that contradict each other are refused."""
    if max_tokens is not None and max_new_tokens is not None:
        raise ValueError(
            f"max_tokens is {max_tokens!r} and max_new_tokens {max_new_tokens!r}, which are two names of one limit: give one"
        )
    if num is not None and num_return_sequences is not None:
        raise ValueError(
            f"num is {num!r} and num_return_sequences {num_return_sequences!r}, which are two names of one number: give one"
        )
    if do_sample is not None and not isinstance(do_sample, bool):
        raise ValueError(f"do_sample is {do_sample!r}, but True, False or None is needed")
    if max_new_tokens is not None:
        limit = check_count("max_new_tokens", max_new_tokens)
    else:
        limit = check_count("max_tokens", DEFAULT_TOKENS if max_tokens is None else max_tokens)
    if num_return_sequences is not None:
        texts = check_count("num_return_sequences", num_return_sequences)
    else:
        texts = check_count("num", 1 if num is None else num)
    if do_sample is False:
        if temperature != 1 or top_k not in (None, 1) or top_p is not None:
            given = [f"temperature={temperature}"] if temperature != 1 else []
            given += [f"{name}={value}" for name, value in (("top_k", top_k), ("top_p", top_p)) if value is not None]
            raise ValueError(
                f"do_sample=False takes the most likely token each time, so {', '.join(given)} would change nothing: leave it out"
            )
        if texts > 1:
            raise ValueError(f"do_sample=False has one text for each prompt, but {texts} are asked for: use num=1")
        top_k = 1
    return Wanted(limit, texts, Choice(temperature, top_k, top_p))


def generators_of(seed: Any, num_texts: int, device: torch.device) -> Generators:
    """One generator for all texts, or one for each."""
    if not isinstance(seed, list | tuple):
        return [as_generator(seed, None, device)]
    if len(seed) != num_texts:
        raise ValueError(
            f"seed has {len(seed)} generators or numbers, but there are {num_texts} prompts: give one for each"
        )
    found: list[torch.Generator] = []
    for one in seed:
        draws = as_generator(one, None, device)
        if draws is None:
            raise ValueError("seed has None in it, but a number or a torch.Generator is needed for each prompt")
        found.append(draws)
    return found


def draw_texts(
    hmm: HMM, past: Past, wanted: Wanted, generators: Generators, eos_id: int | None, never: int | None
) -> list[list[int]]:
    """Continuations of each text of `past`, up to EOS or `max_tokens` tokens; those of one text are side by side.

    Each token is drawn given that it is not `never`.
    """
    tables = hmm.tables
    per_text = 8 * (tables.num_words + tables.num_states) * tables.log_emission.element_size()
    at_once = max(1, BATCH_BYTES // (wanted.num * per_text))
    texts: list[list[int]] = []
    for first in range(0, past.num, at_once):
        own = generators if len(generators) == 1 else generators[first : first + at_once]
        places = range(first, min(first + at_once, past.num)) if past.num > 1 else None
        texts += _draw_batch(hmm, past.of(slice(first, first + at_once)), wanted, own, eos_id, never, places)
    return texts


def _draw_batch(
    hmm: HMM,
    past: Past,
    wanted: Wanted,
    generators: Generators,
    eos_id: int | None,
    never: int | None,
    places: Sequence[int] | None,
) -> list[list[int]]:
    tables, choice, total = hmm.tables, wanted.choice, past.num * wanted.num
    max_tokens = wanted.max_tokens
    # Copies of the probabilities of all words, which top_p sorts; the belief; the transition tiles of one step, at most
    # one a text; the tokens in a list.
    words = (6 if choice.top_p is None else 12) * tables.num_words
    support = tables.support
    states = 6 * (support.num_states + support.states_per_word)
    size = tables.log_emission.element_size()
    tiles = 0 if support.num_groups == 1 else min(total, support.num_groups**2)
    require_drawn(
        total,
        (words + states) * size + 16 * max_tokens,
        f"{total:,} texts of up to {max_tokens:,} tokens over {tables.num_words:,} words",
        tables.device,
        fixed=3 * tiles * support.states_per_word**2 * size,
    )
    past = past.of(torch.arange(past.num).repeat_interleave(wanted.num))
    owner = [row // wanted.num for row in range(total)]
    texts: list[list[int]] = [[] for _ in range(total)]
    going = torch.arange(total, device=tables.device)
    precise = PreciseNextTokens(tables)
    for left in range(max_tokens, 0, -1):
        asked = None if places is None else [places[owner[row]] for row in going.tolist()]
        probs = past.ask(lambda rows, belief: hmm.next_token_probs(belief).expand(len(rows), -1))
        precisely = past.of_rows(precise)
        log_probs = without_token(probs, never, asked, precisely).log()
        if choice.temperature > 1:
            # It lifts what is beneath every float to what is drawn.
            rows = (probs < min_certain(probs.dtype)).any(1).nonzero()[:, 0]
            if rows.numel():
                log_probs[rows] = _without(precisely(rows), never).to(log_probs.dtype)
        del probs
        # Noise for every text, ended or not: what a text becomes does not depend on where the others end.
        noise = exponential_noise(log_probs.new_empty(total, tables.num_words), owner, generators)
        token = (choice.log_weights(log_probs) - noise[going].log()).argmax(-1)
        drawn: list[int] = token.tolist()
        for row, one in zip(going.tolist(), drawn, strict=True):
            texts[row].append(one)
        goes_on = [place for place, one in enumerate(drawn) if one != eos_id]
        if not goes_on or left == 1:
            break
        if len(goes_on) < len(drawn):
            going, token, past = going[goes_on], token[goes_on], past.of(goes_on)
        past = _continued(hmm, past, token)
    return texts


def _without(log_probs: Float[Tensor, "R X"], never: int | None) -> Float[Tensor, "R X"]:
    if never is None:
        return log_probs
    others = log_probs.clone()
    others[:, never] = -torch.inf
    return others - others.logsumexp(1, keepdim=True)


def _continued(hmm: HMM, past: Past, token: Int[Tensor, " N"]) -> Past:
    """One token later."""
    log_probs = past.ask(lambda rows, belief: hmm.filter(token[rows, None], belief=belief).belief.log_probs)
    return Past(torch.ones_like(past.begun), Belief(token, log_probs))
