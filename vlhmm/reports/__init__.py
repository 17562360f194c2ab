"""Reports: what is known of a model, a text, a corpus or a run, as records, and how these look as JSON.

The command line prints them, and a server may send them: Python gets the same answers from the same code.
Functions come in pairs: `evaluate_source` computes, `evaluating_source` is the same as a generator that tells how far it is and
returns the result; `vlhmm.progress` has what they tell.
"""

from vlhmm.reports.comparison import Comparison, compare, comparing
from vlhmm.reports.corpora import ClusteredWords, PreparedCorpus, cluster_words, clustering_words, preparing_corpus
from vlhmm.reports.distillation_run import distill_and_report, distillation_run
from vlhmm.reports.evaluation import HeldOutText, TextEvaluation, evaluate_source, evaluating_source
from vlhmm.reports.export import ExportedModel, export_run
from vlhmm.reports.inspection import inspect_source, inspecting_source
from vlhmm.reports.json_values import as_json
from vlhmm.reports.model import ModelInformation, model_information
from vlhmm.reports.results import DistillationResults, RunResults
from vlhmm.reports.sources import Source, first_tokens, read_source
from vlhmm.reports.training_run import train_and_report, training_run
from vlhmm.training.plan import Plan, forecast, read_plan

__all__ = [
    "ClusteredWords",
    "Comparison",
    "DistillationResults",
    "ExportedModel",
    "HeldOutText",
    "ModelInformation",
    "Plan",
    "PreparedCorpus",
    "RunResults",
    "Source",
    "TextEvaluation",
    "as_json",
    "cluster_words",
    "clustering_words",
    "compare",
    "comparing",
    "distill_and_report",
    "distillation_run",
    "evaluate_source",
    "evaluating_source",
    "export_run",
    "first_tokens",
    "forecast",
    "inspect_source",
    "inspecting_source",
    "model_information",
    "preparing_corpus",
    "read_plan",
    "read_source",
    "train_and_report",
    "training_run",
]
