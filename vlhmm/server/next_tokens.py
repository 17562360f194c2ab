"""One token after the other for many texts at once: p(next token | a text so far), and the belief after it.

Letters for axes: R rows (texts), Z states, X tokens, K states of a token, G groups of tokens, W tokens of a group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.control.product import TransitionMatrix
from vlhmm.inference.predict import log_emitted_words, min_certain
from vlhmm.memory import available_bytes
from vlhmm.tables import Belief, Tables

ROW_BYTES = 1 << 26
"""Transition rows are made so many bytes at a time."""


@dataclass(frozen=True)
class _Bucket:
    """Groups with about as many tokens, so that one batched product serves them all."""

    states: Int[Tensor, "G K"]
    emission: Float[Tensor, "G K W"]
    """p(token | state), 0 past the tokens of a group."""


class NextTokens:
    """An HMM's tables laid out for next-token probabilities of many texts.

    The work of a step is one product with the transition and one with the emission table for all rows, whatever the support.

    Args:
        tables: The HMM.
        transition: Its transition.
    """

    def __init__(self, tables: Tables, transition: TransitionMatrix) -> None:
        self.tables, self._transition = tables, transition
        support = tables.support
        self._rows = self._made_rows()
        order = support.group_of_word.argsort(stable=True)
        counts = torch.bincount(support.group_of_word, minlength=support.num_groups)
        ends = counts.cumsum(0).tolist()
        by_width: dict[int, list[Int[Tensor, " W"]]] = {}
        for count, end in zip(counts.tolist(), ends, strict=True):
            if count:
                # Buckets by width, powers of two: at most half of a bucket is padding.
                by_width.setdefault((count - 1).bit_length(), []).append(order[end - count : end])
        self._buckets: list[_Bucket] = []
        place = torch.empty_like(order)
        offset = 0
        for groups in by_width.values():
            widest = max(len(words) for words in groups)
            emission = tables.log_emission.new_zeros(len(groups), support.states_per_word, widest)
            for number, words in enumerate(groups):
                emission[number, :, : len(words)] = tables.log_emission[words].exp().T
                place[words] = offset + number * widest + torch.arange(len(words), device=order.device)
            members = support.group_of_word[torch.stack([words[0] for words in groups])]
            self._buckets.append(_Bucket(support.states_of_group[members], emission))
            offset += len(groups) * widest
        self._place = place
        self._smallest_emission = _smallest(tables.log_emission)

    @property
    def bytes_per_row(self) -> int:
        return 4 * (self.tables.num_states + self.tables.num_words) * self.tables.log_emission.element_size()

    @torch.no_grad()
    def log_ahead(self, beliefs: Sequence[Belief | None]) -> Float[Tensor, "R Z"]:
        """log p(the next token's state | the past) of each row; None: a text that has not begun."""
        log_ahead = self.tables.log_start.expand(len(beliefs), -1).clone()
        begun = [row for row, belief in enumerate(beliefs) if belief is not None]
        if begun:
            past = joined([belief for belief in beliefs if belief is not None])
            log_ahead[begun] = self._log_ahead(past)
        return log_ahead

    def _made_rows(self) -> Float[Tensor, "Z Z"] | None:
        """p(next state | state), cached if it takes at most an eighth of the available memory: a step reads little else."""
        tables = self.tables
        num_bytes = tables.num_states**2 * tables.log_emission.element_size()
        if 8 * num_bytes > available_bytes(tables.device):
            return None
        states = torch.arange(tables.num_states, device=tables.device)
        rows = tables.log_emission.new_empty(tables.num_states, tables.num_states)
        with torch.no_grad():
            for part in states.split(max(1, ROW_BYTES // (8 * tables.num_states))):
                rows[part] = tables.transition.log_rows(part).exp()
        return rows

    def _log_ahead(self, past: Belief) -> Float[Tensor, "R Z"]:
        tables, support = self.tables, self.tables.support
        if self._rows is None:
            return self._transition.log_ahead(past)
        probs = past.log_probs.exp()
        if support.dense:
            ahead = probs @ self._rows
        else:
            ahead = self._by_group(probs, support.group_of_word[past.token])
        log_ahead = ahead.log()
        # After float32 underflow a possible state may have probability 0: recompute these rows in log space.
        small = (ahead < torch.finfo(ahead.dtype).tiny).any(1).nonzero()[:, 0]
        if len(small):
            log_ahead[small] = self._transition.log_ahead(past.of(small))
        if tables.reset_token is None:
            return log_ahead
        return torch.where((past.token == tables.reset_token)[:, None], tables.log_start, log_ahead)

    def _by_group(self, probs: Float[Tensor, "R K"], group: Int[Tensor, " R"]) -> Float[Tensor, "R Z"]:
        """One product for the rows of each group."""
        assert self._rows is not None
        support = self.tables.support
        distinct, counts = group.unique(return_counts=True)
        order = group.argsort()
        ahead = probs.new_empty(len(probs), support.num_states)
        parts = zip(distinct.tolist(), probs[order].split(counts.tolist()), ahead.split(counts.tolist()), strict=True)
        for one, some, place in parts:
            first, width = one * support.states_per_word, support.states_per_word
            # The states of a group of a partition stand together, so that nothing is copied.
            rows = self._rows[first : first + width] if support.partition else self._rows[support.states_of_group[one]]
            torch.mm(some, rows, out=place)
        return ahead[order.argsort()]

    @torch.no_grad()
    def log_probs(self, log_ahead: Float[Tensor, "R Z"]) -> Float[Tensor, "R X"]:
        """log p(next token | the past) of every token, also of those whose probability underflows."""
        ahead = log_ahead.exp()
        parts = []
        for bucket in self._buckets:
            # (G, R, K) @ (G, K, W)
            products = ahead[:, bucket.states].transpose(0, 1) @ bucket.emission
            parts.append(products.transpose(0, 1).flatten(1))
        probs = torch.cat(parts, dim=1)[:, self._place]
        return self._with_small(probs, log_ahead)

    def _with_small(self, probs: Float[Tensor, "R X"], log_ahead: Float[Tensor, "R Z"]) -> Float[Tensor, "R X"]:
        """The logs of `probs`, recomputed in log space where products may have underflowed."""
        log_probs, small = probs.log(), probs < min_certain(probs.dtype)
        for row in small.any(1).nonzero()[:, 0].tolist():
            # A sum of 0 is exact if nothing is possible; underflow is suspected only if a possible product may be that small.
            if _smallest(log_ahead[row]) + self._smallest_emission < math.log(torch.finfo(probs.dtype).tiny):
                words = small[row].nonzero()[:, 0]
                log_probs[row, words] = log_emitted_words(self.tables, log_ahead[row], words).to(log_probs.dtype)
        return log_probs

    @torch.no_grad()
    def after(self, log_ahead: Float[Tensor, "R Z"], tokens: Int[Tensor, " R"]) -> list[Belief]:
        """The belief after each row's token."""
        states = self.tables.support.states_of(tokens)
        log_joint = log_ahead.gather(1, states) + self.tables.log_emission[tokens]
        total = log_joint.logsumexp(1, keepdim=True)
        log_probs = log_joint - torch.where(total.isinf(), 0.0, total)
        return split(Belief(tokens, log_probs))


def _smallest(log_values: Float[Tensor, ...]) -> float:
    """That is not -inf; inf where all are."""
    return float(log_values.masked_fill(log_values == -torch.inf, torch.inf).amin())


def joined(beliefs: Sequence[Belief]) -> Belief:
    return Belief(torch.cat([one.token for one in beliefs]), torch.cat([one.log_probs for one in beliefs]))


def split(belief: Belief) -> list[Belief]:
    """One belief for each row, in memory of its own: a view would keep the whole batch alive."""
    if not len(belief.token):
        return []
    pairs = zip(belief.token.clone().split(1), belief.log_probs.split(1), strict=True)
    return [Belief(token, log_probs.clone()) for token, log_probs in pairs]
