"""Text on disk to token ids: tokenizers, corpora, token files."""

from vlhmm.data.corpus import Corpus, load_corpus
from vlhmm.data.encode import EosRule
from vlhmm.data.prepare import Progress, prepare, prepare_steps
from vlhmm.data.tokenizer import Tokenizer, load_tokenizer, word_tokenizer
from vlhmm.data.tokens import Tokens

__all__ = [
    "Corpus",
    "EosRule",
    "Progress",
    "Tokenizer",
    "Tokens",
    "load_corpus",
    "load_tokenizer",
    "prepare",
    "prepare_steps",
    "word_tokenizer",
]
