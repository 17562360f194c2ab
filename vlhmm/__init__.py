"""Very large hidden Markov language models, with exact inference throughout."""

from vlhmm.hmm import HMM

__version__ = "0.1.0"

__all__ = ["HMM"]
