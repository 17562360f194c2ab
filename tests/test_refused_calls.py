"""Wrong types, devices, layouts and beliefs never reach torch: each call is refused by one clear ValueError."""

import json
import os
import subprocess
import sys
from pathlib import Path

import vlhmm

HERE = Path(__file__).parent


def test_malformed_calls_are_refused_with_one_sentence() -> None:
    paths = os.pathsep.join([str(Path(vlhmm.__file__).parents[1]), str(HERE)])
    ran = subprocess.run(
        [sys.executable, HERE / "refused_calls.py"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )
    assert ran.returncode == 0, ran.stderr
    outcomes = json.loads(ran.stdout)
    assert len(outcomes) > 90
    accepted = {name: text for name, (kind, text) in outcomes.items() if kind == "returned"}
    assert not accepted, "these were not refused"
    raw = {name: f"{kind}: {text}" for name, (kind, text) in outcomes.items() if kind != "ValueError"}
    assert not raw, "these were refused by something else than a ValueError"
    unclear = {name: text for name, (_, text) in outcomes.items() if "\n" in text or not 30 <= len(text) <= 220}
    assert not unclear, "these are not one sentence that says what is needed"
    # What is most likely meant is named.
    meant = {
        "guide_str": "vlhmm.contains('cat')",
        "guide_strs": "vlhmm.contains('dog')",
        "guide_path": "vlhmm.load('runs/a')",
        "lm_path": "vlhmm.load('runs/a')",
        "lm_tables": "vlhmm.HMM(tables)",
    }
    assert all(remedy in outcomes[name][1] for name, remedy in meant.items())
