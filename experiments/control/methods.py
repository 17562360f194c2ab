"""Ways to make a language model keep to a constraint, and how likely it finds what comes of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import vlhmm
from experiments.control.sets import KeywordSet, satisfies
from vlhmm.control import Automaton, Constraint, TokenTexts, contains_all, words
from vlhmm.control.guide import Guide
from vlhmm.distillation.teachers import Teacher, draw_texts

SCORED_TOGETHER = 64


@dataclass(frozen=True)
class Output:
    number: int
    """Of the keyword set."""
    tokens: list[int]
    """EOS included where the text has ended."""
    text: str
    satisfied: bool
    """By the text, never by the automaton; a text that has not ended is none."""
    log_likelihood: float
    """Per token, by the language model alone, given the prompt."""


@dataclass
class Timer:
    seconds: float = 0.0
    calls: int = 0


@dataclass
class HardMask:
    """Only tokens after which the constraint can still be met in time; which of them, the language model says alone."""

    automata: Sequence[Automaton]
    """One for each row; they accept texts that end at EOS."""
    max_tokens: int
    prompt_width: int
    _states: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._states = [automaton.start for automaton in self.automata]
        self._distance = {id(automaton): automaton.shortest() for automaton in self.automata}

    def __call__(self, input_ids: Int[Tensor, "R T"], scores: Float[Tensor, "R X"]) -> Float[Tensor, "R X"]:
        written = input_ids.shape[1] - self.prompt_width
        if written:
            last = input_ids[:, -1].tolist()
            self._states = [
                int(automaton.next_state[state, automaton.class_of_token[token]])
                for automaton, state, token in zip(self.automata, self._states, last, strict=True)
            ]
        left = self.max_tokens - written - 1
        allowed = torch.stack([self._allowed(row, left) for row in range(len(self.automata))]).to(scores.device)
        masked = torch.full_like(scores, -torch.inf)
        # An output layer may be wider than the vocabulary.
        num_words = allowed.shape[1]
        masked[:, :num_words] = scores[:, :num_words].masked_fill(~allowed, -torch.inf)
        return masked

    def _allowed(self, row: int, left: int) -> Bool[Tensor, " X"]:
        automaton = self.automata[row]
        in_time = self._distance[id(automaton)][automaton.next_state[self._states[row]]] <= left
        return in_time[automaton.class_of_token]


def constraint_of(keywords: KeywordSet) -> Constraint:
    constraint = contains_all(*keywords.items, ignore_case=True)
    return constraint if keywords.words is None else constraint & words(*keywords.words)


def written_by(
    teacher: Teacher,
    prompts: list[list[int]],
    max_tokens: int,
    processors: Sequence[Any],
    seed: int,
    *,
    ends: bool = True,
) -> list[list[int]]:
    """What `generate` gives at temperature 1, up to EOS and with it; `ends`: EOS ends a text."""
    from transformers import LogitsProcessorList

    ids, attended = left_padded(prompts, teacher.device)
    torch.manual_seed(seed)
    made = teacher.model.generate(
        input_ids=ids,
        attention_mask=attended,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=max_tokens,
        # No token has the number after the last.
        eos_token_id=teacher.tokenizer.eos_id if ends else teacher.model.config.vocab_size,
        pad_token_id=teacher.tokenizer.eos_id,
        logits_processor=LogitsProcessorList(processors),
    )
    return [until_eos(row, teacher.tokenizer.eos_id) for row in made[:, ids.shape[1] :].tolist()]


def left_padded(
    prompts: Sequence[Sequence[int]], device: torch.device
) -> tuple[Int[Tensor, "R T"], Int[Tensor, "R T"]]:
    reversed_ids = [torch.tensor(list(reversed(prompt))) for prompt in prompts]
    attended = [torch.ones_like(row) for row in reversed_ids]
    ids, mask = (pad_sequence(rows, batch_first=True).flip(1).to(device) for rows in (reversed_ids, attended))
    return ids, mask


def until_eos(tokens: list[int], eos: int | None) -> list[int]:
    return tokens[: tokens.index(eos) + 1] if eos is not None and eos in tokens else tokens


def plain_texts(
    teacher: Teacher, sets: Sequence[KeywordSet], tries: int, rows: int, seed: int, timer: Timer
) -> list[Output]:
    """`tries` texts a set from the language model alone."""
    generator = torch.Generator(teacher.device).manual_seed(seed)
    outputs: list[Output] = []
    for max_tokens in sorted({keywords.max_tokens for keywords in sets}):
        numbers = [
            number for number, keywords in enumerate(sets) if keywords.max_tokens == max_tokens for _ in range(tries)
        ]
        for first in range(0, len(numbers), rows):
            part = numbers[first : first + rows]
            prompts = teacher.prompt_ids([sets[number].prompt for number in part])
            begun = time.perf_counter()
            drawn = draw_texts(teacher, prompts, max_tokens=max_tokens, generator=generator)
            texts = [row[:size] for row, size in zip(drawn.tokens.tolist(), drawn.lengths.tolist(), strict=True)]
            timer.seconds += time.perf_counter() - begun
            timer.calls += 1
            outputs += judged(teacher, sets, part, prompts, texts)
    return outputs


def controlled_texts(
    teacher: Teacher,
    sets: Sequence[KeywordSet],
    automata: Sequence[Automaton],
    processor: Callable[[Sequence[Automaton], int, int], Any],
    samples: int,
    sets_together: int,
    seed: int,
    timer: Timer,
) -> list[Output]:
    """`samples` texts a set under the logits processor that `processor(automata, max_tokens, prompt width)` makes."""
    outputs: list[Output] = []
    for max_tokens in sorted({keywords.max_tokens for keywords in sets}):
        numbers = [number for number, keywords in enumerate(sets) if keywords.max_tokens == max_tokens]
        for first in range(0, len(numbers), sets_together):
            part = numbers[first : first + sets_together]
            rows = [number for number in part for _ in range(samples)]
            prompts = teacher.prompt_ids([sets[number].prompt for number in rows])
            begun = time.perf_counter()
            made = processor([automata[number] for number in part], max_tokens, max(map(len, prompts)))
            texts = written_by(teacher, prompts, max_tokens, [made], seed + first)
            timer.seconds += time.perf_counter() - begun
            timer.calls += 1
            outputs += judged(teacher, sets, rows, prompts, texts)
    return outputs


def compiled(sets: Sequence[KeywordSet], tokenizer_file: Path, processes: int) -> list[Automaton]:
    """The automaton of every set, several at once: some take most of a second."""
    with ProcessPoolExecutor(processes, get_context("spawn"), _read_texts, (tokenizer_file,)) as pool:
        return list(pool.map(_compile, sets, chunksize=4))


_texts: list[TokenTexts] = []
"""Of a process that compiles."""


def _read_texts(tokenizer_file: Path) -> None:
    torch.set_num_threads(1)
    _texts.append(TokenTexts.of(vlhmm.Tokenizer.load(tokenizer_file)))


def _compile(keywords: KeywordSet) -> Automaton:
    return constraint_of(keywords).compile(_texts[0])


def guide_of(lm: vlhmm.LanguageModel, automata: Sequence[Automaton], max_tokens: int) -> Guide:
    """The HMM knows the answers alone, so it does not read the prompt."""
    return Guide(lm, automata, max_new_tokens=max_tokens, read_prompt=False, must_end=True)


def mask_of(eos: int, automata: Sequence[Automaton], max_tokens: int, prompt_width: int, samples: int) -> HardMask:
    ending = [automaton.ending_at(eos, required=True) for automaton in automata]
    return HardMask([automaton for automaton in ending for _ in range(samples)], max_tokens, prompt_width)


def judged(
    teacher: Teacher,
    sets: Sequence[KeywordSet],
    numbers: Sequence[int],
    prompts: Sequence[Sequence[int]],
    texts: Sequence[list[int]],
) -> list[Output]:
    """Each text with whether it does what was asked, and what the language model thinks of it."""
    outputs = []
    for number, tokens, score in zip(numbers, texts, log_likelihoods(teacher, prompts, texts), strict=True):
        ended = tokens[-1:] == [teacher.tokenizer.eos_id]
        text = teacher.text_tokenizer.decode(tokens[:-1] if ended else tokens)
        outputs.append(Output(number, tokens, text, ended and satisfies(sets[number], text), score / len(tokens)))
    return outputs


@torch.inference_mode()
def log_likelihoods(teacher: Teacher, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]) -> list[float]:
    """log p(text | prompt) by the language model, nothing masked, nothing guided."""
    found: list[float] = []
    for first in range(0, len(texts), SCORED_TOGETHER):
        part = slice(first, first + SCORED_TOGETHER)
        whole = [torch.tensor([*prompt, *text]) for prompt, text in zip(prompts[part], texts[part], strict=True)]
        ids = pad_sequence(whole, batch_first=True).to(teacher.device)
        attended = pad_sequence([torch.ones_like(row) for row in whole], batch_first=True).to(teacher.device)
        width = max(map(len, texts[part])) + max(map(len, prompts[part])) - min(map(len, prompts[part])) + 1
        logits = teacher.model(input_ids=ids, attention_mask=attended, logits_to_keep=width).logits
        logits = logits[..., : teacher.tokenizer.vocab_size]
        shift = ids.shape[1] - logits.shape[1]
        log_probs = logits[:, :-1].float().log_softmax(-1).gather(2, ids[:, shift + 1 :, None])[:, :, 0]
        for row, (prompt, text) in enumerate(zip(prompts[part], texts[part], strict=True)):
            begin = len(prompt) - 1 - shift
            found.append(float(log_probs[row, begin : begin + len(text)].double().sum()))
    return found
