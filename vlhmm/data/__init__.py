"""Text on disk to token ids: tokenizers, corpora, token files."""

from vlhmm.data.corpus import Corpus, load_corpus
from vlhmm.data.encode import EosRule
from vlhmm.data.prepare import Progress, prepare, prepare_steps
from vlhmm.data.tokenizer import Tokenizer
from vlhmm.data.tokenizer_files import load_tokenizer
from vlhmm.data.tokens import Tokens
from vlhmm.data.word_level import word_tokenizer

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
