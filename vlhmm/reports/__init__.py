"""Reports: what is known of a model, a text or a run, as records, and how these look as JSON.

The command line prints them, and a server may send them: whoever asks in Python gets the same answers from the same code.
Functions come in pairs: `evaluate_source` computes, `evaluating_source` is the same as a generator that tells how far it is.
"""

from vlhmm.reports.evaluation import TextEvaluation, evaluate_source, evaluating_source
from vlhmm.reports.inspection import inspect_source, inspecting_source
from vlhmm.reports.json_values import as_json
from vlhmm.reports.model import ModelInformation, model_information
from vlhmm.reports.sources import Source, first_tokens, read_source

__all__ = [
    "ModelInformation",
    "Source",
    "TextEvaluation",
    "as_json",
    "evaluate_source",
    "evaluating_source",
    "first_tokens",
    "inspect_source",
    "inspecting_source",
    "model_information",
    "read_source",
]
