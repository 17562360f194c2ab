"""Recipes: everything that decides a training run, in one record; presets are recipes with a name."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

import torch

from vlhmm.cluster import Blocks, clustering, one_block, one_word_per_block
from vlhmm.data import Corpus
from vlhmm.distributed import ALONE, World
from vlhmm.models import Model, ModelSettings, Reset, build, build_blocked
from vlhmm.progress import Progress, result_of
from vlhmm.settings import nearest, parse_setting, settings_from
from vlhmm.support import uniform_support
from vlhmm.training.baseline_settings import AWDLSTMSettings
from vlhmm.training.settings import TrainSettings
from vlhmm.training.stage_settings import (
    STAGES,
    PretrainedSettings,
    SampledText,
    Stages,
    merged_sections,
    parse_stage_setting,
)


@dataclass(frozen=True)
class BlockSettings:
    clustering: Literal["brown", "one", "cloned", "uniform"] = "brown"
    """brown: Brown clusters; one: a single block, so a dense HMM; cloned: a block for every word; uniform: no blocks, each
    word draws states_per_block of the num_blocks * states_per_block states (softmax transition, dropout by columns)."""
    refine: bool = True
    """brown: words are exchanged between blocks afterwards, as long as that makes neighbours tell more about each other."""
    num_blocks: int = 128
    """M, EOS's own block included. Read by brown and uniform."""
    eos_block: Literal["own", "word", "last", "none"] = "own"
    """Where EOS goes: a block of its own, clustered like a word, into the last block, or into the smallest one."""
    reset: Reset = "carry"
    """carry: states go on over EOS; eos: the word after EOS comes from the start distribution."""


