"""Gaps in a text of subwords: a word of any number of tokens, summed over every way to spell it.

A gap is an automaton over tokens and bounds on their number. With L_g[n, s, z] = P(n tokens drive the automaton of gap g from s
into an accepting state, and all known tokens after the gap follow, the later gaps filled | the current token's state z), the
look-aheads of the gaps are made from the last gap to the first, each with what follows it as its end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vlhmm.control.automaton import Automaton
from vlhmm.control.generate import sample_constrained
from vlhmm.control.product import Lookahead, TransitionMatrix, lookahead
from vlhmm.control.token_texts import TokenTexts
from vlhmm.control.tokens import ConstrainedTokens
from vlhmm.control.utf8 import over_bytes
from vlhmm.data import Tokenizer
from vlhmm.data.spelling import shown_bytes
from vlhmm.hmm import HMM
from vlhmm.inference.errors import ImpossibleTextError
from vlhmm.inference.past import Past
from vlhmm.inference.sampling import draw
from vlhmm.pauses import pause
from vlhmm.tables import Belief
from vlhmm.text.answers import FilledGap, Filling, Infilling
from vlhmm.text.pieces import Gap

MAX_WORD_TOKENS = 8
"""Of a word in a gap, unless asked otherwise."""
SEARCHED = 32
"""Beginnings of words that are looked into for the likeliest words of a gap; of each so many next tokens are kept."""


@dataclass(frozen=True)
class WordGap:
    """A gap: `before` as it stands, then a word without white space, in at most `most` tokens. Or any `tokens`."""

    before: str
    most: int
    tokens: Gap | None = None
    """So many tokens, whatever they spell, in place of a word."""

    @property
    def least(self) -> int:
        return 1 if self.tokens is None else self.tokens.least

    def automaton(self, texts: TokenTexts) -> Automaton:
        """Over tokens: what may stand in the gap."""
        spelt = texts.spelt()
        if self.tokens is None:
            return texts.text_only(spelt.lift(_word_automaton(self.before)))
        zeros = torch.zeros(spelt.num_tokens, dtype=torch.int64)
        return texts.text_only(Automaton(zeros, zeros[:1, None], 0, torch.ones(1, dtype=torch.bool)))


def word_gaps(tokenizer: Tokenizer, pieces: Sequence[str], gaps: Sequence[Gap | None], most: int) -> list[WordGap]:
    """A word of at most so many tokens where the number of tokens is left open. White space before it belongs to the word's tokens."""
    texts = TokenTexts.of(tokenizer)
    # Some tokenizers put a space before the first word.
    begins = texts.bytes_of_token[tokenizer.encode("a")[0]] or b""
    found: list[WordGap] = []
    for piece, gap in zip(pieces, gaps, strict=False):
        known = piece.rstrip()
        before = " " if not (known or found) and begins.startswith(b" ") else ""
        found.append(WordGap(before + piece[len(known) :], most) if gap is None else WordGap("", gap.most, gap))
    return found


def _word_automaton(before: str) -> Automaton:
    """Over bytes: `before`, and after it a word of at least one character and no white space."""
    of_code_point = np.zeros(0x110000, np.int64)
    of_code_point[[code for code in range(0x3001) if chr(code).isspace()]] = 1
    characters = sorted(set(before))
    for number, character in enumerate(characters, start=2):
        of_code_point[ord(character)] = number
    word, dead = len(before) + 1, len(before) + 2
    next_state = torch.full((dead + 1, len(characters) + 2), dead)
    for state, character in enumerate(before):
        next_state[state, 2 + characters.index(character)] = state + 1
    in_word = torch.tensor([True, False, *(not character.isspace() for character in characters)])
    next_state[word - 1 : word + 1] = torch.where(in_word, word, dead)
    accepting = torch.arange(dead + 1) == word
    return over_bytes(Automaton(torch.arange(len(characters) + 2), next_state, 0, accepting), of_code_point)


def _literal_automaton(spelling: bytes) -> Automaton:
    """Over bytes: these alone."""
    end, dead = len(spelling), len(spelling) + 1
    class_of_byte = torch.full((256,), 0)
    distinct = sorted(set(spelling))
    class_of_byte[distinct] = torch.arange(1, len(distinct) + 1)
    next_state = torch.full((end + 2, len(distinct) + 1), dead)
    next_state[torch.arange(end), class_of_byte[list(spelling)]] = torch.arange(1, end + 1)
    return Automaton(class_of_byte, next_state, 0, torch.arange(end + 2) == end)


@dataclass(frozen=True)
class _Ahead:
    """A gap's look-ahead, with all that follows it."""

    ahead: Lookahead
    log_scale: float
    """What its probabilities are measured against, so that a long text after the gap costs no precision."""


