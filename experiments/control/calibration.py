"""How often the language model does what the HMM expects: p(constraint | prefix) against frequencies of its own texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

import vlhmm
from experiments.control.sets import contains
from vlhmm.control import contains as contains_phrase
from vlhmm.control.product import lookahead
from vlhmm.distillation.teachers import Drawn, Teacher

BINS = 10


@dataclass(frozen=True)
class Bin:
    """Cases whose prediction lies in one tenth."""

    predicted: float
    """On average."""
    observed: float
    """The part of them that came true."""
    num: int


@dataclass(frozen=True)
class Calibration:
    bins: list[Bin]
    error: float
    """Mean over all cases of |predicted - observed| of their bin."""
    brier: float
    brier_of_mean: float
    """Of always saying how often it comes true on average: what knows nothing of the prefix."""
    words: list[str]
    prefixes: list[int]
    num: int


def frequent_words(texts: Sequence[str], num: int) -> list[str]:
    """Words from frequent to rare: evenly by rank in powers of two, so that probabilities are of all sizes."""
    counts = Counter(
        word for text in texts for word in {part.strip(".,!?\"'").lower() for part in text.split()} if word.isalpha()
    )
    ranked = [word for word, _ in counts.most_common(len(texts) // 4)]
    chosen = sorted({round(len(ranked) ** (step / num)) - 1 for step in range(num + 1)})
    return [ranked[rank] for rank in chosen if rank < len(ranked)]


@torch.no_grad()
def calibrate(
    lm: vlhmm.LanguageModel, teacher: Teacher, drawn: Drawn, words: Sequence[str], prefixes: Sequence[int]
) -> Calibration:
    """Each case is a text, a word and how much of the text is known; cases that are decided already are left out."""
    predicted, observed = [], []
    length = drawn.tokens.shape[1]
    eos = lm.tokenizer.eos_id
    assert eos is not None
    texts = [
        teacher.text_tokenizer.decode([token for token in row[:size] if token != eos])
        for row, size in zip(drawn.tokens.tolist(), drawn.lengths.tolist(), strict=True)
    ]
    tables = lm.hmm.tables
    tokens = drawn.tokens.to(tables.device)
    prefixes = [prefix for prefix in prefixes if bool((drawn.lengths > prefix).any())]
    going = {prefix: (drawn.lengths > prefix).to(tables.device) for prefix in prefixes}
    beliefs = {prefix: lm.hmm.filter(tokens[going[prefix], :prefix]).belief.log_probs for prefix in prefixes if prefix}
    for word in words:
        automaton = contains_phrase(word, ignore_case=True).compile(lm.tokenizer).ending_at(eos, required=False)
        ahead = lookahead(tables, automaton, length)
        met: Bool[Tensor, " B"] = torch.tensor([contains(word, text) for text in texts])
        # The word may stand at the end, where only what follows tells that it is whole: not yet decided.
        states = _states(automaton.next_state[:, automaton.class_of_token], drawn.tokens.cpu(), automaton.start)
        sure = automaton.accepting & (automaton.next_state == torch.arange(automaton.num_states)[:, None])[:, :-1].all(
            1
        )
        for prefix in prefixes:
            rows = going[prefix].cpu()
            state = states[rows, prefix]
            if prefix:
                log_met = ahead.log_met[length - prefix, state.to(tables.device)]
                log_prob = (beliefs[prefix] + log_met).logsumexp(1)
            else:
                log_prob = ahead.log_met_anew[length, state.to(tables.device)]
            open_cases = ~sure[state]
            predicted.append(log_prob.exp().cpu()[open_cases])
            observed.append(met[rows][open_cases])
    return _binned(torch.cat(predicted).double(), torch.cat(observed), list(words), list(prefixes))


def _states(next_state: Int[Tensor, "S X"], tokens: Int[Tensor, "B T"], start: int) -> Int[Tensor, "B P"]:
    """The automaton's state before each position, and after the last."""
    states = [torch.full(tokens.shape[:1], start)]
    for position in range(tokens.shape[1]):
        states.append(next_state[states[-1], tokens[:, position]])
    return torch.stack(states, dim=1)


def _binned(
    predicted: Float[Tensor, " N"], observed: Bool[Tensor, " N"], words: list[str], prefixes: list[int]
) -> Calibration:
    number = (predicted * BINS).long().clamp(0, BINS - 1)
    bins = []
    error = 0.0
    for each in range(BINS):
        cases = number == each
        if cases.any():
            made = Bin(float(predicted[cases].mean()), float(observed[cases].double().mean()), int(cases.sum()))
            bins.append(made)
            error += abs(made.predicted - made.observed) * made.num / len(predicted)
    outcome = observed.double()
    return Calibration(
        bins,
        error,
        float((predicted - outcome).square().mean()),
        float((outcome.mean() - outcome).square().mean()),
        words,
        prefixes,
        len(predicted),
    )
