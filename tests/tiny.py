"""A small corpus with structure to learn, and a small model for it."""

import tokenizers
import torch

from vlhmm import Corpus, Model, Tokenizer
from vlhmm.cluster import brown_clusters
from vlhmm.data import Tokens, word_tokenizer
from vlhmm.models import neural_hmm

NOUNS = ["cat", "dog", "bird", "fish", "horse"]
VERBS = ["sees", "hears", "likes", "follows"]
PLACES = ["garden", "house", "river", "hill"]


def sentences(num: int, seed: int) -> list[list[str]]:
    """the NOUN VERB the NOUN (in the PLACE): what may follow depends on more than the last word."""
    generator = torch.Generator().manual_seed(seed)

    def one(words: list[str]) -> str:
        return words[int(torch.randint(len(words), (), generator=generator))]

    made = []
    for _ in range(num):
        sentence = ["the", one(NOUNS), one(VERBS), "the", one(NOUNS)]
        if float(torch.rand((), generator=generator)) < 0.5:
            sentence += ["in", "the", one(PLACES)]
        made.append(sentence)
    return made


def tiny_corpus(num: int = 300) -> Corpus:
    train = sentences(num, 0)
    tokenizer = word_tokenizer([word for sentence in train for word in [*sentence, "<eos>"]])

    def tokens(lines: list[list[str]]) -> Tokens:
        ids = [[*tokenizer.encode(" ".join(line)), tokenizer.eos_id or 0] for line in lines]
        return Tokens.from_documents(ids, tokenizer.vocab_size)

    return Corpus.from_splits("tiny", tokenizer, tokens(train), tokens(sentences(60, 1)), tokens(sentences(60, 2)))


def tiny_model(corpus: Corpus, states_per_block: int = 6, **settings: object) -> Model:
    blocks = brown_clusters(corpus.train, 5, eos_id=corpus.tokenizer.eos_id, vocab_size=corpus.tokenizer.vocab_size)
    return neural_hmm(blocks, states_per_block, 16, eos_id=corpus.tokenizer.eos_id, **settings)  # type: ignore[arg-type]


def byte_tokenizer() -> Tokenizer:
    """Bytes, and a few pieces of several: a space with its t, and the two bytes of \u00e1."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    pieces = {letter: number for number, letter in enumerate([*letters, "\u0120t", "\u00c3\u00a1"])}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(pieces, [("\u0120", "t"), ("\u00c3", "\u00a1")]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    return Tokenizer.from_backend(backend)
