"""`python tools/check_wheel.py DIST`: installs the wheel into an empty environment and asks it questions, outside of the checkout.

Dependencies are those of the running environment, put on the path: only vlhmm itself is installed anew.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

NEEDED = ("vlhmm/py.typed", "vlhmm/__init__.py", "vlhmm/cli/__init__.py")
PROGRAM = """
import vlhmm
hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
assert abs(hmm.log_prob([[0, 1, 2, 2]]).item() + 4.3157) < 1e-3
print(vlhmm.__file__)
"""


def check_contents(wheel: Path, sdist: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    extra = {top for top in tops if top != "vlhmm" and not top.endswith(".dist-info")}
    missing = [name for name in NEEDED if name not in names]
    if not any(name.endswith("/LICENSE") for name in names):
        missing.append("LICENSE")
    if extra or missing:
        sys.exit(f"{wheel.name}: beside the package it has {sorted(extra)}, and lacks {missing}")
    with tarfile.open(sdist) as source:
        files = {name.split("/", 1)[1] for name in source.getnames() if "/" in name}
    if not {"pyproject.toml", "README.md", "LICENSE", *NEEDED} <= files:
        sys.exit(f"{sdist.name} lacks one of pyproject.toml, README.md, LICENSE, {', '.join(NEEDED)}")


def check_installed(wheel: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        venv.create(home / "env", with_pip=False)
        python = home / "env" / "bin" / "python"
        run = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
        subprocess.run([*run, str(wheel)], check=True)
        packages = next((home / "env" / "lib").glob("python*/site-packages"))
        # A path alone: the editable installation of the checkout, which hangs on a .pth file there, is not seen.
        (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
        found = subprocess.run([python, "-c", PROGRAM], check=True, cwd=home, capture_output=True, text=True).stdout
        if not found.startswith(str(home)):
            sys.exit(f"vlhmm was imported from {found.strip()}, not from the wheel")
        for arguments in (["--help"], ["demo", "--help"], ["--version"], ["backends", "--device", "cpu"]):
            subprocess.run(
                [home / "env" / "bin" / "vlhmm", *arguments], check=True, cwd=home, stdout=subprocess.DEVNULL
            )


def main() -> None:
    dist = Path(sys.argv[1])
    (wheel,), (sdist,) = list(dist.glob("*.whl")), list(dist.glob("*.tar.gz"))
    check_contents(wheel, sdist)
    check_installed(wheel)
    print(f"installed and asked: {wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
