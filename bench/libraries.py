"""Parts of the package beside libraries that could take their place: CPU seconds of one thread, and whether answers are equal.

    OMP_NUM_THREADS=1 python -m bench.libraries kmeans          # scikit-learn; faiss where it is installed
    OMP_NUM_THREADS=1 python -m bench.libraries decoder         # transformers
    OMP_NUM_THREADS=1 python -m bench.libraries settings        # pydantic
    OMP_NUM_THREADS=1 python -m bench.libraries sentencepiece   # transformers; needs VLHMM_DATA

What was found is in docs/explanation/architecture.md, "Libraries considered".
"""

from __future__ import annotations

import argparse
import importlib
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

VECTORS, DIM, CLUSTERS = 200_000, 256, 512
"""Of k-means: the width of the teachers of Lee & Berg-Kirkpatrick's tables, a fiftieth of their vectors."""
PASSES = 10
TEACHER = {"dim": 256, "layers": 4, "heads": 4, "hidden": 704}
BATCH, WINDOW, WORDS = 8, 64, 32_000


def seconds(work: Callable[[], Any], repeats: int = 1) -> tuple[float, Any]:
    """CPU seconds of the fastest repeat, and its answer: on a busy machine those of the clock say little."""
    taken = []
    for _ in range(repeats):
        begun = time.process_time()
        answer = work()
        taken.append(time.process_time() - begun)
    return min(taken), answer


def import_seconds(module: str) -> float:
    """What a process pays for the import, torch already imported."""
    program = f"import torch, time; t = time.process_time(); import {module}; print(time.process_time() - t)"
    return min(float(subprocess.check_output([sys.executable, "-c", program])) for _ in range(3))


def kmeans() -> None:
    clustering = importlib.import_module("sklearn.cluster")

    from vlhmm.distillation.lvd.kmeans import CPU_BATCH, Clusters, KMeansSettings, cluster_vectors

    generator = torch.Generator().manual_seed(0)
    # Clusters of different size and width, which overlap, as vectors of a language model do.
    centres = torch.randn(4 * CLUSTERS, DIM, generator=generator)
    member = torch.multinomial(torch.rand(4 * CLUSTERS, generator=generator) ** 3, VECTORS, True, generator=generator)
    vectors = centres[member] + torch.rand(VECTORS, 1, generator=generator) * torch.randn(
        VECTORS, DIM, generator=generator
    )
    array = vectors.numpy()

    def ours(batch_size: int) -> np.ndarray:
        settings = KMeansSettings(iterations=PASSES, batch_size=batch_size, tolerance=0.0)
        found = list(cluster_vectors(vectors, CLUSTERS, settings, generator=torch.Generator().manual_seed(0)))[-1]
        assert isinstance(found, Clusters)
        return found.centroids.numpy()

    def sklearn(kind: type, **options: Any) -> np.ndarray:
        fitted = kind(CLUSTERS, n_init=1, max_iter=PASSES, tol=0.0, random_state=0, **options).fit(array)
        return np.asarray(fitted.cluster_centers_)

    candidates: list[tuple[str, Callable[[], np.ndarray]]] = [
        ("ours, mini-batches (default)", lambda: ours(0)),
        ("ours, Lloyd", lambda: ours(VECTORS)),
        (f"scikit-learn {version('scikit-learn')} KMeans", lambda: sklearn(clustering.KMeans)),
        (
            f"scikit-learn {version('scikit-learn')} MiniBatchKMeans",
            lambda: sklearn(clustering.MiniBatchKMeans, batch_size=CPU_BATCH, max_no_improvement=None),
        ),
    ]
    try:
        faiss = importlib.import_module("faiss")
    except ImportError:
        print("faiss is not installed")
    else:
        faiss.omp_set_num_threads(1)

        def with_faiss(init: str) -> np.ndarray:
            method = getattr(faiss, f"ClusteringInitMethod_{init}")
            run = faiss.Kmeans(DIM, CLUSTERS, niter=PASSES, seed=0, max_points_per_centroid=VECTORS, init_method=method)
            run.train(array)
            return np.asarray(run.centroids)

        for init in ("RANDOM", "KMEANS_PLUS_PLUS"):
            candidates.append((f"faiss {faiss.__version__} Kmeans, {init}", partial(with_faiss, init)))
    for name, work in candidates:
        taken, found = seconds(work)
        same = np.array_equal(found, work())
        distances = _squared_distances(array, found)
        empty = CLUSTERS - len(np.unique(distances.argmin(1)))
        print(
            f"{name}: {taken:.1f} CPU s, mean squared distance {distances.min(1).mean():.3f}, {empty} clusters empty, "
            f"{'same' if same else 'other'} bits when repeated"
        )


def _squared_distances(array: np.ndarray, centres: np.ndarray) -> np.ndarray:
    return np.asarray(
        (array**2).sum(1, keepdims=True) - 2 * (array @ centres.astype(np.float32).T) + (centres**2).sum(1)
    )


