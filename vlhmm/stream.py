"""Streams: texts that are fed bit by bit. All that is kept of the past is a belief, however long it is."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.arguments import check_count
from vlhmm.inference.errors import ImpossibleTextError
from vlhmm.inference.evidence import before_tokens
from vlhmm.inference.gather import Batch
from vlhmm.inference.past import Past
from vlhmm.inference.predict import PreciseNextTokens, likeliest_tokens, next_token_probs
from vlhmm.inference.score import score
from vlhmm.memory import require_memory
from vlhmm.records import shown
from vlhmm.sequences import padded
from vlhmm.tables import Belief, Tables
from vlhmm.validate import as_batch, as_integers, check_belief


@dataclass(frozen=True)
class NextTokens:
    """The most likely next tokens of each stream.

    Example:
        >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
        >>> best = hmm.stream().next_tokens(top=2)
        >>> best.tokens
        tensor([[1, 0]])
        >>> best.probs
        tensor([[0.3600, 0.3400]])
    """

    tokens: Int[Tensor, "N top"]
    """Token ids, most likely first."""
    probs: Float[Tensor, "N top"]
    """p(token | everything fed to the stream)."""

    __repr__ = shown


class Stream:
    """N texts that are fed a few tokens at a time, in constant memory.

    A token has the probability that it has in the whole text, however the text is cut. Only the belief after the last token is kept.

    Args:
        tables: The parameters of the HMM.
        num: Number of texts, N.
        belief: Where they begin, as `HMM.filter` returned it, one row for all or one for each. None: the start distribution.

    Raises:
        ValueError: `num` is below 1, or the belief does not fit.

    Example:
        >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
        >>> stream = hmm.stream()
        >>> stream.feed([0, 1]), stream.feed([2])
        (tensor([[-1.0788, -1.0038]]), tensor([[-1.2338]]))
        >>> hmm.token_log_probs([[0, 1, 2]])
        tensor([[-1.0788, -1.0038, -1.2338]])
    """

    def __init__(self, tables: Tables, num: int = 1, belief: Belief | None = None) -> None:
        check_count("num", num)
        check_belief(belief, None, tables)
        if belief is not None:
            belief = before_tokens(belief, tables)
        if belief is not None and belief.token.shape[0] == 1:
            belief = Belief(belief.token.expand(num), belief.log_probs.expand(num, -1))
        if belief is not None and belief.token.shape[0] != num:
            raise ValueError(f"the belief has {belief.token.shape[0]} sequences, but {num} streams need 1 or {num}")
        self._tables = tables
        states = tables.support.states_per_word
        require_memory(
            num * (states * tables.log_emission.element_size() + 24),
            f"{num:,} streams with beliefs over {states:,} states",
            "feed fewer side by side",
            tables.device,
        )
        # A stream that has not begun has no belief; its row is then never read.
        self._begun = torch.full((num,), belief is not None, device=tables.device)
        self._belief = belief or Belief(
            torch.zeros(num, dtype=torch.int64, device=tables.device), tables.log_emission.new_zeros(num, states)
        )
        self._log_prob = torch.zeros(num, dtype=torch.float64, device=tables.device)
        self._num_tokens = torch.zeros(num, dtype=torch.int64, device=tables.device)

    def __repr__(self) -> str:
        fed = f"{int(self._num_tokens.sum()):,} tokens fed"
        return (
            f"Stream({self.num:,} texts, {fed}, {self._tables.num_states:,} states, {self._tables.num_words:,} words)"
        )

    @property
    def num(self) -> int:
        """Number of streams, N."""
        return self._log_prob.shape[0]

    @property
    def log_prob(self) -> Float[Tensor, " N"]:
        """log p of everything fed to each stream, (N,), in float64."""
        return self._log_prob

    @property
    def num_tokens(self) -> Int[Tensor, " N"]:
        """Number of tokens fed to each stream, (N,)."""
        return self._num_tokens

    @torch.no_grad()
    def feed(self, tokens: Any, lengths: Any = None) -> Float[Tensor, "N T"]:
        """Feed tokens and return log p(token | everything fed before).

        Args:
            tokens: Token ids (N, T), (T,) for a single stream, or a list of sequences of different lengths, also of none.
            lengths: How many tokens of its row each stream reads (N,); 0: none. None: all T.

        Returns:
            Log-probabilities (N, T), 0 past the length.

        Raises:
            ValueError: A token id or a length is out of range, or the number of rows is not N.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> stream = hmm.stream(num=2)
            >>> stream.feed([[0, 1], [2, 0]], lengths=[2, 1])
            tensor([[-1.0788, -1.0038],
                    [-1.2040,  0.0000]])
            >>> stream.num_tokens
            tensor([2, 1])
        """
        rows, own_lengths, single = padded("tokens", tokens, None, empty=True)
        if own_lengths is not None and lengths is not None:
            raise ValueError(
                "lengths is given, but tokens is a list of sequences of different lengths: leave lengths out"
            )
        lengths = own_lengths if lengths is None else lengths
        ids = as_integers(tokens if single and self.num > 1 else rows, "tokens", self._tables.device)
        if ids.ndim == 2 and ids.shape[0] != self.num:
            raise ValueError(f"tokens has {ids.shape[0]} rows, but there are {self.num} streams: give each a row")
        if lengths is None:
            batch, fed = as_batch(ids, None, self._tables), torch.ones_like(self._begun)
        else:
            counts = as_integers(lengths, "lengths", self._tables.device)
            # An idle stream is checked as if its first token were fed, whatever stands there.
            fed = counts != 0
            if ids.ndim == 2 and ids.shape[1] and fed.shape == self._begun.shape:
                ids = torch.where(fed[:, None], ids, 0)
            batch = as_batch(ids, torch.where(fed, counts, 1), self._tables)
        log_probs = self._tables.log_emission.new_zeros(batch.tokens.shape)
        token, log_belief = self._belief.token.clone(), self._belief.log_probs.clone()
        for begun in (False, True):
            rows = (fed & (self._begun == begun)).nonzero()[:, 0]
            if rows.numel():
                past = Belief(token[rows], log_belief[rows]) if begun else None
                scored = score(self._tables, Batch(batch.tokens[rows], batch.lengths[rows]), past)
                log_probs[rows] = scored.token_log_probs
                token[rows], log_belief[rows] = scored.belief.token, scored.belief.log_probs
        self._belief, self._begun = Belief(token, log_belief), self._begun | fed
        self._log_prob = self._log_prob + log_probs.double().sum(1)
        self._num_tokens = self._num_tokens + torch.where(fed, batch.lengths, 0)
        return log_probs

    @torch.no_grad()
    def next_token_probs(self) -> Float[Tensor, "N X"]:
        """Compute p(next token | everything fed) over the vocabulary.

        Returns:
            Probabilities (N, X); all 0 for a stream that was fed an impossible text.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> stream = hmm.stream()
            >>> _ = stream.feed([0, 1])
            >>> stream.next_token_probs()
            tensor([[0.3471, 0.3618, 0.2912]])
        """
        probs = self._tables.log_emission.new_empty(self.num, self._tables.num_words)
        rows, fresh = self._begun.nonzero()[:, 0], (~self._begun).nonzero()[:, 0]
        if rows.numel():
            past = Belief(self._belief.token[rows], self._belief.log_probs[rows])
            probs[rows] = next_token_probs(self._tables, past)
        if fresh.numel():
            probs[fresh] = next_token_probs(self._tables, None)
        return probs

    def next_tokens(self, top: int = 10, *, without: int | None = None) -> NextTokens:
        """Return the most likely next tokens of each stream.

        Args:
            top: Number of tokens.
            without: A token that is left out, so that probabilities are p(token | text, the token is not `without`); None: none is.

        Returns:
            Token ids and probabilities, most likely first.

        Raises:
            ImpossibleTextError: A stream was fed a text of probability zero.
            ValueError: `top` is below 1.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> stream = hmm.stream()
            >>> _ = stream.feed([2, 2])
            >>> stream.next_tokens(top=2).tokens
            tensor([[2, 1]])
        """
        check_count("top", top)
        impossible = self._log_prob.isinf()
        if bool(impossible.any()):
            raise ImpossibleTextError(
                f"next_tokens: stream {int(impossible.nonzero()[0, 0])} was fed a text of probability zero, so nothing follows it; "
                "fork before feeding what may be impossible"
            )
        precisely = Past(self._begun, self._belief).of_rows(PreciseNextTokens(self._tables))
        probs, tokens = likeliest_tokens(self.next_token_probs(), top, without, precisely=precisely)
        return NextTokens(tokens, probs)

    def fork(self) -> Stream:
        """Return an independent stream that has been fed the same tokens.

        Returns:
            The copy. Feeding one does not change the other.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> stream = hmm.stream()
            >>> branch = stream.fork()
            >>> _ = branch.feed([0, 1])
            >>> stream.num_tokens, branch.num_tokens
            (tensor([0]), tensor([2]))
        """
        # Tensors are replaced, never written to: the copy may share them.
        return copy(self)
