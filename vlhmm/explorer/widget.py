"""The explorer in a notebook, as a widget of anywidget."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from vlhmm.control.constraints import Constraint, all_of
from vlhmm.control.phrase_constraints import contains, excludes
from vlhmm.explorer.analysis import analyse_text
from vlhmm.explorer.data import explorer_data, page_values
from vlhmm.explorer.page import module_text, style_text
from vlhmm.lm import LanguageModel
from vlhmm.reports.json_values import as_json
from vlhmm.reports.sources import Source


def explore(
    lm: LanguageModel,
    texts: Sequence[str] | None = None,
    *,
    source: Source | None = None,
    folder: str | Path | None = None,
    constraint: Constraint | None = None,
    top: int = 4,
) -> Any:
    """Show the explorer of a model in a notebook; a text that is typed there is read by the kernel.

    It is the page that `vlhmm explore` writes. It needs the extra `notebook`.

    Args:
        lm: The model.
        texts: Texts that are read token by token from the start; None: some lines of the source.
        source: The text whose states are counted, as `vlhmm.reports.read_source` reads it. None: the validation text of the corpus
            that the folder names, or where that cannot be read a text drawn from the model.
        folder: The folder of the model, which may contain the record of its training; None: the one it was loaded from.
        constraint: A constraint whose probability is followed along `texts`.
        top: Number of states of each token.

    Returns:
        The widget, an `anywidget.AnyWidget`.

    Raises:
        ValueError: anywidget is not installed, a text has no tokens or probability zero, or `top` is below 1.

    Example:
        >>> widget = vlhmm.explore(vlhmm.load("demo-model"), ["the cat sees a bird"])
        >>> widget.__class__.__name__
        'ExplorerWidget'
    """
    widget = _widget_class()
    if folder is None:
        folder = lm.folder
    data = explorer_data(lm, source, folder=folder, texts=texts, constraint=constraint, top=top)
    made = widget(data=json.dumps(page_values(data), allow_nan=False))
    made.on_msg(lambda _, question, buffers: made.send(_answer(lm, question, top)))
    return made


def _answer(lm: LanguageModel, question: dict[str, Any], top: int) -> dict[str, Any]:
    """The analysis of the text that was typed; an error in the text is shown beside it, not raised in the kernel."""
    try:
        constraint = _constraint(question.get("constraint") or {})
        analysis = analyse_text(lm, question["text"], top=top, constraint=constraint)
    except ValueError as error:
        return {"number": question.get("number"), "error": str(error)}
    return {"number": question.get("number"), "analysis": as_json(analysis)}


def _constraint(asked: dict[str, list[str]]) -> Constraint | None:
    parts = [contains(phrase) for phrase in asked.get("contains", [])]
    parts += [excludes(phrase) for phrase in asked.get("excludes", [])]
    return all_of(parts) if parts else None


@cache
def _widget_class() -> Any:
    try:
        import anywidget
        import traitlets
    except ImportError:
        raise ValueError('the explorer in a notebook needs anywidget: pip install "vlhmm[notebook]"') from None

    class ExplorerWidget(anywidget.AnyWidget):
        _esm = module_text()
        _css = style_text()
        data = traitlets.Unicode().tag(sync=True)

    return ExplorerWidget
