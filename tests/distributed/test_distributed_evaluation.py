"""What several ranks find of a text is what one process finds."""

import io
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tiny import tiny_corpus

import vlhmm
from tests.distributed.launch import on_ranks, torchrun
from vlhmm.cli import main
from vlhmm.cluster import random_blocks
from vlhmm.data import Tokens
from vlhmm.distributed import ALONE, World
from vlhmm.evaluate import HMMScorer, evaluate, scored_windows
from vlhmm.inspection import inspecting
from vlhmm.models import neural_hmm
from vlhmm.progress import result_of


@pytest.fixture(scope="module")
def corpus() -> vlhmm.Corpus:
    return tiny_corpus(150)


Make = Callable[..., vlhmm.Model]


@pytest.fixture(scope="module")
def make(corpus: vlhmm.Corpus) -> Make:
    """A model of random blocks."""
    blocks = random_blocks(corpus.tokenizer.vocab_size, 5, np.random.default_rng(0))
    return partial(neural_hmm, blocks, 6, 16, eos_id=corpus.tokenizer.eos_id)


@pytest.mark.parametrize(("reset", "transition"), [("eos", "softmax"), ("eos", "block-factored"), ("carry", "softmax")])
def test_perplexity_is_that_of_one_process_to_the_bit(
    corpus: vlhmm.Corpus, make: Make, reset: str, transition: str
) -> None:
    scorer = HMMScorer(make(reset=reset, transition=transition).tables().detach())
    text = corpus.train

    def found(here: World) -> list[float]:
        alone = evaluate(scorer, text, independent=20, here=here)
        exact = evaluate(scorer, text, window=20, here=here)
        assert alone.num_tokens == exact.num_tokens == len(text)
        return [exact.log_prob, alone.log_prob]

    assert on_ranks(found, 3) == [str(found(ALONE))] * 3


def test_ranks_share_windows_where_the_model_forgets_and_streams_always(corpus: vlhmm.Corpus, make: Make) -> None:
    text = corpus.train
    scorers = {reset: HMMScorer(make(reset=reset).tables().detach()) for reset in ("eos", "carry")}

    def counted(reset: str, here: World, **options: int) -> int:
        return sum(count for count, _ in scored_windows(scorers[reset], text, here=here, **options))

    shares = [counted("eos", World(rank, 4), window=20) for rank in range(4)]
    assert sum(shares) == len(text)
    assert max(shares) - min(shares) <= 20
    # What carries its states over every token cannot be parted.
    assert [counted("carry", World(rank, 4), window=20) for rank in range(4)] == [len(text), 0, 0, 0]
    assert sum(counted("carry", World(rank, 4), streams=3) for rank in range(4)) == len(text)
    assert min(counted("carry", World(rank, 3), streams=3) for rank in range(3)) > 0
    # A text of fewer windows than ranks.
    assert sum(counted("eos", World(rank, 4), window=len(text)) for rank in range(4)) == len(text)


def test_what_is_remembered_is_that_of_one_process_to_the_bit(
    corpus: vlhmm.Corpus, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = vlhmm.LanguageModel(make(reset="carry"), corpus.tokenizer)
    whole = remembered(lm, corpus.test, ALONE)
    monkeypatch.setattr("vlhmm.inspection.RECALL_TOKENS", 100)
    alone = remembered(lm, corpus.test, ALONE)
    assert alone == pytest.approx(whole, rel=1e-12)
    assert on_ranks(partial(remembered, lm, corpus.test), 2) == [str(alone)] * 2


def remembered(lm: vlhmm.LanguageModel, text: Tokens, here: World) -> list[float]:
    inspection = result_of(inspecting(lm, text, memory=4, here=here))
    assert inspection.memory is not None
    return [inspection.perplexity, *inspection.memory.perplexity]


@pytest.fixture(scope="module")
def folders(corpus: vlhmm.Corpus, make: Make, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and a corpus."""
    folder = tmp_path_factory.mktemp("runs")
    vlhmm.LanguageModel(make(reset="eos"), corpus.tokenizer).save(folder / "model")
    (folder / "text").mkdir()
    for split, tokens in (("train", corpus.valid), ("valid", corpus.test), ("test", corpus.test)):
        lines = [corpus.tokenizer.decode(tokens.document(number)[:-1]) for number in range(tokens.num_documents)]
        (folder / "text" / f"{split}.txt").write_text("\n".join(lines))
    return folder / "model", folder / "text"


def command(*arguments: object, stdin: str = "") -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a command of this process."""
    out, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(errors):
        patch.setattr("sys.argv", ["vlhmm", *map(str, arguments)])
        patch.setattr("sys.stdin", io.StringIO(stdin))
        status = main()
    return status, out.getvalue(), errors.getvalue()


@pytest.mark.parametrize("name", ["eval", "inspect --memory 4", "score", "posterior", "viterbi --k 2"])
def test_commands_print_what_one_process_prints_and_print_it_once(folders: tuple[Path, Path], name: str) -> None:
    texts = "".join(f"the {noun} sees the {other}\n" for noun in ("cat", "dog") for other in ("bird", "fish", "horse"))
    first, *options = name.split()
    source = [folders[1]] if first in ("eval", "inspect") else []
    words = [first, folders[0], *source, *options, "--json"]
    alone = command(*words, stdin=texts)
    assert alone[0] == 0, alone[2]
    assert alone[1]

    def run(here: World) -> tuple[int, str, str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("vlhmm.cli.ranks.TEXTS_A_RANK", 1)
            # Only the first rank is given the texts.
            return command(*words, stdin=texts if here.is_first else "")

    assert on_ranks(run, 2) == [str(alone), str((0, "", ""))]


def test_torchrun_starts_commands_and_an_error_comes_once(folders: tuple[Path, Path]) -> None:
    model, text = map(str, folders)
    status, out, errors = torchrun("-m", "vlhmm", "eval", model, text, "--json", ranks=2)
    assert (status, out) == (0, command("eval", model, text, "--json")[1]), errors
    status, out, errors = torchrun("-m", "vlhmm", "generate", model, ranks=2)
    line = "error: generate runs as one process, but torchrun has started 2: start it without torchrun"
    assert (status != 0, out, errors.count(line)) == (True, "", 1), errors
