"""What a `LanguageModel` answers with: records that a person can read."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class TokenScore:
    """A token and its log-probability.

    Example:
        >>> lm = vlhmm.load("demo-model")
        >>> lm.score("the cat sees a bird").tokens[1].token
        'cat'
    """

    token: str
    """The token."""
    log_prob: float
    """log p(token | all tokens before)."""


@dataclass(frozen=True)
class Score:
    """The tokens of a text with their log-probabilities.

    Example:
        >>> lm = vlhmm.load("demo-model")
        >>> score = lm.score("the cat sees a bird")
        >>> len(score.tokens), round(score.log_prob, 1)
        (5, -1.3)
    """

    tokens: list[TokenScore]
    """Each token with its log-probability."""

    @property
    def log_prob(self) -> float:
        """log p(text), the sum over the tokens."""
        return math.fsum(token.log_prob for token in self.tokens)

    @property
    def perplexity(self) -> float:
        """exp(-log p(text) / number of tokens)."""
        return math.exp(-self.log_prob / len(self.tokens)) if self.log_prob > -math.inf else math.inf


@dataclass(frozen=True)
class NextTokens:
    """What may come next in a text, as `LanguageModel.next_tokens` gives it.

    Example:
        >>> from vlhmm.text.answers import NextTokens
        >>> lm = vlhmm.load("demo-model")
        >>> NextTokens(lm.next_tokens("the cat sees a", top=2)).tokens[0][0]
        'bird'
    """

    tokens: list[tuple[str, float]]
    """The most likely tokens with their probabilities, most likely first."""


@dataclass(frozen=True)
class NamedState:
    """A state with the words that it emits most; `str` shows both.

    Example:
        >>> from vlhmm.text.answers import NamedState
        >>> print(NamedState(state=4, block=0, words=[("cat", 0.7), ("dog", 0.3)]))
        4 [cat dog]
    """

    state: int
    """Number of the state."""
    block: int
    """Number of its block."""
    words: list[tuple[str, float]]
    """The most likely words with p(word | state)."""

    def __str__(self) -> str:
        return f"{self.state} [{' '.join(word for word, _ in self.words)}]"


@dataclass(frozen=True)
class TokenPosterior:
    """The most likely states of a token, given the whole text.

    Example:
        >>> lm = vlhmm.load("demo-model")
        >>> token = lm.posterior("the cat sees a bird", top=2)[1]
        >>> token.token, len(token.states)
        ('cat', 2)
    """

    token: str
    """The token."""
    states: list[tuple[NamedState, float]]
    """The most likely states with p(state | text), most likely first."""
    entropy: float
    """Entropy of p(state | text), in nats."""


@dataclass(frozen=True)
class BestPath:
    """A state path of a text.

    Example:
        >>> lm = vlhmm.load("demo-model")
        >>> path = lm.viterbi("the cat sees a bird")
        >>> [state.words[0][0] for state in path.states]
        ['the', 'cat', 'sees', 'a', 'bird']
    """

    tokens: list[str]
    """The tokens of the text."""
    states: list[NamedState]
    """The state of each token."""
    log_prob: float
    """log p(text, states)."""


@dataclass(frozen=True)
class GeneratedText:
    """One text that a model has drawn.

    Example:
        >>> from vlhmm.text.answers import GeneratedText
        >>> lm = vlhmm.load("demo-model")
        >>> [GeneratedText(text) for text in lm.generate("the dog", top_k=1)]
        [GeneratedText(text='the dog sees a bird')]
    """

    text: str
    """The text, prompt included."""


@dataclass(frozen=True)
class BestText:
    """The best continuation of a prompt.

    Example:
        >>> lm = vlhmm.load("demo-model")
        >>> best = lm.best_text("the cat", max_tokens=10)
        >>> best.text, round(best.log_prob, 1)
        ('the cat sees a bird', -1.4)
    """

    text: str
    """The text, prompt included."""
    log_prob: float
    """log p(new tokens and their states | prompt)."""


@dataclass(frozen=True)
class ExplainedState:
    """A likely state of a token, with the likely states before and after it.

    Example:
        >>> lm = vlhmm.load("demo-model")
        >>> token = lm.explain("the cat sees a bird", top=1, neighbours=1).tokens[1]
        >>> state = token.states[0]
        >>> state.previous[0][0].words[0][0], state.state.words[0][0], state.next[0][0].words[0][0]
        ('the', 'cat', 'sees')
    """

    state: NamedState
    """The state."""
    prob: float
    """p(state | text)."""
    previous: list[tuple[NamedState, float]]
    """The most likely states before it, with p(state before | this state, text); none where the text begins from the start distribution."""
    next: list[tuple[NamedState, float]]
    """The most likely states after it, with p(state after | this state, text); after the last token p(state after | this state)."""


@dataclass(frozen=True)
class ExplainedToken:
    """A token with its surprisal and its likely states.

    Example:
        >>> lm = vlhmm.load("demo-model")
        >>> token = lm.explain("the cat sees a bird").tokens[1]
        >>> token.token, round(token.surprisal, 1), len(token.states)
        ('cat', 0.4, 3)
    """

    token: str
    """The token."""
    log_prob: float
    """log p(token | all tokens before)."""
    entropy: float
    """Entropy of p(state | text), in nats."""
    states: list[ExplainedState]
    """The most likely states, most likely first."""

    @property
    def surprisal(self) -> float:
        """-log p(token | all tokens before), in nats."""
        return -self.log_prob


@dataclass(frozen=True)
class Explanation:
    """How the model reads a text, token by token.

    Example:
        >>> lm = vlhmm.load("demo-model")
        >>> explanation = lm.explain("the cat sees a bird")
        >>> [token.token for token in explanation.tokens], round(explanation.score.perplexity, 1)
        (['the', 'cat', 'sees', 'a', 'bird'], 1.3)
    """

    tokens: list[ExplainedToken]
    """The explanation of each token."""
    path_entropy: float
    """Entropy of p(all states | text), in nats."""

    @property
    def score(self) -> Score:
        """The log-probabilities of the tokens."""
        return Score([TokenScore(token.token, token.log_prob) for token in self.tokens])


@dataclass(frozen=True)
class Filling:
    """A text whose gaps are filled.

    Example:
        >>> lm = vlhmm.load("demo-model")
        >>> best = lm.infill("the ___ hears a ___", num=0).best
        >>> best.text, best.gaps
        ('the cat hears a bird', ['cat', 'bird'])
    """

    text: str
    """The whole text."""
    gaps: list[str]
    """The text in each gap."""
    log_prob: float
    """log p(the tokens in the gaps and their number | the rest of the text); of words in subwords, log p(the words | the rest)."""


@dataclass(frozen=True)
class FilledGap:
    """What may stand in one gap.

    Example:
        >>> lm = vlhmm.load("demo-model")
        >>> gap = lm.infill("the cat hears a bird ___{2,3}", eos=True, num=0).gaps[0]
        >>> gap.lengths[0][0], [position[0][0] for position in gap.tokens]
        (3, ['in', 'the', 'garden'])
    """

    lengths: list[tuple[int, float]]
    """Each possible number of tokens with p(number | the rest of the text), most likely first."""
    tokens: list[list[tuple[str, float]]]
    """For each position the most likely tokens with p(token | the rest), given that every gap has its most likely number of tokens. Where
    tokens are parts of words and a gap is a word: one list of likely words with p(word | the rest), summed over all tokens that spell
    it, given the best words in the gaps before it."""


@dataclass(frozen=True)
class Infilling:
    """What may stand in the gaps of a text.

    Example:
        >>> lm = vlhmm.load("demo-model")
        >>> filled = lm.infill("the cat ___ a bird", num=3, seed=0)
        >>> filled.best.text, len(filled.gaps), len(filled.samples)
        ('the cat sees a bird', 1, 3)
    """

    log_prob: float
    """log p(the known text), summed over what stands in the gaps; numbers of tokens that are asked for have the same prior probability."""
    gaps: list[FilledGap]
    """What may stand in each gap."""
    best: Filling
    """The best filling. Of words in subwords: the best of the likely words of each gap, given those before it."""
    samples: list[Filling]
    """Fillings drawn from their exact distribution."""
