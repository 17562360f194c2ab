"""Penn Treebank and WikiText-2: where their files are, that they are the right ones, and their documents."""

import hashlib
import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

from vlhmm.data.atomic import atomic_write
from vlhmm.data.cache import cache_dir
from vlhmm.data.sources import SPLITS, Split, read_raw_lines
from vlhmm.data.splits import SplitBatch

Benchmark = Literal["ptb", "wikitext-2"]

SHA256: Final[dict[Benchmark, dict[Split, str]]] = {
    "ptb": {
        "train": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
        "valid": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
        "test": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
    },
    "wikitext-2": {
        "train": "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
        "valid": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
        "test": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
    },
}
# An article begins with a heading of the first level: ` = Title = `, but ` = = Section = = ` is inside one.
_TITLE: Final = re.compile(r" = [^=].*[^=] = ?")


def benchmark_files(name: Benchmark, data_dir: Path | None) -> dict[Split, Path]:
    """The three files of a benchmark: from `data_dir` (or `VLHMM_DATA`), else fetched; checksums verified."""
    if data_dir is None and (configured := os.environ.get("VLHMM_DATA")):
        data_dir = Path(configured)
    if data_dir is None:
        folder = cache_dir() / name
        if not all((folder / f"{split}.txt").is_file() for split in SPLITS):
            _fetch(name, folder)
    else:
        folder = data_dir / name
    files: dict[Split, Path] = {split: folder / f"{split}.txt" for split in SPLITS}
    for split, file in files.items():
        if not file.is_file():
            raise ValueError(f"{file} is missing; the data folder must hold {name}/train.txt, valid.txt and test.txt")
        _check(file, hashlib.sha256(file.read_bytes()).hexdigest(), SHA256[name][split])
    return files


def benchmark_batches(name: Benchmark, files: dict[Split, Path]) -> Iterator[SplitBatch]:
    """All lines, blank ones too. Documents: a line each of the Penn Treebank, articles of WikiText-2."""
    for split, file in files.items():
        lines = [line for batch, _ in read_raw_lines(file) for line in batch]
        starts = range(len(lines)) if name == "ptb" else _article_starts(lines)
        marked: list[str | None] = []
        # Blank lines before the first title belong to the first article.
        for begin, end in pairwise([0, *starts[1:], len(lines)]):
            marked += [*lines[begin:end], None]
        yield SplitBatch(split, marked, source=str(file))


def _article_starts(lines: list[str]) -> list[int]:
    """Lines with a title between blank lines; formulas in the text look like titles, but have text around them."""
    return [
        number
        for number in range(1, len(lines) - 1)
        if _TITLE.fullmatch(lines[number]) and not lines[number - 1].strip() and not lines[number + 1].strip()
    ]


def _check(file: Path, found: str, expected: str) -> None:
    if found != expected:
        raise ValueError(f"{file} is not the published file: SHA-256 {found}, expected {expected}; fetch it again")


def _fetch(name: Benchmark, folder: Path) -> None:
    try:
        import datasets
    except ImportError as error:
        raise ValueError(
            f"{name} is not on this machine: name the folder that holds {name}/train.txt with --data-dir or VLHMM_DATA, "
            'or install the extra that fetches it: pip install "vlhmm[hub]"'
        ) from error
    contents = {split: "".join(_published_lines(datasets, name, split)).encode() for split in SPLITS}
    for split, content in contents.items():
        file = folder / f"{split}.txt"
        _check(file, hashlib.sha256(content).hexdigest(), SHA256[name][split])
        atomic_write(file, content)


def _published_lines(datasets: Any, name: Benchmark, split: Split) -> Iterator[str]:
    """The lines of the original files: the hub's copies drop the white space around them."""
    hub_split = "validation" if split == "valid" else split
    if name == "ptb":
        # The hub's own conversion: the dataset itself is a script, which `datasets` no longer runs.
        rows = datasets.load_dataset("ptb-text-only/ptb_text_only", revision="refs/convert/parquet", split=hub_split)
        for row in rows:
            yield f" {row['sentence']} \n"
    else:
        for row in datasets.load_dataset("Salesforce/wikitext", "wikitext-2-v1", split=hub_split):
            yield row["text"] or " \n"
