"""Very large hidden Markov language models, with exact inference throughout."""

import os

__version__ = "0.1.0"

# Read when torch is first imported. Threads that spin while they wait make steps on small tensors up to ten times slower as
# soon as anything else runs on the machine; waiting asleep costs nothing measurable on an idle one.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from vlhmm.cluster import Blocks, brown_clusters
from vlhmm.data import Corpus, Tokenizer, load_corpus
from vlhmm.hmm import HMM
from vlhmm.lm import LanguageModel, load
from vlhmm.models import Model, linear_hmm, neural_hmm, scalar_hmm
from vlhmm.train import train
from vlhmm.train_settings import TrainSettings

__all__ = [
    "HMM",
    "Blocks",
    "Corpus",
    "LanguageModel",
    "Model",
    "Tokenizer",
    "TrainSettings",
    "brown_clusters",
    "linear_hmm",
    "load",
    "load_corpus",
    "neural_hmm",
    "scalar_hmm",
    "train",
]