class WordGaps:
    """A text with gaps: what may stand in them. `pieces` are the known tokens around the gaps, one piece more than there are gaps."""

    @torch.no_grad()
    def __init__(
        self,
        hmm: HMM,
        tokenizer: Tokenizer,
        opening: Belief | None,
        pieces: list[list[int]],
        gaps: Sequence[WordGap],
        exclude: Sequence[int],
        transition: TransitionMatrix | None = None,
    ) -> None:
        self.hmm, self.tables, self.tokenizer = hmm, hmm.tables, tokenizer
        self.pieces, self.gaps = pieces, list(gaps)
        self.transition = transition or TransitionMatrix(hmm.tables)
        usable = torch.ones(tokenizer.vocab_size, dtype=torch.bool)
        usable[list(exclude)] = False
        if self.tables.reset_token is not None:
            # States begin anew after it: it ends texts, and stands in none.
            usable[self.tables.reset_token] = False
        self.texts = TokenTexts.of(tokenizer).only(usable)
        self.belief, self.log_before = opening, 0.0
        if pieces[0]:
            ids = torch.tensor([pieces[0]])
            self.log_before = float(hmm.log_prob(ids, belief=opening))
            self.belief = hmm.filter(ids, belief=opening).belief
        self.general = [gap.automaton(self.texts) for gap in self.gaps]
        self._ahead = self._looking_ahead(self.general)
        self._following = [ConstrainedTokens(self.tables, one.ahead, self.transition) for one in self._ahead]
        self.log_filled = float(self.log_probs_of_lengths(0, self.belief).logsumexp(0))
        """log P(all from the first gap on | the text before it), summed over what stands in the gaps."""
        if self.log_before == -math.inf or self.log_filled == -math.inf:
            raise ImpossibleTextError(
                "infill: the text has probability zero whatever is filled in; give other words, or more tokens to a gap"
            )

    def _looking_ahead(self, automata: Sequence[Automaton]) -> list[_Ahead]:
        """With these automata in the first gaps; in the others there are their own."""
        made = list(self._ahead[len(automata) :]) if len(automata) < len(self.gaps) else []
        for number in range(len(automata) - 1, -1, -1):
            following = made[0] if made else None
            log_after = self._log_after(number, None if following is None else following.ahead)
            peak = float(log_after.max())
            peak = peak if math.isfinite(peak) else 0.0
            ahead = lookahead(self.tables, automata[number], self.gaps[number].most, self.transition, log_after - peak)
            made.insert(0, _Ahead(ahead, peak + (0.0 if following is None else following.log_scale)))
        return made

    def log_probs_of_lengths(
        self, number: int, belief: Belief | None, made: _Ahead | None = None
    ) -> Float[Tensor, " N"]:
        """log P(each number of tokens in a gap, all that follows | the text before it)."""
        gap, one = self.gaps[number], made or self._ahead[number]
        log_probs = [one.ahead.log_prob(self.tables, belief, steps) for steps in range(gap.least, gap.most + 1)]
        return torch.cat(log_probs).double() + one.log_scale

    def _log_after(self, number: int, ahead: Lookahead | None) -> Float[Tensor, " Z"]:
        """log P(the known tokens after a gap, and the next gap's filling if there is one | the state of the gap's last token)."""
        tables, piece = self.tables, self.pieces[number + 1]
        log_next = torch.zeros(tables.num_states, dtype=torch.float64, device=tables.device)
        if ahead is not None:
            least = self.gaps[number + 1].least
            start = ahead.automaton.start
            log_next = ahead.log_met[least:, start].double().logsumexp(0)
            if piece and piece[-1] == tables.reset_token:
                log_next = ahead.log_met_anew[least:, start].double().logsumexp(0).expand(tables.num_states)
        for place in range(len(piece) - 1, -1, -1):
            pause()
            token = torch.tensor([piece[place]], device=tables.device)
            states = tables.support.states_of(token)[0]
            log_column = torch.full_like(log_next, -torch.inf)
            log_column[states] = tables.log_emission[piece[place]].double() + log_next[states]
            if place and piece[place - 1] == tables.reset_token:
                log_next = (tables.log_start.double() + log_column).logsumexp(0).expand(tables.num_states)
            elif place:
                before = tables.support.states_of(torch.tensor([piece[place - 1]], device=tables.device))[0]
                log_next = torch.full_like(log_next, -torch.inf)
                log_next[before] = self.transition.log_times(log_column, before)
            else:
                log_next = self.transition.log_times(log_column)
        return log_next

    @torch.no_grad()
    def log_prob_of(self, spellings: Sequence[bytes]) -> float:
        """log P(these texts in the first gaps | the rest), summed over their tokens and over what stands in the other gaps."""
        texts = self.texts
        automata = [texts.text_only(texts.spelt().lift(_literal_automaton(spelling))) for spelling in spellings]
        made = self._looking_ahead(automata)[0]
        return min(0.0, float(self.log_probs_of_lengths(0, self.belief, made).logsumexp(0)) - self.log_filled)

    @torch.no_grad()
    def sample(self, generator: torch.Generator | None) -> list[list[int]]:
        """The tokens of every gap, drawn from p(tokens in the gaps | the rest of the text)."""
        drawn: list[list[int]] = []
        belief = self.belief
        for number, gap in enumerate(self.gaps):
            log_lengths = self.log_probs_of_lengths(number, belief)
            steps = gap.least + int(draw(log_lengths[None], generator))
            past = Past.opened(self.tables, belief)
            drawn += sample_constrained(self._following[number], past, 1, steps, generators=[generator])
            belief = self.belief_after(belief, number, drawn[-1])
        return drawn

    def belief_after(self, belief: Belief | None, number: int, tokens: list[int]) -> Belief:
        """The belief after a gap's tokens and the known ones that follow them."""
        return self.hmm.filter([[*tokens, *self.pieces[number + 1]]], belief=belief).belief

    def spelling(self, tokens: Sequence[int]) -> bytes:
        return b"".join(self.texts.bytes_of_token[token] or b"" for token in tokens)

    def text(self, tokens: Sequence[Sequence[int]]) -> str:
        """The whole text, these tokens in its gaps."""
        filled = [
            token for piece, inside in zip(self.pieces, [*tokens, ()], strict=True) for token in (*piece, *inside)
        ]
        return self.tokenizer.decode(filled)

    @torch.no_grad()
    def likely(self, number: int, belief: Belief | None, top: int) -> list[list[int]]:
        """Tokens of likely words of a gap: those found first when the likeliest beginnings are looked into first."""
        following, gap = self._following[number], self.gaps[number]
        log_ahead = following.log_ahead(belief)
        order, looked_into = count(), 0
        queue = [
            _Beginning(-log_prob, next(order), steps, self.general[number].start, 0.0, (), log_ahead)
            for steps, log_prob in enumerate(self.log_probs_of_lengths(number, belief).tolist(), start=gap.least)
            if log_prob > -math.inf
        ]
        heapify(queue)
        found: dict[bytes, list[int]] = {}
        while queue and looked_into < SEARCHED and len(found) < 2 * top:
            pause()
            one = heappop(queue)
            if one.left == 0:
                found.setdefault(self.spelling(one.tokens), list(one.tokens))
                continue
            looked_into += 1
            probs = following(one.log_ahead, [one.state], one.left)
            likeliest = probs.log_joint[0].topk(min(SEARCHED, probs.log_joint.shape[1]))
            for log_joint, token in zip(likeliest.values.tolist(), likeliest.indices.tolist(), strict=True):
                if log_joint == -math.inf:
                    break
                state = following.next_states([one.state], [token])[0]
                log_ahead = one.log_ahead
                if one.left > 1:
                    log_ahead = following.log_ahead_after(one.log_ahead, torch.tensor([token], device=log_ahead.device))
                log_prob = one.log_prob + float(probs.log_prob[0, token])
                cost, tokens = -(one.log_prob + log_joint), (*one.tokens, token)
                heappush(queue, _Beginning(cost, next(order), one.left - 1, state, log_prob, tokens, log_ahead))
        return list(found.values())


