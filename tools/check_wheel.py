"""`python tools/check_wheel.py DIST`: installs wheel and source distribution into empty environments and asks them questions.

Of the running environment they get what vlhmm itself says it requires, and what that requires, checked against the versions
asked for. So a requirement that is not declared is missing there too.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def required(found: Iterable[Requirement]) -> dict[str, Distribution]:
    """Distributions of the running environment that meet requirements, and theirs in turn; one that does not is an error."""
    closure: dict[str, Distribution] = {}
    # Each with the extras that it is asked for.
    waiting = [(one, frozenset[str]()) for one in found]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        one, extras_of_owner = waiting.pop()
        if one.marker and not any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras_of_owner)):
            continue
        name, extras = canonicalize_name(one.name), frozenset(one.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            closure[name] = distribution(one.name)
        except PackageNotFoundError:
            sys.exit(f"{one} is required, and not installed here")
        if not one.specifier.contains(closure[name].version, prereleases=True):
            sys.exit(f"{one} is required, but {closure[name].version} is installed here")
        waiting += [(Requirement(line), extras) for line in closure[name].requires or []]
    return closure


def empty_environment(home: Path, package: Path) -> Path:
    """An environment of the package and of what it requires, by its own metadata, and of nothing else; its Python."""
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    run = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*run, str(package)], check=True)
    packages = next((home / "lib").glob("python*/site-packages"))
    (metadata,) = packages.glob("vlhmm-*.dist-info")
    own = Distribution.at(metadata).requires or []
    here = Path(sysconfig.get_paths()["purelib"])
    # Links take no time, where an index would send gigabytes.
    for one in required(map(Requirement, own)).values():
        for top in {file.parts[0] for file in one.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            if (here / top).exists() and not (packages / top).exists():
                (packages / top).symlink_to(here / top)
    return python


def check_installed(package: Path) -> None:
    """Installs it and asks it questions, outside of the checkout."""
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        python = empty_environment(home / "env", package)
        found = subprocess.run([python, "-c", PROGRAM], check=True, cwd=home, capture_output=True, text=True).stdout
        if not found.startswith(str(home)):
            sys.exit(f"vlhmm was imported from {found.strip()}, not from {package.name}")
        for arguments in (["--help"], ["demo", "--help"], ["--version"], ["backends", "--device", "cpu"]):
            subprocess.run(
                [home / "env" / "bin" / "vlhmm", *arguments], check=True, cwd=home, stdout=subprocess.DEVNULL
            )


def check_sdist(sdist: Path) -> None:
    """What pip builds of it is installed and asked like the wheel. pip fetches the build backend, as `python -m build` does."""
    with tempfile.TemporaryDirectory() as scratch:
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
        subprocess.run([*build, "--wheel-dir", scratch, str(sdist)], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        check_installed(wheel)


def main() -> None:
    dist = Path(sys.argv[1])
    (wheel,), (sdist,) = list(dist.glob("*.whl")), list(dist.glob("*.tar.gz"))
    check_contents(wheel, sdist)
    check_installed(wheel)
    check_sdist(sdist)
    print(f"installed and asked: {wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB, and {sdist.name}")


if __name__ == "__main__":
    main()
