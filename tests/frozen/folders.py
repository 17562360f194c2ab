"""Folders as the first edition wrote them: one of every kind of model, runs stopped in the middle, a teacher, a corpus, samples.

They are committed, and recording never writes one that is there: every later edition must read them and give the same scores.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vlhmm
from vlhmm.tables import Belief, Tables

from . import entry_points, records, training
from .training import FIRST_EDITION

NAME = "folders"
MODELS, RUNS, SAMPLES = FIRST_EDITION / "models", FIRST_EDITION / "stopped", FIRST_EDITION / "samples"
ARPA, BLOCKS = FIRST_EDITION / "trigrams.arpa", FIRST_EDITION / "blocks.tsv"
STOPPED_RUNS = ["neural", "lvd", "em-minibatch", "lstm", "decoder"]
"""One of every loop."""
COMMAND_RUN = "by-command"
"""A run that `vlhmm train` began; it is gone on with by its name alone."""
TRAINED = [*training.GRADIENT, "em"]
SUBWORD = "subword"
TEXT = "the file reads the list ."
PIECES = 40
"""Tokens of the subword vocabulary."""
DRAWN = {"tokens": 1200, "max_tokens": 12, "batch_size": 40}
TINY_LLAMA = "tiny-llama"

Maker = Callable[[Path], None]


def makers() -> dict[Path, Maker]:
    """How each folder or file was made, in an order in which they can be."""
    made: dict[Path, Maker] = {
        FIRST_EDITION / "corpus": _prepare,
        training.TEACHER: lambda folder: entry_points.write_decoder(
            folder, training.corpus(), training.DECODER, training.DECODER_TRAINING
        ),
        BLOCKS: _cluster,
        ARPA: _count_ngrams,
        SAMPLES: _draw_samples,
    }
    made |= {MODELS / name: _train_model for name in TRAINED}
    made[MODELS / SUBWORD] = _train_subword_model
    made |= {RUNS / name: _stop_run for name in STOPPED_RUNS}
    made[RUNS / COMMAND_RUN] = _stop_command
    return made


def _prepare(folder: Path) -> None:
    texts = [FIRST_EDITION / "text" / f"{split}.txt" for split in ("train", "valid", "test")]
    entry_points.run_command("prepare", *texts, "--tokenizer", "whitespace", "--out", folder)


def _cluster(file: Path) -> None:
    corpus = training.corpus()
    blocks = vlhmm.brown_clusters(
        corpus.train, 4, eos_id=corpus.tokenizer.eos_id, vocab_size=corpus.tokenizer.vocab_size
    )
    counts = np.bincount(corpus.train.ids, minlength=corpus.tokenizer.vocab_size)
    blocks.save(file, corpus.tokenizer.tokens(), counts)


def _count_ngrams(file: Path) -> None:
    corpus = training.corpus()
    model = vlhmm.KneserNey.fit(
        corpus.train,
        order=3,
        num_words=corpus.tokenizer.vocab_size,
        eos_id=corpus.tokenizer.eos_id,
        fallback=(0.5, 1.0, 1.5),
    )
    model.save_arpa(file, corpus.tokenizer)


def _draw_samples(folder: Path) -> None:
    """From a random Llama over a few subwords of the text."""
    import tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=PIECES, special_tokens=["<|end|>"], show_progress=False)
    backend.train_from_iterator((FIRST_EDITION / "text" / "train.txt").read_text().splitlines(), trainer)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=backend.get_vocab_size(),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        initializer_range=0.5,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    text_tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>", bos_token="<|end|>")
    entry_points.draw_samples(folder, TINY_LLAMA, LlamaForCausalLM(config).eval(), text_tokenizer, **DRAWN)
    (folder / ".lock").unlink(missing_ok=True)


def _train_model(folder: Path) -> None:
    recipe = training.SCALAR if folder.name == "em" else training.GRADIENT[folder.name]
    corpus = training.corpus()
    model = entry_points.recipe_model(recipe, corpus)
    if folder.name == "em":
        events = entry_points.em_events(model, training.EM["em"], corpus, None, False)
    else:
        events = entry_points.gradient_events(model, recipe, corpus, None, False)
    for _ in events:
        pass
    vlhmm.LanguageModel(model, corpus.tokenizer, {"corpus": {"name": corpus.name, "hash": corpus.hash}}).save(folder)


def _train_subword_model(folder: Path) -> None:
    corpus, recipe = vlhmm.load_corpus(SAMPLES), training.GRADIENT["linear"]
    recipe = {**recipe, "train": {**recipe["train"], "window": DRAWN["max_tokens"], "epochs": 1}}
    model = entry_points.recipe_model(recipe, corpus)
    for _ in entry_points.gradient_events(model, recipe, corpus, None, False):
        pass
    vlhmm.LanguageModel(model, corpus.tokenizer).save(folder)


def _stop_run(folder: Path) -> None:
    training.stopped(training.loop_of(folder.name), folder)
    (folder / ".lock").unlink(missing_ok=True)


COMMAND_OPTIONS = [
    *("--preset", "demo", "--device", "cpu", "--set", "num_blocks=4", "--set", "states_per_block=4"),
    # As the preset has it, results would depend on the machine: see `training.IN_DOUBLE`.
    *("--set", "transition=softmax", "--set", "initialisation=code"),
    *("--set", "dim=8", "--set", "batch_size=4", "--set", "window=24", "--set", "epochs=2"),
]


def _stop_command(folder: Path) -> None:
    """Names of this machine and its folders are taken out again: the corpus is beside the working directory."""
    corpus = FIRST_EDITION / "corpus"
    entry_points.run_command("train", corpus, "--out", folder, *COMMAND_OPTIONS, "--max-seconds", 0)
    plan = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    plan["corpus"] = corpus.name
    (folder / "recipe.json").write_text(json.dumps(plan, indent=2), encoding="utf-8")
    for name in ("results.json", "learning_curve.png", ".lock"):
        (folder / name).unlink(missing_ok=True)


def model_scores(folder: Path, corpus: vlhmm.Corpus) -> dict[str, Any]:
    """What a `LanguageModel` that was read from `folder` answers."""
    lm = vlhmm.load(folder)
    explained = lm.explain(TEXT, top=2)
    ids = torch.tensor([lm.tokenizer.encode("the file")])
    scores = torch.linspace(-1.0, 1.0, lm.tokenizer.vocab_size)[None]
    stream = lm.stream()
    return {
        "about": lm.about,
        "perplexity": lm.perplexity(corpus.test),
        "streams": lm.evaluate(corpus.test, streams=4).perplexity,
        "score": asdict(lm.score(TEXT, eos=True)),
        "next": lm.next_tokens("the file", 3, unk=True),
        "posterior": [asdict(token) for token in lm.posterior(TEXT, 1)],
        "viterbi": [[path.log_prob, *(state.state for state in path.states)] for path in lm.viterbi(TEXT, 2)],
        "explain": [explained.path_entropy, *(token.entropy for token in explained.tokens)],
        "infill": asdict(lm.infill("the ___ reads the ___{1,2} .", num=2, top=1, gap=(1, 1), unk=True, seed=_seeded())),
        "generate": lm.generate("the", num=2, max_tokens=8, unk=True, seed=_seeded()),
        "generate.contains": lm.generate(
            "the", num=2, max_tokens=8, constraint=vlhmm.contains("file"), unk=True, seed=_seeded()
        ),
        "best_text": asdict(lm.best_text("the", max_tokens=4, unk=True)),
        "constraint_probability": lm.constraint_probability("the", vlhmm.contains("file"), 5),
        "guide": vlhmm.Guide(lm, vlhmm.contains("list"), max_new_tokens=4).step(ids, scores)[0].tolist(),
        "stream": [token.log_prob for piece in ("the file ", "reads the") for token in stream.feed(piece)],
    }


def opening_of_records(tables: Tables, token: int, unknown: int) -> Belief | None:
    """What is believed after an EOS that is the first token of all."""
    return vlhmm.HMM(tables).filter([[token]]).belief


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def corpus_figures(folder: Path) -> dict[str, Any]:
    corpus = vlhmm.load_corpus(folder)
    splits = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}
    return {
        "hash": corpus.hash,
        "tokenizer": corpus.tokenizer.hash,
        "first": {name: tokens.ids[:8].tolist() for name, tokens in splits.items()},
        "offsets": {name: tokens.offsets[:4].tolist() for name, tokens in splits.items()},
        "length": {name: [len(tokens), tokens.num_documents] for name, tokens in splits.items()},
        "decoded": corpus.tokenizer.decode(corpus.test.ids[:8].tolist()),
    }


def other_figures() -> dict[str, Any]:
    corpus = training.corpus()
    blocks = vlhmm.Blocks.load(BLOCKS, corpus.tokenizer.tokens())
    clusters, about = entry_points.clusters_of(RUNS / "lvd" / "clusters.safetensors")
    return {
        "corpus": corpus_figures(FIRST_EDITION / "corpus"),
        "samples": corpus_figures(SAMPLES),
        "decoder": entry_points.decoder_score(training.TEACHER, corpus, 24),
        "blocks": blocks.block_of_word.tolist(),
        "trigrams": entry_points.ngram_perplexity(ARPA, corpus),
        "clusters": {"about": json.loads(about), "digest": training.digest_of(clusters)},
    }


def resumed_run(name: str, copied_to: Path) -> dict[str, Any]:
    """How a run of the first edition ends; `copied_to` is a copy of its folder."""
    return training.as_record(*training.trained(training.loop_of(name), copied_to, resume=True))


def record() -> None:
    for path, make in makers().items():
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as temporary:
                # Whole or not at all.
                made = Path(temporary) / path.name
                make(made)
                made.rename(path)
    values = {"models": {name: model_scores(MODELS / name, training.corpus()) for name in TRAINED}}
    values["models"][SUBWORD] = model_scores(MODELS / SUBWORD, vlhmm.load_corpus(SAMPLES))
    records.write_json(NAME, json.loads(json.dumps({**values, "others": other_figures()})))
