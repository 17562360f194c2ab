"""A bounded part of `make fuzz`: damaged files are refused in one line, or give the answers of undamaged ones."""

import os
import subprocess
import sys
from pathlib import Path

from tests.fuzz import TARGETS
from tests.fuzz.harness import present_targets

CASES = 100
ROOT = Path(__file__).parents[1]


def run_fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: it forks, and the process that runs the tests has threads."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )


def test_damaged_files_are_refused_or_harmless() -> None:
    done = run_fuzz("--cases", str(CASES))
    assert done.returncode == 0, done.stdout + done.stderr
    for target in present_targets():
        assert f"{target}: {CASES} cases" in done.stdout


def test_all_targets_but_those_of_others_are_present() -> None:
    assert set(TARGETS) - set(present_targets()) <= {"constraints"}


BROKEN_TARGET = """
import os, signal, time
def prepare(folder):
    return folder
def run(material, seed, scratch):
    match seed:
        case 1: raise AssertionError("two is three")
        case 2: raise KeyError("missing")
        case 3: raise ValueError("x.txt is damaged: mend it")
        case 4: os.kill(os.getpid(), signal.SIGSEGV)
        case 5: time.sleep(60)
        case 6: bytearray(4 << 30)
        case 7: "\\ud800".encode()
        case 8: os._exit(3)
    return "fine"
"""


def test_the_harness_tells_every_way_to_fail_and_how_to_repeat_it(tmp_path: Path) -> None:
    """It must find what it is there to find."""
    (tmp_path / "broken.py").write_text(BROKEN_TARGET)
    program = (
        "import sys, tests.fuzz, tests.fuzz.harness as harness\n"
        "tests.fuzz.__path__.append(sys.argv[1])\n"
        "harness.SECONDS_A_CASE = 2.0\n"
        "report = harness.fuzz('broken', 10, 0)\n"
        "print('\\n'.join(report.lines()))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], env=environment, capture_output=True, text=True, check=True
    )
    first, *rest = done.stdout.splitlines()
    assert first.startswith("broken: 10 cases")
    for count in ("2 fine", "1 refused", "1 wrong", "3 crash", "2 died", "1 hang"):
        assert count in first
    told = "\n".join(rest)
    for line in (
        "seed 1: wrong: two is three",
        "seed 2: crash: KeyError",
        "seed 4: died: SIGSEGV",
        "seed 5: hang: no answer in 2 s",
        "seed 6: crash: MemoryError",
        "seed 7: crash: UnicodeEncodeError",
        "seed 8: died: exit status 3",
        "python -m tests.fuzz broken --seed 8 --cases 1 --show",
    ):
        assert line in told


def test_an_unknown_target_is_named() -> None:
    done = run_fuzz("nothing")
    assert done.returncode == 2
    assert "unknown target 'nothing'" in done.stderr
