"""A model taken out of its run: the same scores, nothing else in the folder, and nothing overwritten."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny import tiny_corpus, tiny_model

import vlhmm
from vlhmm.reports import export_run
from vlhmm.tensor_file import FolderError
from vlhmm.training.settings import TrainSettings

CORPUS = tiny_corpus(60)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    settings = TrainSettings(epochs=1, batch_size=4, window=16)
    vlhmm.train(tiny_model(CORPUS), CORPUS, settings, out=folder)
    return folder


def test_the_copy_has_the_weights_and_scores_of_the_best_checkpoint_and_no_other_file(
    run: Path, tmp_path: Path
) -> None:
    exported = export_run(run, tmp_path / "new" / "model")
    assert sorted(path.name for path in exported.folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert exported.num_bytes == sum(path.stat().st_size for path in exported.folder.iterdir())
    assert exported.run_bytes == sum(path.stat().st_size for path in run.iterdir())
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (run, exported.folder))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    before, after = vlhmm.load(run), vlhmm.load(exported.folder)
    assert before.evaluate(CORPUS.test) == after.evaluate(CORPUS.test)
    assert before.about == after.about


def test_nothing_is_overwritten_unless_asked_for(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    export_run(run, out)
    (out / "card.md").write_text("written by hand")
    with pytest.raises(FolderError, match="already holds a model"):
        export_run(run, out)
    export_run(run, out, force=True)
    assert (out / "card.md").read_text() == "written by hand"


def test_places_that_no_model_belongs_to_are_refused_with_force_too(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "one.txt").write_text("dear")
    for out, said in [(run, "the run itself"), (tmp_path / "file", "is a file"), (tmp_path / "letters", "no model")]:
        with pytest.raises(FolderError, match=said):
            export_run(run, out, force=True)
    other = tmp_path / "other"
    vlhmm.train(tiny_model(CORPUS), CORPUS, TrainSettings(epochs=1, batch_size=4, window=16), out=other)
    with pytest.raises(FolderError, match="a training run"):
        export_run(run, other, force=True)


def test_a_damaged_run_leaves_nothing_behind(run: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (damaged / name).write_bytes((run / name).read_bytes())
    weights = bytearray((damaged / "model.safetensors").read_bytes())
    weights[-5] ^= 1
    (damaged / "model.safetensors").write_bytes(weights)
    with pytest.raises(FolderError, match="damaged"):
        export_run(damaged, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_copy_that_scores_otherwise_is_reported(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other_weights(folder: Path, model: vlhmm.Model, *rest: object) -> None:
        with torch.no_grad():
            next(model.parameters()).flatten()[0] += 1.0
        save_model(folder, model, *rest)  # type: ignore[arg-type]
        with torch.no_grad():
            next(model.parameters()).flatten()[0] -= 1.0

    from vlhmm.training.checkpoint import save_model

    monkeypatch.setattr("vlhmm.reports.export.save_model", other_weights)
    with pytest.raises(FolderError, match="does not give the scores of the run"):
        export_run(run, tmp_path / "out")
