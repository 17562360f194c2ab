"""Very large hidden Markov language models, with exact inference throughout.

The examples in the docstrings assume `import torch` and `import vlhmm`. Those that load "demo-model" load the folder that the
example of `vlhmm.train` writes. Letters for axes: B batch, T time, Z states, X words, K states of a word.
"""

import os
from importlib import import_module
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any

from vlhmm import _moved
from vlhmm._version import __version__

# Read when torch is first imported. Threads that spin while they wait make steps on small tensors up to ten times slower as
# soon as anything else runs on the machine; waiting asleep costs nothing measurable on an idle one.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_moved.install()

if TYPE_CHECKING:
    from vlhmm.baselines import KneserNey
    from vlhmm.cluster import Blocks, brown_clusters
    from vlhmm.control import (
        Guide,
        choice,
        contains,
        contains_all,
        contains_any,
        ends_with,
        excludes,
        in_order,
        json_schema,
        length,
        regex,
        starts_with,
        words,
    )
    from vlhmm.data import Corpus, Tokenizer, load_corpus
    from vlhmm.distillation.pipeline import Distilled, distill
    from vlhmm.distillation.teachers import Teacher, load_teacher
    from vlhmm.explorer.widget import explore
    from vlhmm.hmm import HMM
    from vlhmm.lm import LanguageModel, load
    from vlhmm.models import Model, linear_hmm, neural_hmm, scalar_hmm
    from vlhmm.precision import Numerics
    from vlhmm.reports.comparison import Comparison, compare
    from vlhmm.selection import select_num_states
    from vlhmm.training.gradient import train
    from vlhmm.training.initial import initial_model
    from vlhmm.training.settings import TrainSettings

__all__ = [
    "HMM",
    "Blocks",
    "Comparison",
    "Corpus",
    "Distilled",
    "Guide",
    "KneserNey",
    "LanguageModel",
    "Model",
    "Numerics",
    "Teacher",
    "Tokenizer",
    "TrainSettings",
    "__version__",
    "brown_clusters",
    "choice",
    "compare",
    "contains",
    "contains_all",
    "contains_any",
    "distill",
    "ends_with",
    "excludes",
    "explore",
    "in_order",
    "initial_model",
    "json_schema",
    "length",
    "linear_hmm",
    "load",
    "load_corpus",
    "load_teacher",
    "neural_hmm",
    "regex",
    "scalar_hmm",
    "select_num_states",
    "starts_with",
    "train",
    "words",
]

_MODULE_OF = {
    "KneserNey": "vlhmm.baselines",
    "Blocks": "vlhmm.cluster",
    "brown_clusters": "vlhmm.cluster",
    "Guide": "vlhmm.control",
    "choice": "vlhmm.control",
    "contains": "vlhmm.control",
    "contains_all": "vlhmm.control",
    "contains_any": "vlhmm.control",
    "ends_with": "vlhmm.control",
    "excludes": "vlhmm.control",
    "in_order": "vlhmm.control",
    "json_schema": "vlhmm.control",
    "length": "vlhmm.control",
    "regex": "vlhmm.control",
    "starts_with": "vlhmm.control",
    "words": "vlhmm.control",
    "Corpus": "vlhmm.data",
    "Tokenizer": "vlhmm.data",
    "load_corpus": "vlhmm.data",
    "Distilled": "vlhmm.distillation.pipeline",
    "distill": "vlhmm.distillation.pipeline",
    "explore": "vlhmm.explorer.widget",
    "Teacher": "vlhmm.distillation.teachers",
    "load_teacher": "vlhmm.distillation.teachers",
    "HMM": "vlhmm.hmm",
    "LanguageModel": "vlhmm.lm",
    "load": "vlhmm.lm",
    "Model": "vlhmm.models",
    "linear_hmm": "vlhmm.models",
    "neural_hmm": "vlhmm.models",
    "scalar_hmm": "vlhmm.models",
    "Numerics": "vlhmm.precision",
    "Comparison": "vlhmm.reports.comparison",
    "compare": "vlhmm.reports.comparison",
    "select_num_states": "vlhmm.selection",
    "train": "vlhmm.training.gradient",
    "initial_model": "vlhmm.training.initial",
    "TrainSettings": "vlhmm.training.settings",
}
"""Where each public name is: torch takes seconds to import, and `vlhmm --help` needs none of it."""


if not TYPE_CHECKING:
    # Hidden from type checkers: they would take every misspelt name for one of these.

    def __getattr__(name: str) -> Any:
        """Imports a public name, or a module of the package, when it is first asked for (PEP 562)."""
        if name in _MODULE_OF:
            value = getattr(import_module(_MODULE_OF[name]), name)
            # The next look-up finds it without this function.
            globals()[name] = value
            return value
        if not name.startswith("_") and PathFinder.find_spec(f"{__name__}.{name}", __path__) is not None:
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