def decoder() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from vlhmm.distillation.decoder import DecoderSettings
    from vlhmm.distillation.decoder.model import Decoder

    ours = Decoder(DecoderSettings(**TEACHER), num_words=WORDS)  # type: ignore[arg-type]
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=TEACHER["dim"],
        intermediate_size=TEACHER["hidden"],
        num_hidden_layers=TEACHER["layers"],
        num_attention_heads=TEACHER["heads"],
        rms_norm_eps=1e-5,
        tie_word_embeddings=ours.settings.tied,
    )
    theirs = LlamaForCausalLM(config)
    theirs.load_state_dict(ours.state_dict())
    tokens = torch.randint(WORDS, (BATCH, WINDOW), generator=torch.Generator().manual_seed(0))
    begun = torch.cat([torch.zeros_like(tokens[:, :1]), tokens], dim=1)

    def their_loss() -> torch.Tensor:
        logits = theirs(begun[:, :-1], use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())

    def step(model: torch.nn.Module, loss: Callable[[], torch.Tensor]) -> torch.Tensor:
        model.zero_grad()
        value = loss()
        value.backward()
        return value.detach()

    def vectors() -> torch.Tensor:
        with torch.no_grad():
            hidden: torch.Tensor = theirs.model(begun, use_cache=False).last_hidden_state
        return hidden

    our_step, our_value = seconds(lambda: step(ours, lambda: ours.loss(tokens)), 5)
    their_step, their_value = seconds(lambda: step(theirs, their_loss), 5)
    our_time, our_vectors = seconds(lambda: ours.hidden(tokens), 5)
    their_time, their_vectors = seconds(vectors, 5)
    gradients = max(
        float((one.grad - other.grad).abs().max() / one.grad.abs().max())
        for name, one in ours.named_parameters()
        if one.grad is not None and (other := theirs.get_parameter(name)).grad is not None
    )
    print(f"{BATCH} x {WINDOW} tokens, {sum(p.numel() for p in ours.parameters()):,} parameters")
    print(
        f"loss and gradient: ours {our_step:.2f} CPU s, transformers {version('transformers')} {their_step:.2f} CPU s"
    )
    print(f"vectors: ours {our_time:.3f} CPU s, transformers {their_time:.3f} CPU s")
    print(
        f"differences: loss {abs(float(our_value - their_value)):.1e}, vectors {float((our_vectors - their_vectors).abs().max()):.1e}, "
        f"gradients {gradients:.1e} of the largest"
    )
    print(f"import: {import_seconds('transformers.models.llama.modeling_llama'):.1f} CPU s beside torch's")


def settings() -> None:
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    from vlhmm.models import ModelSettings
    from vlhmm.settings import settings_from

    strict = type("Strict", (ModelSettings,), {"__pydantic_config__": ConfigDict(extra="forbid")})
    built, adapter = seconds(lambda: TypeAdapter(strict))
    good = {"dim": 64, "transition": "block-factored", "out_scale": 1}
    print(
        f"import: {1e3 * import_seconds('pydantic'):.0f} ms beside torch's; adapter of one class: {1e3 * built:.0f} ms"
    )
    times = 1000
    our_time, _ = seconds(lambda: [settings_from(ModelSettings, good) for _ in range(times)])
    their_time, _ = seconds(lambda: [adapter.validate_json(json.dumps(good), strict=True) for _ in range(times)])
    print(
        f"one record: ours {1e6 * our_time / times:.0f} us, pydantic {version('pydantic')} {1e6 * their_time / times:.0f} us"
    )
    bad: Sequence[dict[str, Any]] = ({"dims": 64}, {"dim": "64"}, {"dim": True}, {"transition": "softmx"}, {"dim": 0})
    for values in bad:
        try:
            settings_from(ModelSettings, values)
        except ValueError as error:
            print(f"{values}\n  ours: {error}")
        try:
            adapter.validate_json(json.dumps(values), strict=True)
        except ValidationError as error:
            print(f"  pydantic, {len(str(error).splitlines())} lines: {' | '.join(str(error).splitlines())}")


def sentencepiece() -> None:
    import sentencepiece as original

    from vlhmm.data import load_tokenizer

    transformers = importlib.import_module("transformers")
    folder = Path(os.environ["VLHMM_DATA"])
    path = folder / "tokenizers" / "llama2_tokenizer.model"
    lines = lzma.decompress((folder / "english" / "valid.txt.xz").read_bytes()).decode().split("\n")
    expected = original.SentencePieceProcessor(model_file=str(path)).encode(lines)

    def report(name: str, convert: Callable[[], Any], encode: Callable[[Any], list[list[int]]]) -> None:
        converted, tokenizer = seconds(convert)
        encoded, ids = seconds(lambda: encode(tokenizer))
        differ = sum(one != other for one, other in zip(ids, expected, strict=True))
        print(
            f"{name}: {converted:.2f} CPU s to convert, {encoded:.2f} to encode, {differ:,} of {len(lines):,} lines differ"
        )

    def encode(tokenizer: Any) -> list[list[int]]:
        return [one.ids for one in tokenizer.backend_tokenizer.encode_batch(lines, add_special_tokens=False)]

    report("ours", lambda: load_tokenizer(path), lambda tokenizer: tokenizer.encode_batch(lines))
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copy(path, Path(scratch) / "tokenizer.model")
        name = f"transformers {transformers.__version__}"
        for label, kind, options in (
            ("LlamaTokenizer", transformers.LlamaTokenizer, {}),
            ("LlamaTokenizer, legacy", transformers.LlamaTokenizer, {"legacy": True}),
            ("AutoTokenizer", transformers.AutoTokenizer, {}),
        ):
            report(f"{name} {label}", partial(kind.from_pretrained, scratch, **options), encode)


def main() -> None:
    parts: dict[str, Callable[[], None]] = {
        "kmeans": kmeans,
        "decoder": decoder,
        "settings": settings,
        "sentencepiece": sentencepiece,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=parts)
    torch.set_num_threads(1)
    parts[parser.parse_args().part]()


if __name__ == "__main__":
    main()
