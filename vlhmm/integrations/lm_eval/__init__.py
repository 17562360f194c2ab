"""lm-evaluation-harness on models of this package, batched and exact: `python -m vlhmm.integrations.lm_eval --model vlhmm ...`.

Needs the extra `eval`. Releases of the harness that read entry points find the model by themselves.
"""

from vlhmm.integrations.lm_eval.model import VlhmmLM

__all__ = ["VlhmmLM"]
