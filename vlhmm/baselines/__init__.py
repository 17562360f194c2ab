"""Other language models, scored through the same interface as the HMM."""

from vlhmm.baselines.kneser_ney import KneserNey
from vlhmm.baselines.scorer import Baseline, NeuralScorer, build_baseline
from vlhmm.baselines.training import BaselineEvent, TrainedBaseline, train_baseline
from vlhmm.baselines.unigram import Uniform, Unigram
from vlhmm.training.baseline_settings import (
    AWDLSTMSettings,
    BaselineSettings,
    BuysHMMSettings,
    FeedForwardSettings,
    LSTMSettings,
)

__all__ = [
    "AWDLSTMSettings",
    "Baseline",
    "BaselineEvent",
    "BaselineSettings",
    "BuysHMMSettings",
    "FeedForwardSettings",
    "KneserNey",
    "LSTMSettings",
    "NeuralScorer",
    "TrainedBaseline",
    "Uniform",
    "Unigram",
    "build_baseline",
    "train_baseline",
]
