"""Mutation fuzzers: undamaged material is damaged at random, and must be refused in one line or give the same answer.

A target is a module `tests/fuzz/<target>.py` with

    def prepare(folder: Path) -> Any                                # makes undamaged material, once
    def run(material: Any, seed: int, scratch: Path) -> str         # one case; the name of its outcome

`run` raises AssertionError for a wrong answer. A clear error of the project's own is the outcome "refused"; any other exception
is a crash. A case depends on its seed alone.
"""

TARGETS = ("models", "corpora", "tokenizers", "jsonl", "parquet", "constraints")
