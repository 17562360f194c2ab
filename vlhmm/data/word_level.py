"""Word-level tokenizers on white space, made from words or their counts."""

from collections import Counter
from collections.abc import Iterable, Mapping

import tokenizers
from tokenizers import models, pre_tokenizers

from vlhmm.data.punctuation import separate_punctuation
from vlhmm.data.tokenizer import Tokenizer
from vlhmm.data.tokenizer_json import EOS, UNK


def word_tokenizer(
    words: Iterable[str] | Mapping[str, int],
    *,
    eos_count: int | None = None,
    min_count: int = 1,
    unk: bool = True,
    max_words: int | None = None,
    punctuation: bool = False,
) -> Tokenizer:
    """A word-level tokenizer on white space over the words given, or over words with their counts.

    Ids go by falling count, ties by the word. `<eos>` is always there, ranked by `eos_count` (last where None).
    Words seen fewer than `min_count` times are left out: they become `<unk>` and lend it their counts. With
    `unk=False` a text with a word outside the vocabulary is refused, unless `<unk>` is among the words. `max_words`: so many
    tokens at most, `<unk>` and `<eos>` included. `punctuation`: it is read as words of its own, and joined when decoding.
    """
    counts = Counter(dict(words)) if isinstance(words, Mapping) else Counter(words)
    if not counts:
        raise ValueError("no words to make a vocabulary of (0 given); the training text is empty")
    rare = [word for word, count in counts.items() if count < min_count and word not in (UNK, EOS)]
    if max_words is not None and len(counts) - len(rare) > max_words - 2:
        frequent = sorted(counts.keys() - {UNK, EOS}, key=lambda word: (-counts[word], word))
        rare = sorted({*rare, *frequent[max_words - 2 :]})
    if unk or rare:
        counts[UNK] += sum(counts.pop(word) for word in rare)
    if eos_count is not None:
        counts[EOS] += eos_count
    elif EOS not in counts:
        counts[EOS] = -1
    vocabulary = {word: i for i, (word, _) in enumerate(sorted(counts.items(), key=lambda wc: (-wc[1], wc[0])))}
    split = next((word for word in vocabulary if word.split() != [word]), None)
    if split is not None:
        raise ValueError(f"{split!r} is no word: it is empty or has white space in it; split the text first")
    if UNK in vocabulary:
        model = models.WordLevel(vocabulary, unk_token=UNK)
    else:
        # An unknown token that is not in the vocabulary makes the backend refuse unknown words.
        model = models.WordLevel(vocabulary, unk_token="")
    backend = tokenizers.Tokenizer(model)
    if punctuation:
        separate_punctuation(backend)
    else:
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer.from_backend(backend)
