"""First hours of users as processes of their own: arrays, a table of a paper, a training on a terminal.

Text of one's own is `cli/test_own_text.py`; steering is `test_steer.py`, and the tutorial's page in `test_docs.py`.
"""

import itertools
import json
import math
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from cli.cli_helpers import write_text

import vlhmm

PACKAGE = Path(vlhmm.__file__).parents[1]
TEXTS = [[0, 1, 2, 2], [2, 0]]
ARRAYS = """
import json
import numpy as np
import vlhmm
from vlhmm.integrations.sklearn import CategoricalHMM

start, transition, emission = [0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]]
hmm = vlhmm.HMM.from_probabilities(start, transition, emission)
texts = [[0, 1, 2, 2], [2, 0]]
paths = hmm.viterbi(texts[0], k=3)
hmm.save("hmm.safetensors")
drawn = vlhmm.HMM.random(3, 5, seed=0).sample(20, 30, seed=1).tokens
fitted = vlhmm.HMM.random(3, 5, seed=2).fit(drawn, method="em", restarts=2, seed=3)
peer = CategoricalHMM(n_components=2, n_features=3)
peer.startprob_, peer.transmat_, peer.emissionprob_ = map(np.array, (start, transition, emission))
print(json.dumps({
    "log_prob": hmm.log_prob(texts).tolist(),
    "loaded": vlhmm.HMM.load("hmm.safetensors").log_prob(texts).tolist(),
    "soft": hmm.log_prob(log_likelihoods=np.log(np.array(emission).T[texts[0]])[None]).tolist(),
    "best": [float(number) for number in paths.log_prob.flatten()],
    "peer": peer.score(np.array(texts[0])[:, None]),
    "fit": [fitted.log_probs[0], fitted.log_probs[-1]],
}))
"""
TABLE = """
title = "A row of a paper"
source = "nobody"
corpus = "ptb"
columns = ["valid", "seconds_per_epoch"]

[[rows]]
name = "trigrams"
baseline = "kneser-ney"
changes = { order = 3, fallback = true }
paper = { valid = 3.0 }

[[rows]]
name = "HMM"
preset = "chiu2020-ptb"
changes = { num_blocks = 5, states_per_block = 4, dim = 8, epochs = 1, batch_size = 4, window = 16, checks_per_epoch = 1 }
paper = { valid = 4.0 }

[[claims]]
text = "an HMM is behind trigrams"
less = ["trigrams.valid", "HMM.valid"]
"""


def environment() -> dict[str, str]:
    found = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PACKAGE), "TERM": "xterm"}
    for name in ("VLHMM_DEBUG", "COLUMNS"):
        found.pop(name, None)
    return found


def ran(folder: Path, *command: object) -> str:
    words = [sys.executable, *map(str, command)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def joint(text: list[int]) -> list[float]:
    """p(path, text) of every path of states."""
    start, transition, emission = [0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]]
    return [
        start[path[0]]
        * math.prod(transition[one][other] for one, other in itertools.pairwise(path))
        * math.prod(emission[state][token] for state, token in zip(path, text, strict=True))
        for path in itertools.product(range(2), repeat=len(text))
    ]


def test_probabilities_in_arrays(tmp_path: Path) -> None:
    found = json.loads(ran(tmp_path, "-c", ARRAYS))
    assert found["log_prob"] == pytest.approx([math.log(sum(joint(text))) for text in TEXTS], abs=1e-5)
    assert found["best"] == pytest.approx([math.log(one) for one in sorted(joint(TEXTS[0]))[:-4:-1]], abs=1e-5)
    assert found["loaded"] == found["log_prob"]
    assert found["soft"] == pytest.approx(found["log_prob"][:1], abs=1e-5)
    assert found["peer"] == pytest.approx(found["log_prob"][0], abs=1e-5)
    assert found["fit"][1] > found["fit"][0]


@pytest.mark.slow
def test_a_table_of_a_paper(tmp_path: Path) -> None:
    write_text(tmp_path / "small.txt")
    (tmp_path / "row.toml").write_text(TABLE)
    text = ("--corpus", "small.txt", "--results", "results")
    ran(tmp_path, "-m", "experiments", "run", "row.toml", *text, "--runs", "runs", "--device", "cpu")
    shown = ran(tmp_path, "-m", "experiments", "show", "row.toml", *text)
    results = {
        result["row"]: result for path in tmp_path.glob("results/**/*.json") if (result := json.loads(path.read_text()))
    }
    assert set(results) == {"trigrams", "HMM"}
    for result in results.values():
        assert f"{result['measured']['valid']:.1f}" in shown


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="terminals of POSIX")
def test_a_training_on_a_terminal_shows_a_bar_stops_at_ctrl_c_and_goes_on(tmp_path: Path) -> None:
    write_text(tmp_path / "small.txt")
    sizes = ("--set", "num_blocks=6", "--set", "states_per_block=4", "--set", "dim=8", "--set", "epochs=400")
    command = [
        sys.executable,
        "-m",
        "vlhmm",
        "train",
        "small.txt",
        "--out",
        "run",
        "--preset",
        "demo",
        "--device",
        "cpu",
    ]
    ours, theirs = pty.openpty()
    # A session of its own, whose terminal this is: what is typed there reaches the process as from a keyboard.
    with subprocess.Popen(
        [*command, *sizes],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=tmp_path,
        env=environment(),
        start_new_session=True,
        preexec_fn=controlling_terminal,
    ) as process:
        os.close(theirs)
        try:
            with os.fdopen(ours, "r+b", buffering=0) as terminal:
                read_until(terminal, rb"tokens/s.*left")
                terminal.write(b"\x03")
                rest = read_until(terminal, rb"stopped at step [\d,]+")
                assert b"stopping" in rest
                assert process.wait(timeout=60) == 130
        finally:
            process.kill()
    ran(tmp_path, "-m", "vlhmm", "train", "--out", "run", "--resume", "--max-seconds", "1")


def controlling_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def read_until(terminal: IO[bytes], pattern: bytes) -> bytes:
    """What a process writes up to this, without the codes that move the cursor."""
    read = b""
    while not re.search(pattern, plain := re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", read), re.DOTALL):
        assert select.select([terminal], [], [], 120)[0], plain
        read += os.read(terminal.fileno(), 1 << 16)
    return plain
