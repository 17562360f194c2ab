"""A large language model guided by an HMM, so that its text satisfies a constraint.

The language model's score of token v becomes

    log p_LM(v | prefix) + log p(constraint | prefix, v) - log p(constraint | prefix),

where p(constraint | prefix, v) = N(v) / D(v) by the HMM. The last term is the same for all v, but with it the scores of a
beam telescope to log p_LM(text) + log p(constraint | text) - log p(constraint | prompt).

That the constraint holds is up to the automaton alone: a token after which it can no longer be satisfied within the tokens
left gets -inf. `vlhmm.control.guided_rows` says what happens where the HMM has no opinion.

Letters for axes: R rows of the batch (prompts x beams or sequences), T positions, V scores of the language model, X tokens of the HMM,
Z states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.control.automaton import Automaton
from vlhmm.control.constraints import Constraint, check_constraint
from vlhmm.control.guided_rows import RowGuide, Rows
from vlhmm.control.plan import Compiler, make_plan, require_same_vocabulary
from vlhmm.control.time_limit import TIME_LIMIT
from vlhmm.control.token_texts import TokenTexts
from vlhmm.data import Tokenizer
from vlhmm.hmm import HMM
from vlhmm.tables import Belief


@runtime_checkable
class TextModel(Protocol):
    """What is needed of a `LanguageModel`."""

    @property
    def hmm(self) -> HMM: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def opening(self) -> Belief | None: ...


@dataclass(frozen=True)
class GuideProcessor:
    """The logits processor of `Guide.generate_arguments`, where `generate` is given the guide's own length beside it."""

    guide: Guide

    def __call__(self, input_ids: Int[Tensor, "R T"], scores: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
        return self.guide.step(input_ids, scores)


class Guide:
    """Make a language model of Hugging Face transformers satisfy a constraint.

    The score of token v becomes log p_LM(v | prefix) + log p(constraint | prefix, v) - log p(constraint | prefix). The HMM gives
    the last two terms. A token after which the constraint can no longer be satisfied gets -inf. It works with greedy decoding,
    sampling and beam search:

        output = guide.generate(model, **inputs, do_sample=True)

    The constraint is on the generated text, not on the prompt. The same guide serves any number of calls, one after the other.
    A logits processor is not told where the text is cut off, so `logits_processor=[guide]` is refused: `generate_arguments` gives
    `model.generate` the guide together with its length, and `step` is for loops of one's own.

    Args:
        model: The HMM, or a `LanguageModel`, whose tokenizer and opening are then used.
        constraint: One constraint for all prompts of a batch, or a list with one for each prompt.
        max_new_tokens: Length of the generated text, at most.
        tokenizer: The tokenizer of the language model; None: that of `model`.
        eos_token_id: The EOS token, or several; None: that of the tokenizer.
        pad_token_id: Padding on the left of prompts; None: that of the tokenizer.
        prompt_lengths: Number of tokens of each prompt without its padding; None: `pad_token_id` on the left is padding.
        read_prompt: The HMM reads the prompt too; without it, its text begins where the prompt ends.
        must_end: The text must end at EOS within `max_new_tokens`; without it, it may also be cut off there.
        time_limit: Seconds of CPU time that compiling each constraint may take; None: any time.

    Raises:
        ImpossibleConstraintError: No text of `max_new_tokens` tokens satisfies the constraint.
        ValueError: The vocabularies differ, or a number is out of range.

    Example:
        >>> lm = vlhmm.load("demo-model")
        >>> guide = vlhmm.Guide(lm, vlhmm.contains("fish"), max_new_tokens=1)
        >>> prompt = torch.tensor([lm.tokenizer.encode("the cat sees a")])
        >>> scores = guide.step(prompt, torch.zeros(1, lm.tokenizer.vocab_size))  # the language model: all tokens equal
        >>> [lm.tokenizer.token(token) for token in (scores[0] > -torch.inf).nonzero()[:, 0]]
        ['fish']
    """

    def __init__(
        self,
        model: HMM | TextModel,
        constraint: Constraint | Automaton | Sequence[Constraint | Automaton],
        *,
        max_new_tokens: int,
        tokenizer: Any = None,
        eos_token_id: int | Sequence[int] | None = None,
        pad_token_id: int | None = None,
        prompt_lengths: Sequence[int] | None = None,
        read_prompt: bool = True,
        must_end: bool = False,
        time_limit: float | None = TIME_LIMIT,
    ) -> None:
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {max_new_tokens}, but must be at least 1")
        if isinstance(model, str | Path):
            raise ValueError(
                f"model is {str(model)!r}, but a LanguageModel or HMM is needed: vlhmm.load({str(model)!r})"
            )
        if not isinstance(model, HMM | TextModel):
            raise ValueError(f"model is a {type(model).__name__}, but a LanguageModel or HMM is needed")
        constraints = _as_constraints(constraint)
        if not constraints:
            raise ValueError("0 constraints given, at least 1 is needed")
        hmm = model if isinstance(model, HMM) else model.hmm
        own = None if isinstance(model, HMM) else model.tokenizer
        self._opening = None if isinstance(model, HMM) else model.opening
        if own is not None and tokenizer is not None:
            require_same_vocabulary(own, tokenizer)
        tokenizer = own if tokenizer is None else tokenizer
        self._tables = hmm.tables
        self._eos_ids = _eos_ids(eos_token_id, tokenizer)
        self._pad_id = getattr(tokenizer, "pad_token_id", None) if pad_token_id is None else pad_token_id
        self._read_prompt = read_prompt
        texts = None if tokenizer is None else TokenTexts.of(tokenizer)
        compiler = Compiler(texts, hmm.num_words, self._eos_ids, must_end, time_limit)
        self._plan = make_plan(hmm.tables, constraints, compiler, max_new_tokens)
        self._row_guide = RowGuide(self._plan, constraints)
        self.reset(prompt_lengths=prompt_lengths)

    def __repr__(self) -> str:
        wanted = ", ".join(
            repr(one) if isinstance(one, Constraint) else type(one).__name__ for one in self._row_guide.constraints
        )
        return f"Guide({wanted}; HMM of {self._tables.num_states:,} states, {self._tables.num_words:,} words)"

    def reset(self, *, prompt_lengths: Sequence[int] | None = None) -> None:
        """Forget the text so far: the next call begins new prompts.

        It is needed only to give the lengths of new prompts, or where a generated text becomes the next prompt.

        Args:
            prompt_lengths: Number of tokens of each new prompt without its padding; None: `pad_token_id` on the left is padding.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> guide = vlhmm.Guide(lm, vlhmm.contains("fish"), max_new_tokens=4)
            >>> guide.reset(prompt_lengths=[2])
        """
        self._rows: Rows | None = None
        self._prompt_lengths = None if prompt_lengths is None else [int(length) for length in prompt_lengths]
        self._prompts: Int[Tensor, "R T"] | None = None

    def generate(self, model: Any, inputs: Int[Tensor, "R T"] | None = None, **options: Any) -> Any:
        """Call `model.generate` with this guide, its `max_new_tokens` and its EOS, and check every text that comes back.

        Args:
            model: A language model of transformers.
            inputs: Token ids of the prompts; None: they are among the options, as `input_ids`.
            **options: What `model.generate` takes, such as `attention_mask`, `do_sample`, `num_beams`.

        Returns:
            What `model.generate` returns.

        Raises:
            ImpossibleConstraintError: The HMM gives the constraint probability zero after a prompt.
            ValueError: The options set another length or EOS than the guide's, or a text does not satisfy its constraint, because something
                else cut it off.

        Example:
            >>> from transformers import LlamaConfig, LlamaForCausalLM
            >>> lm = vlhmm.load("demo-model")
            >>> config = LlamaConfig(vocab_size=12, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
            >>> guide = vlhmm.Guide(lm, vlhmm.contains("fish"), max_new_tokens=4)
            >>> prompt = torch.tensor([lm.tokenizer.encode("the cat sees a")])
            >>> output = guide.generate(LlamaForCausalLM(config), prompt, do_sample=True)
            >>> "fish" in lm.tokenizer.decode(output[0])
            True
        """
        prompts = inputs if inputs is not None else options.get("input_ids")
        given = {} if inputs is None else {"inputs": inputs}
        try:
            output = model.generate(**self.generate_arguments(**given, **options))
        finally:
            # Truncated texts are detected below, not by the next call.
            self.reset()
        sequences = getattr(output, "sequences", output)
        # An encoder reads the prompt elsewhere; the text then begins with one token for its beginning.
        apart = 1 if getattr(model.config, "is_encoder_decoder", False) else 0
        self.check(sequences[:, apart or (0 if prompts is None else prompts.shape[1]) :])
        return output

    def generate_arguments(self, **options: Any) -> dict[str, Any]:
        """Return the arguments with which `model.generate` follows this guide: the logits processor, its length, its EOS and padding.

        For callers of `model.generate` itself; `generate` checks the texts too. Where something else than the length may cut a text
        off, such as `max_time` or `stop_strings`, `check` finds it.

        Args:
            **options: Other arguments of `model.generate`, which are returned too; `logits_processor` comes before the guide.

        Returns:
            Arguments of `model.generate`, among them `logits_processor` and `max_new_tokens`.

        Raises:
            ValueError: The options set another length or EOS than the guide's.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> guide = vlhmm.Guide(lm, vlhmm.contains("fish"), max_new_tokens=4)
            >>> arguments = guide.generate_arguments(do_sample=True)
            >>> sorted(arguments), arguments["max_new_tokens"]
            (['do_sample', 'eos_token_id', 'logits_processor', 'max_new_tokens', 'pad_token_id'], 4)
        """
        steps = self._plan.steps
        for name in ("max_new_tokens", "max_length"):
            if options.get(name, steps) != steps or (name == "max_length" and name in options):
                raise ValueError(
                    f"{name} is {options[name]}, but the guide has max_new_tokens {steps}: leave it out, or make a guide for it"
                )
        self._require_followed(options)
        prompts = options.get("inputs", options.get("input_ids"))
        mask = options.get("attention_mask")
        if mask is not None and prompts is not None and mask.shape == prompts.shape:
            self.reset(prompt_lengths=mask.sum(1).tolist())
        else:
            self.reset(prompt_lengths=self._prompt_lengths)
        # Without a padding token transformers takes EOS too, with a warning.
        pad = self._pad_id if self._pad_id is not None or not self._eos_ids else self._eos_ids[0]
        options = {"eos_token_id": list(self._eos_ids) or None, "pad_token_id": pad, **options}
        options = {name: value for name, value in options.items() if value is not None}
        processors = [*options.get("logits_processor", []), GuideProcessor(self)]
        return {**options, "logits_processor": processors, "max_new_tokens": steps}

    def _require_followed(self, options: Mapping[str, Any]) -> None:
        """The text must end where the guide's ends, and grow by a token a step."""
        eos = options.get("eos_token_id")
        if eos is not None and self._eos_ids and set(map(int, _eos_ids(eos, None))) != set(self._eos_ids):
            raise ValueError(
                f"eos_token_id is {eos}, but the guide has {list(self._eos_ids)}: leave it out, or make a guide for it"
            )
        for name in ("assistant_model", "prompt_lookup_num_tokens"):
            if options.get(name) is not None:
                raise ValueError(f"{name} guesses several tokens at once, which a guide cannot follow: leave it out")

    def check(self, new_tokens: Int[Tensor, "R N"] | Sequence[Sequence[int]]) -> None:
        """Raise an error where a generated text does not satisfy its constraint.

        Args:
            new_tokens: Token ids after the prompt, a row for each text; whatever comes after EOS is ignored.

        Raises:
            ValueError: A text does not satisfy its constraint, or has not ended where it must.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> guide = vlhmm.Guide(lm, vlhmm.contains("fish"), max_new_tokens=4)
            >>> guide.check([lm.tokenizer.encode("the fish")])
        """
        automaton, num_words = self._plan.following.ahead.automaton, self._tables.num_words
        rows = [list(map(int, row)) for row in new_tokens]
        for row, tokens in enumerate(rows):
            constraint = self._row_guide.constraint_of(row, len(rows))
            state = self._plan.start_of[constraint]
            for token in tokens:
                if state in self._plan.ended:
                    break
                state = automaton.run([token], state) if 0 <= token < num_words else -1
                if state < 0:
                    break
            if state < 0 or not automaton.accepting[state]:
                raise ValueError(
                    f"the text of row {row} does not satisfy {constraint!r} after {len(tokens)} tokens, where the guide has "
                    f"max_new_tokens {self._plan.steps}: something else cut it off; use guide.generate, and no limit but the guide's"
                )

    def __call__(self, input_ids: Int[Tensor, "R T"], scores: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
        """Refuse to be a logits processor without the length of the text: use `generate`, `generate_arguments` or `step`.

        Args:
            input_ids: Prompts and the tokens generated so far.
            scores: Log-probabilities or logits of the language model.

        Returns:
            Never.

        Raises:
            ValueError: Always, with what to call instead.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> guide = vlhmm.Guide(lm, vlhmm.contains("fish"), max_new_tokens=4)
            >>> guide(torch.tensor([[1]]), torch.zeros(1, 12))
            Traceback (most recent call last):
                ...
            ValueError: a logits processor is not told where `generate` cuts the text off, and this guide plans for 4 tokens: use guide.generate(model, ...), or model.generate(..., **guide.generate_arguments()); in a loop of your own, guide.step
        """
        raise ValueError(
            f"a logits processor is not told where `generate` cuts the text off, and this guide plans for {self._plan.steps} tokens: "
            "use guide.generate(model, ...), or model.generate(..., **guide.generate_arguments()); in a loop of your own, guide.step"
        )

    @torch.no_grad()
    def step(self, input_ids: Int[Tensor, "R T"], scores: Float[Tensor, "R V"]) -> Float[Tensor, "R V"]:
        """Return scores + log p(constraint | prefix, v) - log p(constraint | prefix) for every next token v.

        For a loop of one's own, which must go on for `max_new_tokens` tokens or until EOS; `check` finds texts that were cut off.

        Args:
            input_ids: Prompts and the tokens generated so far (R, T), a row for each beam or sequence.
            scores: Log-probabilities or logits of the language model (R, V).

        Returns:
            New scores (R, V), -inf for tokens that the constraint forbids.

        Raises:
            ImpossibleConstraintError: The HMM gives the constraint probability zero after a prompt.
            ImpossibleTextError: The HMM gives a prompt probability zero.
            ValueError: `scores` has fewer tokens than the HMM, no token is left, or more than `max_new_tokens` are asked for.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> guide = vlhmm.Guide(lm, vlhmm.contains("fish"), max_new_tokens=4)
            >>> prompt = torch.tensor([lm.tokenizer.encode("the cat sees a")])
            >>> scores = lm.hmm.next_token_probs(lm.hmm.filter(prompt).belief).log()  # here the HMM is the language model too
            >>> lm.tokenizer.token(scores.argmax()), lm.tokenizer.token(guide.step(prompt, scores).argmax())
            ('bird', 'fish')
        """
        if scores.shape[1] < self._tables.num_words:
            raise ValueError(
                f"the language model scores {scores.shape[1]} tokens, but the HMM has {self._tables.num_words}: "
                "use an HMM over the language model's own vocabulary"
            )
        # One copy to the host instead of several host-device synchronisations, each of which waits for the language model.
        ids = input_ids.to("cpu", copy=True)
        rows = self._row_guide.continued(self._rows, ids)
        begins = rows is None
        if begins and self._rows is not None:
            self._row_guide.warn_of_cut_off(self._rows)
        self._rows = rows = rows or self._row_guide.begun(
            ids, self._opening, self._lengths if self._read_prompt else None
        )
        ended = [row for row, state in enumerate(rows.states) if state in self._plan.ended]
        going = [row for row, state in enumerate(rows.states) if self._row_guide.goes_on(state, rows.left)]
        self._row_guide.require_some(ended + going, len(rows.states))
        guided = torch.full_like(scores, -torch.inf)
        if ended:
            # Whatever comes after the end is replaced by padding, but it must be drawn from something.
            guided[ended, self._eos_ids[0]] = 0
        if going:
            place = slice(None) if len(going) == len(rows.states) else going
            own = scores[place, : self._tables.num_words].to(self._tables.device, torch.float32)
            found = self._row_guide.guided(rows.log_ahead[place], rows, going, own, begins)
            guided[place, : self._tables.num_words] = found.to(scores)
        return guided

    def _lengths(self, ids: Int[Tensor, "R T"]) -> list[int]:
        """The tokens of each row without its padding on the left."""
        num_rows, num_positions = ids.shape
        given = self._prompt_lengths
        if given is None:
            if self._pad_id is None:
                return [num_positions] * num_rows
            padding: list[int] = (ids == self._pad_id).long().cumprod(1).sum(1).tolist()
            return [num_positions - pads for pads in padding]
        fits = len(given) and num_rows % len(given) == 0 and all(0 <= length <= num_positions for length in given)
        if not fits or (self._prompts is not None and not torch.equal(self._prompts, ids)):
            raise ValueError(
                f"prompt_lengths are {given}, but the batch has {num_rows} rows of {num_positions} tokens, or others than "
                "before: give one length a prompt, and call reset(prompt_lengths=...) for new prompts"
            )
        self._prompts = ids
        return [length for length in given for _ in range(num_rows // len(given))]


def _as_constraints(given: Any) -> list[Constraint | Automaton]:
    constraints = list(given) if isinstance(given, list | tuple) else [given]
    return [one if isinstance(one, Automaton) else check_constraint(one) for one in constraints]


def _eos_ids(given: int | Sequence[int] | None, tokenizer: Any) -> tuple[int, ...]:
    if isinstance(given, int):
        return (given,)
    if given is not None:
        return tuple(given)
    own = tokenizer.eos_id if isinstance(tokenizer, Tokenizer) else getattr(tokenizer, "eos_token_id", None)
    return () if own is None else (own,)
