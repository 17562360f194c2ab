"""What needs an optional package says so before it reads a text or a model, and leaves nothing behind."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_helpers import SMALL, Run

import vlhmm
import vlhmm.server


def _refuse(*_: object, **__: object) -> None:
    raise AssertionError("computed before the missing package was noticed")


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes packages look as if they were not installed, and functions fail that must not be reached."""

    def apply(*packages: str, unreached: tuple[str, ...] = ()) -> None:
        for package in packages:
            for module in [name for name in sys.modules if name.partition(".")[0] == package]:
                monkeypatch.delitem(sys.modules, module)
            monkeypatch.setitem(sys.modules, package, None)
        for function in unreached:
            monkeypatch.setattr(function, _refuse)

    return apply


@pytest.mark.parametrize("command", [["inspect"], ["posterior", "the file"]], ids=lambda command: command[0])
def test_plot_needs_matplotlib(run: Run, model_dir: Path, missing: Callable[..., None], command: list[str]) -> None:
    missing("matplotlib", unreached=("vlhmm.lm.load",))
    refused = run(command[0], model_dir, *command[1:], "--plot", "pictures/inside.png")
    assert 'pip install "vlhmm[plot]"' in refused.error
    assert not Path("pictures").exists()


def test_tensorboard_needs_tensorboard(run: Run, text_file: Path, missing: Callable[..., None]) -> None:
    missing("tensorboard", unreached=("vlhmm.data.load_corpus",))
    refused = run("train", text_file, "--out", "run", *SMALL, "--tensorboard")
    assert 'pip install "vlhmm[tensorboard]"' in refused.error
    assert not Path("run").exists()


def test_a_benchmark_that_is_not_here_needs_datasets(
    run: Run, missing: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLHMM_DATA", raising=False)
    monkeypatch.setenv("VLHMM_CACHE", str(Path("cache").absolute()))
    missing("datasets")
    assert 'pip install "vlhmm[hub]"' in run("train", "ptb", "--out", "run").error
    assert not Path("run").exists()


def test_parquet_needs_pyarrow_before_other_files_are_read(run: Run, missing: Callable[..., None]) -> None:
    folder = Path("text")
    folder.mkdir()
    for name in ("train.txt", "valid.txt", "test.parquet"):
        (folder / name).write_bytes(b"the file\n")
    missing("pyarrow", unreached=("vlhmm.data.sources.read_raw_lines",))
    for command in (["train", folder, "--out", "run"], ["prepare", *sorted(folder.iterdir()), "--out", "run"]):
        assert 'pip install "vlhmm[parquet]"' in run(*command).error
    assert not Path("run").exists()


def test_the_hub_needs_huggingface_hub(model_dir: Path, tmp_path: Path, missing: Callable[..., None]) -> None:
    lm = vlhmm.load(model_dir)
    missing("huggingface_hub", unreached=("vlhmm.hub.pushable.save_model",))
    named = r"vlhmm\[hub\]"
    with pytest.raises(ImportError, match=named):
        lm.push_to_hub("someone/model")
    with pytest.raises(ImportError, match=named):
        lm.save_pretrained(tmp_path / "model", push_to_hub=True)
    with pytest.raises(ImportError, match=named):
        vlhmm.LanguageModel.from_pretrained("someone/model")
    assert not (tmp_path / "model").exists()


def test_the_explorer_in_a_notebook_needs_anywidget(model_dir: Path, missing: Callable[..., None]) -> None:
    from vlhmm.explorer import widget

    lm = vlhmm.load(model_dir)
    missing("anywidget", unreached=("vlhmm.explorer.widget.explorer_data",))
    widget._widget_class.cache_clear()
    with pytest.raises(ValueError, match=r"vlhmm\[notebook\]"):
        vlhmm.explore(lm, ["the file"])


def test_the_server_needs_its_packages(
    run: Run, model_dir: Path, missing: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if nothing had asked for it yet.
    monkeypatch.delitem(vars(vlhmm.server), "serve", raising=False)
    monkeypatch.delitem(sys.modules, "vlhmm.server.running", raising=False)
    missing("uvicorn", unreached=("vlhmm.lm.load",))
    assert 'the server needs uvicorn: pip install "vlhmm[serve]"' in run("serve", model_dir).error


@pytest.mark.parametrize("text", [[], ["--text"]], ids=["writing", "reading"])
def test_a_teacher_needs_transformers(
    run: Run, text_file: Path, missing: Callable[..., None], text: list[str | Path]
) -> None:
    Path("teacher").mkdir()
    missing("transformers", unreached=("vlhmm.data.sources.read_raw_lines",))
    small = ["--tokens", 2000, "--max-tokens", 20, "--set", "batch_size=8"] if not text else [text_file]
    refused = run("distill", "teacher", "--out", "run", *text, *small)
    assert 'pip install "vlhmm[llm]"' in refused.error
    assert not Path("run").exists()
    with pytest.raises(ValueError, match=r"vlhmm\[llm\]"):
        vlhmm.distill("teacher", "run", tokens=20_000)
    assert not Path("run").exists()


def test_json_schema_needs_jsonschema(run: Run, model_dir: Path, missing: Callable[..., None]) -> None:
    Path("schema.json").write_text('{"type": "integer"}')
    missing("jsonschema", unreached=("vlhmm.lm.load",))
    assert 'pip install "vlhmm[json]"' in run("generate", model_dir, "--json-schema", "schema.json").error


def test_sentencepiece_models_and_choices_need_nothing(
    run: Run, model_dir: Path, text_file: Path, missing: Callable[..., None]
) -> None:
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text_file.read_text().splitlines()), model_writer=model, vocab_size=40, minloglevel=2
    )
    Path("pieces.model").write_bytes(model.getvalue())
    missing("sentencepiece", "jsonschema", "transformers")
    prepared = run("prepare", text_file, "--tokenizer", "pieces.model", "--out", "prepared", "--json")
    assert prepared.status == 0, prepared.err
    assert vlhmm.load_corpus("prepared").tokenizer.vocab_size == 40
    chosen = run("generate", model_dir, "--choice", "the file", "--choice", "a list", "--seed", 1)
    assert chosen.status == 0, chosen.err
