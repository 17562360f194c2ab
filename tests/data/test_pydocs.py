import sysconfig
from pathlib import Path

import pytest

from vlhmm.data import load_corpus, pydocs
from vlhmm.data.cache import cache_dir
from vlhmm.data.pydocs import clean_sentences, pydocs_documents, python_version


def test_prose_is_kept_and_code_is_dropped() -> None:
    text = """The "nonlocal" statement
    ************************

       nonlocal_stmt ::= "nonlocal" identifier

    Names listed in a ``global`` statement, unlike *others*, must be pre-
    existing; see :func:`os.walk` (new in 3.12). Return a 4-tuple, e.g.
    a list or os.environ, for 3.5 seconds!

    >>> print("No, this is an example.")
    No, this is an example.

    For example::

        This is a line of code, or so it says.

        And this is one more of them, too.

    * The first item of a list has
      two lines.
    * The second one is short.

    spam(a, b) -- Not a sentence, but a signature with a text.
    x = 3 is not a sentence, nor is a[3] or x->y.
    """
    assert list(clean_sentences("\n".join(line.removeprefix("    ") for line in text.split("\n")))) == [
        "names listed in a global statement , unlike others , must be pre-existing ; see os.walk ( new in N ) .",
        "return a N-tuple , for example a list or os.environ , for N seconds !",
        "the first item of a list has two lines .",
        "the second one is short .",
    ]


def test_the_corpus_is_large_english_and_known_by_its_hash() -> None:
    corpus = load_corpus("pydocs")
    assert corpus.note == python_version()
    assert corpus.short_hash == load_corpus("pydocs", cache=False).short_hash
    sizes = [len(tokens) for tokens in (corpus.train, corpus.valid, corpus.test)]
    assert 150_000 < sum(sizes) < 600_000
    assert min(sizes) > 0.04 * sum(sizes)
    assert corpus.tokenizer.tokens()[:3] == ["<eos>", "the", "."]
    for tokens in (corpus.train, corpus.valid, corpus.test):
        assert 0.005 < tokens.count(corpus.tokenizer.unk_id) / len(tokens) < 0.08


def test_no_sentence_comes_twice() -> None:
    sentences = [line for split in pydocs_documents().values() for document in split for line in document]
    assert len(set(sentences)) == len(sentences)


def test_words_of_the_vocabulary_are_seen_three_times() -> None:
    corpus = load_corpus("pydocs")
    for token in range(corpus.tokenizer.vocab_size - 100, corpus.tokenizer.vocab_size):
        assert corpus.train.count(token) >= 3


def test_the_cache_gives_the_same_documents_and_a_damaged_one_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pydocs, "_read_documentation", lambda: [["one sentence here ."], ["a second one ."]] * 20)
    monkeypatch.setattr(pydocs, "MIN_SENTENCES", 1)
    monkeypatch.setenv("VLHMM_CACHE", str(tmp_path))
    made = pydocs_documents()
    (file,) = (tmp_path / "pydocs").iterdir()
    monkeypatch.setattr(pydocs, "_read_documentation", pytest.fail)
    assert pydocs_documents() == made
    file.write_bytes(file.read_bytes()[:20])
    monkeypatch.setattr(pydocs, "_read_documentation", lambda: [["another ."]] * 20)
    assert pydocs_documents()["train"][0] == ["another ."]


def test_a_stripped_python_is_told_to_bring_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spam.py").write_text('"""The only sentence of this library."""')
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setitem(__import__("sys").modules, "pydoc_data.topics", None)
    with pytest.raises(ValueError, match=r"has 1 sentences .* --data"):
        pydocs_documents(cache=False)


def test_the_cache_is_where_it_is_asked_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.setenv("VLHMM_CACHE", "/y")
    assert cache_dir() == Path("/y")
    monkeypatch.delenv("VLHMM_CACHE")
    assert cache_dir() == Path("/x/vlhmm")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "vlhmm"
