"""Very large hidden Markov language models, with exact inference throughout.

The examples in the docstrings assume `import torch` and `import vlhmm`. Those that load "demo-model" load the folder that the
example of `vlhmm.train` writes. Letters for axes: B batch, T time, Z states, X words, K states of a word.
"""

import os

from vlhmm import _moved
from vlhmm._version import __version__

# Read when torch is first imported. Threads that spin while they wait make steps on small tensors up to ten times slower as
# soon as anything else runs on the machine; waiting asleep costs nothing measurable on an idle one.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_moved.install()

from vlhmm.baselines import KneserNey
from vlhmm.cluster import Blocks, brown_clusters
from vlhmm.control import (
    Guide,
    contains,
    contains_all,
    contains_any,
    ends_with,
    excludes,
    in_order,
    length,
    regex,
    starts_with,
    words,
)
from vlhmm.data import Corpus, Tokenizer, load_corpus
from vlhmm.distillation.pipeline import Distilled, distill
from vlhmm.hmm import HMM
from vlhmm.lm import LanguageModel, load
from vlhmm.models import Model, linear_hmm, neural_hmm, scalar_hmm
from vlhmm.precision import Numerics
from vlhmm.selection import select_num_states
from vlhmm.training.gradient import train
from vlhmm.training.settings import TrainSettings

__all__ = [
    "HMM",
    "Blocks",
    "Corpus",
    "Distilled",
    "Guide",
    "KneserNey",
    "LanguageModel",
    "Model",
    "Numerics",
    "Tokenizer",
    "TrainSettings",
    "__version__",
    "brown_clusters",
    "contains",
    "contains_all",
    "contains_any",
    "distill",
    "ends_with",
    "excludes",
    "in_order",
    "length",
    "linear_hmm",
    "load",
    "load_corpus",
    "neural_hmm",
    "regex",
    "scalar_hmm",
    "select_num_states",
    "starts_with",
    "train",
    "words",
]