class _Beginning(NamedTuple):
    """The first tokens of a gap."""

    cost: float
    """-log P(these tokens, `left` more that complete the gap, all that follows | the text before)."""
    order: int
    """No other has it, so that nothing behind it is compared."""
    left: int
    state: int
    """Of the gap's automaton."""
    log_prob: float
    """log p(these tokens | the text before)."""
    tokens: tuple[int, ...]
    log_ahead: Float[Tensor, "1 Z"]
    """log p(the next token's state | these tokens and the text before)."""


def infill_words(gaps: WordGaps, num: int, top: int, generator: torch.Generator | None) -> Infilling:
    """What stands in the gaps. The best words, and what is likely in a gap, are given the best words in the gaps before it."""
    belief, log_before, best, shown = gaps.belief, 0.0, list[list[int]](), list[FilledGap]()
    for number in range(len(gaps.gaps)):
        before = [gaps.spelling(tokens) for tokens in best]
        likely = [
            (gaps.log_prob_of([*before, gaps.spelling(tokens)]), tokens) for tokens in gaps.likely(number, belief, top)
        ]
        likely.sort(key=lambda one: -one[0])
        log_lengths = gaps.log_probs_of_lengths(number, belief)
        lengths = enumerate((log_lengths - log_lengths.logsumexp(0)).exp().tolist(), start=gaps.gaps[number].least)
        words = [(_shown(gaps.spelling(tokens)), math.exp(log_prob - log_before)) for log_prob, tokens in likely]
        shown.append(FilledGap(sorted(lengths, key=lambda one: -one[1]), [words[:top]]))
        log_before, chosen = likely[0]
        best.append(chosen)
        belief = gaps.belief_after(belief, number, chosen)

    known = {tuple(map(gaps.spelling, best)): log_before}

    def filling(tokens: list[list[int]]) -> Filling:
        spellings = tuple(map(gaps.spelling, tokens))
        if spellings not in known:
            known[spellings] = gaps.log_prob_of(spellings)
        return Filling(gaps.text(tokens), [_shown(spelling) for spelling in spellings], known[spellings])

    samples = []
    for _ in range(num):
        pause()
        samples.append(filling(gaps.sample(generator)))
    return Infilling(gaps.log_before + gaps.log_filled, shown, filling(best), samples)


def _shown(spelling: bytes) -> str:
    return shown_bytes(spelling).strip()
