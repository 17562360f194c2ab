"""The page as text, and the widget: what they hold, and what they refuse."""

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

import vlhmm
from bench.serve import write_model
from vlhmm.cli import main
from vlhmm.explorer import explorer_data, explorer_page, write_page
from vlhmm.explorer.data import MAX_STATES, MAX_WORDS
from vlhmm.explorer.page import module_text
from vlhmm.reports import as_json

TEXT = "the file reads the name ."


@pytest.fixture(scope="module")
def lm(folder: Path) -> vlhmm.LanguageModel:
    return vlhmm.load(folder)


@pytest.fixture(scope="module")
def page(lm: vlhmm.LanguageModel, folder: Path) -> str:
    return explorer_page(explorer_data(lm, folder=folder, texts=[TEXT], max_tokens=200))


def test_the_policy_names_the_hashes_of_the_one_script_and_style(page: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in policy[1].split("; "))
    assert rules["default-src"] == "'none'"
    assert "connect-src" not in rules
    for element, rule in (("style", "style-src"), ('script type="module"', "script-src")):
        [content] = re.findall(rf"<{element}>(.*?)</{element.split()[0]}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    # It is in force before anything else is read.
    assert page.index("Content-Security-Policy") < page.index("<style>") < page.index("<script")


def test_a_page_names_no_address_but_the_name_of_svg(page: str) -> None:
    assert set(re.findall(r"https?://[^\s\"'`<]+", page)) == {"http://www.w3.org/2000/svg"}
    assert "innerHTML" not in page
    assert "eval(" not in page
    assert len(page.encode()) < 500_000


def test_only_a_live_page_may_ask_its_own_server(lm: vlhmm.LanguageModel) -> None:
    data = explorer_data(lm, texts=[], max_states=2)
    assert "connect-src 'self'\"" in explorer_page(data, live="/v1/analyze")
    for elsewhere in ("https://example.com/", "//example.com/", "analyze"):
        with pytest.raises(ValueError, match="path of the page's own server"):
            explorer_page(data, live=elsewhere)


def test_a_text_cannot_end_the_data_or_the_title(lm: vlhmm.LanguageModel, tmp_path: Path) -> None:
    text = "the </script><script>alert(1)</script> file"
    lm.save(tmp_path / "<b>")
    page = explorer_page(explorer_data(lm, folder=tmp_path / "<b>", texts=[text], max_states=2))
    assert page.count("</script>") == 2
    assert "<title>&lt;b&gt;" in page
    [values] = re.findall(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert json.loads(values)["texts"][0]["text"] == text


def test_two_pages_of_one_model_are_the_same(page: str, lm: vlhmm.LanguageModel, folder: Path, tmp_path: Path) -> None:
    data = explorer_data(lm, folder=folder, texts=[TEXT], max_tokens=200)
    written = write_page(data, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page
    assert (written.num_bytes, written.num_texts) == (len(page.encode()), 1)
    assert written.share_of_tokens == pytest.approx(1)


def test_states_are_counted_in_all_of_a_short_validation_text(lm: vlhmm.LanguageModel, folder: Path) -> None:
    valid = vlhmm.load_corpus(folder.parent / "text.txt", tokenizer="words").valid
    assert explorer_data(lm, folder=folder).tokens.tolist() == valid.ids[:].tolist()


def test_a_corpus_that_is_gone_is_replaced_by_a_text_of_the_model(
    lm: vlhmm.LanguageModel, folder: Path, tmp_path: Path
) -> None:
    lm.save(tmp_path / "copy")
    recipe = json.loads((folder / "recipe.json").read_text())
    (tmp_path / "copy" / "recipe.json").write_text(json.dumps(recipe).replace("text.txt", "gone.txt"))
    data = explorer_data(lm, folder=tmp_path / "copy", texts=[])
    assert "drawn from the model" in data.text
    assert data.training is None


def test_a_notebook_shows_the_page_and_reads_what_is_typed(lm: vlhmm.LanguageModel, folder: Path) -> None:
    widget = vlhmm.explore(lm, [TEXT])
    assert json.loads(widget.data)["name"] == folder.name
    assert widget._esm == module_text()
    assert "export default" in widget._esm
    sent: list[dict] = []
    widget.send = sent.append
    for number, (text, constraint) in enumerate([(TEXT, {"contains": ["name"]}), ("", None)]):
        widget._handle_custom_msg({"number": number, "text": text, "constraint": constraint}, [])
    expected = as_json(vlhmm.explorer.analyse_text(lm, TEXT, constraint=vlhmm.contains("name")))
    assert sent[0] == {"number": 0, "analysis": expected}
    assert sent[1]["number"] == 1
    assert "0 tokens" in sent[1]["error"]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"texts": "a text"}, "sequence of texts"), ({"top": 0}, "top is 0"), ({"max_states": 0}, "max_states is 0")],
)
def test_what_makes_no_page_is_refused(lm: vlhmm.LanguageModel, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        explorer_data(lm, **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "page.txt"], "let it end in .html"),
        (["--regex", "("], "("),
        (["the file", "--split", "test", "--corpus", "text.txt"], "is one text"),
    ],
)
def test_the_command_refuses_in_one_line(
    folder: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder.parent)
    monkeypatch.setattr("sys.argv", ["vlhmm", "explore", str(folder), *arguments])
    assert main() == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
    assert not Path("explorer.html").exists()


MAX_PAGE_BYTES = 5_000_000


def test_a_page_of_many_states_and_words_stays_below_5_mb(tmp_path: Path) -> None:
    """What one more state and one more word take, at the most of either that a page holds. `python -m bench explore` makes that page."""

    def size(states: int, words: int) -> int:
        folder = tmp_path / f"{states}-{words}"
        write_model(folder, states, words, states_per_block=32)
        data = explorer_data(vlhmm.load(folder), texts=["w1 w2 w3"], max_tokens=500)
        assert (len(data.states.number), len(data.names)) == (states, words)
        return len(explorer_page(data).encode())

    least = size(256, 300)
    of_state, of_word = (size(512, 300) - least) / 256, (size(256, 800) - least) / 500
    # The name of a word is longer among more words: "w299", "w49999".
    assert least + (MAX_STATES - 256) * of_state + (MAX_WORDS - 300) * (of_word + 2) < MAX_PAGE_BYTES