@dataclass(frozen=True)
class Recipe:
    blocks: BlockSettings = field(default_factory=BlockSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    """With `stages`: the training on samples mixed with real text, which comes before that on real text alone."""
    stages: Stages | None = None
    """A teacher, its samples and the training on real text; None: the text is trained on and nothing else."""

    def __post_init__(self) -> None:
        if self.stages is None or not self.train.context:
            return
        samples, train = self.stages.samples, self.train
        if (samples.context, samples.context + samples.length) != (train.context, train.window):
            raise ValueError(
                f"context is {train.context} and window {train.window}, but samples are {samples.context} tokens of context and "
                f"{samples.length} after them: set samples.context to {train.context} and samples.length to "
                f"{train.window - train.context}, so that each window is a sample"
            )
        if isinstance(self.stages.teacher, PretrainedSettings):
            raise ValueError(
                f"context is {train.context}, but texts of {self.stages.teacher.model} end where it ends them, so that windows are no "
                "samples: set context to 0, or train a teacher of this package"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Mapping[str, Any]]) -> Recipe:
        """From sections `blocks`, `model` and `train`, as in a TOML file; `teacher`, `samples` or `finetune` ask for stages."""
        for section in values:
            if section not in (*_SECTIONS, *STAGES):
                raise ValueError(f"unknown section {section!r}; {nearest(section, (*_SECTIONS, *STAGES))}")
        made = cls(**{name: settings_from(kind, values.get(name, {})) for name, kind in _SECTIONS.items()})
        staged = any(section in values for section in STAGES)
        return replace(made, stages=Stages.from_dict(values)) if staged else made

    def to_dict(self) -> dict[str, dict[str, Any]]:
        own = {name: asdict(getattr(self, name)) for name in _SECTIONS}
        return own if self.stages is None else {**own, **self.stages.to_dict()}

    def with_sections(self, sections: Mapping[str, Mapping[str, Any]]) -> Recipe:
        """With the settings of these sections in place of its own."""
        return Recipe.from_dict(merged_sections(self.to_dict(), sections))

    def with_changes(self, changes: Mapping[str, str]) -> Recipe:
        """With settings as a person types them, `dim` = `128`; every name belongs to one section.

        Those of stages have the section before their name, `finetune.epochs` = `2`; the seed is that of all stages.
        """
        values = self.to_dict()
        section_of = {item.name: section for section, kind in _SECTIONS.items() for item in fields(kind)}
        of_stages: dict[str, dict[str, Any]] = {}
        kind = changes.get("teacher.kind", values.get("teacher", {}).get("kind", "awd-lstm"))
        for name, text in changes.items():
            stage, _, rest = name.partition(".")
            if stage in STAGES and rest:
                of_stages.setdefault(stage, {})[rest] = parse_stage_setting(stage, rest, text, kind)
                continue
            if name not in section_of:
                raise ValueError(f"unknown setting {name!r}; {nearest(name, section_of)}")
            section = section_of[name]
            values[section][name] = parse_setting(_SECTIONS[section], name, text)
            if name == "seed" and self.stages is not None:
                of_stages.setdefault("finetune", {}).setdefault(name, values[section][name])
        return Recipe.from_dict(merged_sections(values, of_stages))

    def make_blocks(self, corpus: Corpus) -> Blocks:
        return result_of(self.making_blocks(corpus))

    def making_blocks(self, corpus: Corpus, here: World = ALONE) -> Generator[Progress, None, Blocks]:
        """`make_blocks`, telling how far it is."""
        num_words, settings = corpus.tokenizer.vocab_size, self.blocks
        match settings.clustering:
            # Without blocks all words are in one; `make_model` then lets each draw its states.
            case "one" | "uniform":
                return one_block(num_words)
            case "cloned":
                return one_word_per_block(num_words)
            case "brown":
                return (
                    yield from clustering(
                        corpus.train,
                        settings.num_blocks,
                        eos="none" if corpus.tokenizer.eos_id is None else settings.eos_block,
                        eos_id=corpus.tokenizer.eos_id,
                        vocab_size=num_words,
                        refine=settings.refine,
                        seed=self.train.seed,
                        here=here,
                    )
                )

    def make_model(self, corpus: Corpus, blocks: Blocks) -> Model:
        """The model before training: its weights depend on nothing but the seed."""
        generator = torch.Generator().manual_seed(self.train.seed)
        eos_id, reset = corpus.tokenizer.eos_id, self.blocks.reset
        if self.blocks.clustering != "uniform":
            return build_blocked(self.model, blocks, eos_id=eos_id, reset=reset, generator=generator)
        states = self.model.states_per_block
        support = uniform_support(corpus.tokenizer.vocab_size, self.blocks.num_blocks * states, states, generator)
        return build(self.model, support, eos_id if reset == "eos" else None, generator)


_SECTIONS: dict[str, type[Any]] = {"blocks": BlockSettings, "model": ModelSettings, "train": TrainSettings}


_LEE2025_TRAINING = TrainSettings(
    warmup=0.0512,
    final_rate=0.1,
    batch_size=200,
    window=64,
    windows="independent",
    state_dropout=0.0,
    beta2=0.95,
    weight_decay=0.1,
)
"""Lee & Berg-Kirkpatrick, their Table 5."""


def _lee2025(learning_rate: float, **model: Any) -> Recipe:
    """`normal` is how their code begins; EOS is a token like any other there."""
    settings = {
        "states_per_block": 512,
        "dim": 128,
        "start": "left",
        "emission_bias": False,
        "initialisation": "normal",
        "init_scale": 1.0,
        **model,
    }
    return Recipe(
        BlockSettings(clustering="one"),
        settings_from(ModelSettings, settings),
        replace(_LEE2025_TRAINING, learning_rate=learning_rate, epochs=1, seed=42),
    )


_LINEAR = {"parameterization": "linear", "embeddings": "split"}
_LAYERS = {"parameterization": "neural", "network": "layers"}
_FREE = {"a": {"transition": "table"}, "b": {"emission": "free"}, "pi": {"start": "free"}}
"""Table 2: each matrix that is not factored."""


