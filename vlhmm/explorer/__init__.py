"""The explorer: a page to look into a model with, its states on a map, its reading of texts, its training and its blocks."""

from vlhmm.explorer.analysis import TextAnalysis, analyse_text
from vlhmm.explorer.data import ExplorerData, explorer_data, exploring
from vlhmm.explorer.page import WrittenPage, explorer_page, write_page

__all__ = [
    "ExplorerData",
    "TextAnalysis",
    "WrittenPage",
    "analyse_text",
    "explorer_data",
    "explorer_page",
    "exploring",
    "write_page",
]
