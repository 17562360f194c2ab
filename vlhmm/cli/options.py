"""Arguments and options that several commands share, and how they are read."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import torch

    from vlhmm.data import Corpus, Tokenizer


def utf8(value: Any) -> Any:
    """Text of the command line, whatever the locale made of its bytes; refuses what is not UTF-8."""
    if isinstance(value, list | tuple):
        return [utf8(one) for one in value]
    if not isinstance(value, str):
        return value
    try:
        given = os.fsencode(value)
    except UnicodeEncodeError:
        # Characters that did not come from bytes of this locale: they are whole.
        return value
    try:
        return given.decode("utf-8")
    except UnicodeDecodeError as error:
        shown = ascii(given)[1:]
        raise ValueError(
            f"the text {shown} is not UTF-8 (byte {error.start}, {error.reason}): convert it first"
        ) from None


Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else.")]
ModelDir = Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `vlhmm train` or `lm.save` wrote.")]
TextOrStdin = Annotated[
    str | None,
    typer.Argument(
        metavar="TEXT", show_default=False, callback=utf8, help="The text; default or `-`: stdin, one text a line."
    ),
]
CorpusName = Annotated[
    str,
    typer.Argument(
        metavar="CORPUS", help="pydocs, ptb, wikitext-2, a folder made by `vlhmm prepare`, or text files of your own."
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", envvar="VLHMM_DATA", show_default=False, help="The folder that holds ptb/ and wikitext-2/."
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="One setting; repeat it. `train --dry-run` lists them all."),
]


TokenizerOption = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        metavar="bpe|words|whitespace|PATH",
        show_default=False,
        help="bpe: pieces made from the training text, which spell every text (the default for text of your own); words: words "
        "and punctuation, rare ones unknown; whitespace: text that is tokenized already; or a tokenizer.json or SentencePiece .model.",
    ),
]
VocabSize = Annotated[
    int | None,
    typer.Option(
        "--vocab-size",
        metavar="N",
        show_default=False,
        help="Largest vocabulary of bpe or words; default for bpe: 8 x the square root of the bytes of text, 512 to 16,384.",
    ),
]
MinCount = Annotated[
    int | None,
    typer.Option(
        "--min-count",
        metavar="N",
        show_default=False,
        help="How often a piece or word must occur in the training text (default: 2).",
    ),
]


AllowUnk = Annotated[bool, typer.Option("--allow-unk", help="Allow the unknown word; by default it is left out.")]


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


DeviceOption = Annotated[Device, typer.Option("--device", help="auto: CUDA if available.")]


def choose_device(device: Device) -> torch.device:
    import torch

    available = torch.cuda.is_available()
    if device is Device.cuda and not available:
        raise ValueError(
            f"--device cuda, but torch {torch.__version__} finds 0 CUDA devices on this machine: use --device cpu"
        )
    if not available or device is Device.cpu:
        return torch.device("cpu")
    from vlhmm.cli.ranks import local_gpu

    return local_gpu()


def seeded(seed: int | None) -> torch.Generator:
    """Random numbers; None: others each time."""
    import torch

    generator = torch.Generator()
    if seed is None:
        generator.seed()
        return generator
    return generator.manual_seed(seed)


PICTURES = (".png", ".pdf", ".svg")


def check_picture(path: Path | None) -> None:
    """Refuses a picture that could not be written, before anything is computed, and makes its folder."""
    if path is None:
        return
    if path.suffix.lower() not in PICTURES:
        raise ValueError(f"--plot {path} is no picture's name: let it end in {', '.join(PICTURES)}")
    require_extra("--plot", "matplotlib", "plot")
    path.parent.mkdir(parents=True, exist_ok=True)


def require_extra(option: str, package: str, extra: str) -> None:
    """Refuses an option whose package is not installed, before anything is computed for it."""
    if importlib.util.find_spec(package) is None:
        raise ValueError(f'{option} needs {package}: pip install "vlhmm[{extra}]"')


def read_corpus(
    source: str,
    data_dir: Path | None,
    tokenizer: Tokenizer | str | None = None,
    vocab_size: int | None = None,
    min_count: int | None = None,
) -> Corpus:
    from vlhmm.cli.show import progress_bar
    from vlhmm.data import load_corpus

    with progress_bar(f"reading {source}", None):
        return load_corpus(source, data_dir=data_dir, tokenizer=tokenizer, vocab_size=vocab_size, min_count=min_count)


def texts_of(text: str | None) -> Iterator[str]:
    """The text of the command line, or the lines of stdin; blank lines are passed over."""
    if text is not None and text != "-":
        yield text
        return
    if text is None and sys.stdin.isatty():
        raise ValueError("no text: give it in quotes, or pipe it in, one text a line")
    found = False
    for line in stdin_lines():
        if line.strip():
            found = True
            yield line
    if not found:
        raise ValueError("stdin has 0 lines of text, at least 1 is needed")


def stdin_lines() -> Iterator[str]:
    if isinstance(sys.stdin, io.TextIOWrapper):
        # Some locales would smuggle bytes that are no text through as half characters.
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")
    try:
        for line in sys.stdin:
            yield line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"stdin is not UTF-8 ({error.reason}); convert it first") from error