def _factored(*matrices: str) -> Recipe:
    """Ablation B with these matrices factored, the others free."""
    free = [settings for matrix, settings in _FREE.items() if matrix not in matrices]
    learning_rate = 0.1 if "a" in matrices else 0.4
    return _lee2025(learning_rate, **_LINEAR, **{name: value for settings in free for name, value in settings.items()})


_MIXTURE_TRAINING = TrainSettings(
    epochs=1, batch_size=32, window=64, state_dropout=0.25, ema=0.998, weight_decay=0.05, checks_per_epoch=20
)
"""One pass over samples of a teacher mixed with real text."""


PRESETS: dict[str, Recipe] = {
    "demo": Recipe(
        BlockSettings(num_blocks=64),
        ModelSettings(states_per_block=64, dim=128, transition="block-factored", initialisation="paper"),
        TrainSettings(
            learning_rate=0.02, epochs=5, batch_size=32, window=32, ema=0.99, weight_decay=0.02, checks_per_epoch=2
        ),
    ),
    "default": Recipe(
        BlockSettings(num_blocks=128),
        ModelSettings(states_per_block=256, dim=256, transition="block-factored", initialisation="paper"),
        TrainSettings(epochs=24, batch_size=32, window=64, ema=0.998, weight_decay=0.02),
    ),
    # Text of one's own on a CPU; `choice.py` adapts epochs, batch and blocks to the amount of text.
    "cpu": Recipe(
        BlockSettings(num_blocks=512),
        ModelSettings(states_per_block=32, dim=128, transition="block-factored", initialisation="paper"),
        TrainSettings(epochs=12, batch_size=64, window=64, ema=0.99, weight_decay=0.3, checks_per_epoch=1),
    ),
    "scalar": Recipe(
        BlockSettings(clustering="one", reset="eos"),
        ModelSettings(parameterization="scalar", transition="table", states_per_block=512),
        TrainSettings(learning_rate=0.1, state_dropout=0.0, batch_size=32, window=64),
    ),
    "linear": Recipe(
        BlockSettings(num_blocks=128),
        ModelSettings(parameterization="linear", embeddings="split", states_per_block=128, transition="block-factored"),
        TrainSettings(batch_size=32, window=64, ema=0.998),
    ),
    # Chiu, Deng & Rush 2021: every state emits every word, and a step costs Z R instead of Z^2.
    "low-rank": Recipe(
        BlockSettings(clustering="one", reset="eos"),
        ModelSettings(
            states_per_block=4096, dim=256, transition="low-rank", rank=256, target_network=True, initialisation="paper"
        ),
        TrainSettings(learning_rate=0.003, state_dropout=0.0, batch_size=32, window=64, ema=0.998),
    ),
    # Samples of a language model, dense: every token by any state, as a guide for that model needs it.
    "distill": Recipe(
        BlockSettings(clustering="one", reset="eos"),
        ModelSettings(parameterization="linear", embeddings="split", states_per_block=512, dim=128),
        # The rate: on 10.8 million tokens of SmolLM2 better after 4 epochs than 0.1 after 16, and than 0.005.
        replace(_LEE2025_TRAINING, learning_rate=0.02, warmup=0.05, epochs=8, checks_per_epoch=1),
    ),
    # The paper's text.
    "chiu2020-ptb": Recipe(
        BlockSettings(refine=False, reset="eos"),
        ModelSettings(target_network=True, initialisation="paper"),
        TrainSettings(schedule="plateau", warmup=0.0, epochs=50, patience=8),
    ),
    "chiu2020-wt2": Recipe(
        BlockSettings(refine=False, reset="eos"),
        ModelSettings(target_network=True, initialisation="paper"),
        TrainSettings(learning_rate=1e-3, schedule="plateau", warmup=0.0, epochs=50, patience=8),
    ),
    # What their code did.
    "chiu2020-ptb-code": Recipe(
        BlockSettings(refine=False, reset="eos", eos_block="last"),
        ModelSettings(),
        TrainSettings(schedule="plateau", warmup=0.0, epochs=50, patience=4),
    ),
    "chiu2020-wt2-code": Recipe(
        BlockSettings(refine=False, reset="eos", eos_block="last"),
        ModelSettings(),
        TrainSettings(schedule="plateau", warmup=0.0, epochs=50, patience=4),
    ),
    # psi: a network for each role; iota: one for all. Rates: the best of a few on half a million tokens with 64 states, but
    # for the scalar model that of the paper's Table 6; a long run is worth a search of its own.
    "lee2025-scalar": _lee2025(0.4, parameterization="scalar", transition="table"),
    "lee2025-psi-mlp": _lee2025(0.1, **_LAYERS),
    "lee2025-iota-mlp": _lee2025(0.04, **_LAYERS, monolithic=True),
    "lee2025-psi-trf": _lee2025(0.04, parameterization="transformer"),
    "lee2025-iota-trf": _lee2025(0.04, parameterization="transformer", monolithic=True),
    # One ReLU layer, the best of the paper's Table 3.
    "lee2025-relu": _lee2025(0.04, **_LAYERS, layers=1, skip=False, layer_norm=False),
    # Ablations A and B: products of embeddings, tied and split.
    "lee2025-a": _lee2025(0.1, parameterization="linear"),
    "lee2025-b": _lee2025(0.1, **_LINEAR),
    # Table 2; its first row is lee2025-scalar, its last lee2025-b.
    "lee2025-factored-a": _factored("a"),
    "lee2025-factored-b": _factored("b"),
    "lee2025-factored-pi": _factored("pi"),
    "lee2025-factored-a-b": _factored("a", "b"),
    "lee2025-factored-a-pi": _factored("a", "pi"),
    "lee2025-factored-b-pi": _factored("b", "pi"),
    "best-ptb": Recipe(
        BlockSettings(num_blocks=128),
        ModelSettings(states_per_block=512, transition="block-factored", initialisation="paper"),
        TrainSettings(epochs=12, batch_size=32, window=64, state_dropout=0.25, ema=0.998, weight_decay=0.3),
    ),
    "best-wt2": Recipe(
        BlockSettings(num_blocks=128),
        ModelSettings(states_per_block=512, transition="block-factored", initialisation="paper"),
        TrainSettings(epochs=10, batch_size=32, window=64, state_dropout=0.5, ema=0.998, weight_decay=0.05),
    ),
    # A hundred million tokens of subwords and more: one pass.
    "english": Recipe(
        BlockSettings(num_blocks=512),
        ModelSettings(states_per_block=256, transition="block-factored", initialisation="paper"),
        TrainSettings(
            epochs=1, batch_size=64, window=64, state_dropout=0.25, ema=0.998, weight_decay=0.02, checks_per_epoch=8
        ),
    ),
    # From the text of a teacher that is trained on the same text.
    "taught-ptb": Recipe(
        BlockSettings(num_blocks=512),
        ModelSettings(states_per_block=256, transition="block-factored", initialisation="paper"),
        _MIXTURE_TRAINING,
        Stages(
            AWDLSTMSettings(epochs=50, average_after=30),
            SampledText(),
            replace(_MIXTURE_TRAINING, learning_rate=2e-3, epochs=2, weight_decay=0.3, checks_per_epoch=4),
        ),
    ),
    "taught-wt2": Recipe(
        BlockSettings(num_blocks=512),
        ModelSettings(states_per_block=256, transition="block-factored", initialisation="paper"),
        _MIXTURE_TRAINING,
        Stages(
            AWDLSTMSettings(batch_size=80, input_dropout=0.65, hidden_dropout=0.2, epochs=60, average_after=35),
            # A batch of fewer rows: the vocabulary is three times as large.
            SampledText(batch_size=4096),
            replace(_MIXTURE_TRAINING, learning_rate=2e-3, epochs=2, weight_decay=0.3, checks_per_epoch=4),
        ),
    ),
}


def preset(name: str) -> Recipe:
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}; {nearest(name, PRESETS)}")
    return PRESETS[name]
