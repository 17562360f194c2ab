"""How a model reads one text: all that the reading view shows of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from vlhmm.arguments import check_count, check_text
from vlhmm.control.constraints import Constraint, check_constraint
from vlhmm.control.time_limit import TIME_LIMIT
from vlhmm.inference.gather import Batch
from vlhmm.inference.infill import Infiller
from vlhmm.lm import LanguageModel
from vlhmm.pauses import pause
from vlhmm.text.answers import NamedState

INFILLED = 5
"""Tokens that might stand in the place of each one."""
GAP_BYTES = 1 << 28
"""What messages over all states may take while words are filled in."""


@dataclass(frozen=True)
class StateProb:
    """A state and a probability.

    Example:
        >>> from vlhmm.explorer import analyse_text
        >>> lm = vlhmm.load("demo-model")
        >>> state = analyse_text(lm, "the cat sees a bird").tokens[0].states[0]
        >>> state.next[0].state == analyse_text(lm, "the cat sees a bird").tokens[1].states[0].state
        True
    """

    state: int
    """Number of the state."""
    prob: float
    """p(state | text); of a next state p(next | state, text)."""


@dataclass(frozen=True)
class LikelyState(StateProb):
    """A likely state of a token, with the likely states of the token after it."""

    next: list[StateProb]
    """After the last token p(next | state)."""


@dataclass(frozen=True)
class TokenProb:
    """A token and its probability."""

    token: str
    prob: float


@dataclass(frozen=True)
class AnalysedToken:
    """A token of a text: its surprisal, its states, and what else might stand in its place."""

    token: str
    """The token."""
    log_prob: float
    """log p(token | all tokens before)."""
    entropy: float
    """Entropy of p(state | text), in nats."""
    states: list[LikelyState]
    """The most likely states, most likely first."""
    path: int
    """The state of the most likely path."""
    infill: list[TokenProb]
    """The most likely tokens in its place, with p(token | all other tokens). EOS and the unknown token are none of them."""


@dataclass(frozen=True)
class ConstraintPath:
    """The probability of a constraint, token by token."""

    constraint: str
    """The constraint, as Python writes it."""
    probs: list[float]
    """P(the text of T tokens satisfies it | its first t tokens), for t = 0, 1, ..., T. The last one is 0 or 1."""


@dataclass(frozen=True)
class TextAnalysis:
    """How a model reads one text.

    Example:
        >>> from vlhmm.explorer import analyse_text
        >>> analysis = analyse_text(vlhmm.load("demo-model"), "the cat sees a bird")
        >>> [token.infill[0].token for token in analysis.tokens]
        ['the', 'cat', 'sees', 'a', 'bird']
    """

    text: str
    """The text."""
    log_prob: float
    """log p(text)."""
    perplexity: float
    """exp(-log p(text) / number of tokens)."""
    path_entropy: float
    """Entropy of p(all states | text), in nats."""
    path_log_prob: float
    """log p(text, the most likely path)."""
    tokens: list[AnalysedToken]
    """The analysis of each token."""
    states: list[NamedState]
    """Every state that is named above, once."""
    constraint: ConstraintPath | None
    """None: no constraint was given."""


def analyse_text(
    lm: LanguageModel,
    text: str,
    *,
    top: int = 4,
    constraint: Constraint | None = None,
    time_limit: float | None = TIME_LIMIT,
) -> TextAnalysis:
    """Compute how a model reads a text: surprisals, posterior states, the best path, and what might stand in each place.

    Args:
        lm: The model.
        text: The text.
        top: Number of states of each token, and of states after each of these.
        constraint: A constraint on the text, whose probability is followed from token to token; None: none.
        time_limit: Seconds of CPU time that compiling the constraint may take; None: any time.

    Returns:
        The analysis. `vlhmm.reports.as_json` makes JSON of it.

    Raises:
        ImpossibleTextError: The text has probability zero.
        ValueError: The text has no tokens, or `top` is below 1.

    Example:
        >>> from vlhmm.explorer import analyse_text
        >>> lm = vlhmm.load("demo-model")
        >>> analysis = analyse_text(lm, "the cat sees a bird", constraint=vlhmm.contains("bird"))
        >>> [round(prob, 1) for prob in analysis.constraint.probs]
        [0.6, 0.6, 0.6, 0.6, 0.6, 1.0]
    """
    check_text("text", text)
    check_count("top", top)
    if constraint is not None:
        check_constraint(constraint)
    explanation = lm.explain(text, top=top, neighbours=top)
    path = lm.viterbi(text)
    infill = _infilling(lm, text)
    tokens, named = list[AnalysedToken](), {state.state: state for state in path.states}
    for token, best, tokens_instead in zip(explanation.tokens, path.states, infill, strict=True):
        states = []
        for likely in token.states:
            following = [StateProb(state.state, prob) for state, prob in likely.next]
            states.append(LikelyState(likely.state.state, likely.prob, following))
            named |= {state.state: state for state in (likely.state, *(after for after, _ in likely.next))}
        tokens.append(AnalysedToken(token.token, token.log_prob, token.entropy, states, best.state, tokens_instead))
    score = explanation.score
    followed = None
    if constraint is not None:
        followed = ConstraintPath(repr(constraint), lm.constraint_path(text, constraint, time_limit=time_limit))
    return TextAnalysis(
        text=text,
        log_prob=score.log_prob,
        perplexity=score.perplexity,
        path_entropy=explanation.path_entropy,
        path_log_prob=path.log_prob,
        tokens=tokens,
        states=[named[state] for state in sorted(named)],
        constraint=followed,
    )


def _infilling(lm: LanguageModel, text: str) -> list[list[TokenProb]]:
    """p(token in place of x_t | all other tokens), for every t."""
    tables, tokenizer = lm.hmm.tables, lm.tokenizer
    ids = torch.tensor(tokenizer.encode(text), device=tables.device)
    allowed = torch.ones(tables.num_words, dtype=torch.bool, device=tables.device)
    # As `LanguageModel.infill` fills in.
    allowed[[token for token in (tokenizer.eos_id, tokenizer.undrawn_id) if token is not None]] = False
    likely = []
    # Side by side, each text with its own gap: messages over all states are made for every text and position that has gaps.
    at_once = max(1, math.isqrt(GAP_BYTES // (40 * tables.num_states)))
    every_position = torch.arange(len(ids), device=tables.device)
    for positions in every_position.split(at_once):
        pause()
        belief = None if lm.opening is None else lm.opening.of([0] * len(positions))
        texts = Batch(ids.repeat(len(positions), 1), torch.full_like(positions, len(ids)))
        _, _, probs = Infiller(tables, texts, positions[:, None] == every_position, belief, allowed).probs()
        best = probs.topk(min(INFILLED, probs.shape[1]), dim=1)
        for tokens, token_probs in zip(best.indices.tolist(), best.values.tolist(), strict=True):
            pairs = zip(tokens, token_probs, strict=True)
            likely.append([TokenProb(tokenizer.token(token), prob) for token, prob in pairs if prob > 0])
    return likely
