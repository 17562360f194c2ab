"""Other language models, scored through the same interface as the HMM."""

from vlhmm.baselines.unigram import Uniform, Unigram

__all__ = ["Uniform", "Unigram"]
