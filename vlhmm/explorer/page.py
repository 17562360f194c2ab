"""The explorer as one HTML file: scripts, styles and data inside, and a policy under which it can load nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from vlhmm.data.atomic import atomic_write
from vlhmm.explorer.data import ExplorerData, page_values

SCRIPTS = (
    "elements",
    "model",
    "colours",
    "pictures",
    "map",
    "card",
    "maptab",
    "trellis",
    "reading",
    "training",
    "blocks",
    "explorer",
)
"""The parts of the ES module, in their order."""


@cache
def module_text() -> str:
    """The ES module that draws the explorer; its default export is a widget of anywidget."""
    return "\n".join(_static(f"{name}.js") for name in SCRIPTS)


@cache
def style_text() -> str:
    return _static("explorer.css")


def explorer_page(data: ExplorerData, *, live: str | None = None) -> str:
    """Write the explorer of a model as one HTML page.

    The page holds all it needs. Its Content-Security-Policy names the hashes of its script and its style and allows nothing else: no
    other script, no request. With `live` it may ask the server it came from, and no other.

    Args:
        data: What the page shows.
        live: The path at which the server of the page analyses a text, as "/v1/vlhmm/analyze"; None: the page has no server, and
            shows the texts of `data`.

    Returns:
        The HTML.

    Raises:
        ValueError: `live` is no path of the page's own server.

    Example:
        >>> from vlhmm.explorer import explorer_data, explorer_page
        >>> page = explorer_page(explorer_data(vlhmm.load("demo-model"), texts=["the cat sees a bird"]))
        >>> page.startswith("<!doctype html>"), "default-src 'none'" in page
        (True, True)
    """
    if live is not None and (not live.startswith("/") or live.startswith("//")):
        raise ValueError(f"live is {live!r}, but it must be a path of the page's own server, such as /v1/vlhmm/analyze")
    script = f"{module_text()}\nopenPage();\n"
    style = style_text()
    policy = [
        "default-src 'none'",
        f"script-src {_hash(script)}",
        f"style-src {_hash(style)}",
        # Saved pictures are drawn from the page's own data; the icon is an empty one.
        "img-src data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
        *(["connect-src 'self'"] if live else []),
    ]
    values = json.dumps({**page_values(data), "live": live}, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # A text may hold the end of a script.
    values = values.replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{"; ".join(policy)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{html.escape(data.name)} · vlhmm explorer</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<div id="explorer" class="vx"><noscript>This page draws a model with JavaScript, which is switched off.</noscript></div>
<script type="application/json" id="data">{values}</script>
<script type="module">{script}</script>
</body>
</html>
"""


@dataclass(frozen=True)
class WrittenPage:
    """A page that was written, and what it holds.

    Example:
        >>> from vlhmm.explorer import explorer_data, write_page
        >>> written = write_page(explorer_data(vlhmm.load("demo-model"), texts=["the cat sees a bird"]), "page.html")
        >>> written.num_states, written.num_texts
        (48, 1)
    """

    file: str
    num_bytes: int
    num_states: int
    states_shown: int
    share_of_tokens: float
    """The part of the text's tokens that the shown states emit, in expectation."""
    text: str
    """What the text is called whose states are counted."""
    num_tokens: int
    num_texts: int
    """Texts that are read token by token."""


def write_page(data: ExplorerData, file: str | Path) -> WrittenPage:
    """Write `explorer_page` to a file; one that exists is replaced.

    Args:
        data: What the page shows.
        file: The file.

    Returns:
        What was written.

    Example:
        >>> from vlhmm.explorer import explorer_data, write_page
        >>> data = explorer_data(vlhmm.load("demo-model"), texts=["the cat sees a bird"])
        >>> write_page(data, "page.html").num_bytes == len(open("page.html", "rb").read())
        True
    """
    content = explorer_page(data).encode()
    atomic_write(Path(file), content)
    return WrittenPage(
        file=str(file),
        num_bytes=len(content),
        num_states=data.num_states,
        states_shown=len(data.states.number),
        share_of_tokens=min(1.0, float(data.states.use.astype(float).sum()) / data.usage.num_tokens),
        text=data.text,
        num_tokens=len(data.tokens),
        num_texts=len(data.texts),
    )


def _static(name: str) -> str:
    return files("vlhmm.explorer").joinpath("static", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
