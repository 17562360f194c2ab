"""One distillation run: states from the teacher's vectors if there are any, training, figures; and the same without them."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import torch

from vlhmm.distillation.material import Material, finding_states
from vlhmm.distributed import ALONE, World
from vlhmm.progress import Note, result_of
from vlhmm.reports.evaluation import HMM_NAME, HeldOutText
from vlhmm.reports.results import PLAIN, DistillationResults, RunResults
from vlhmm.reports.training_run import RunEvent, training_run
from vlhmm.training.plan import Plan


def distill_and_report(
    material: Material,
    out: str | Path,
    *,
    device: torch.device | str = "cpu",
    command: str = "",
    cluster_tokens: int | None = None,
    joint_tokens: int | None = None,
    compare: bool = False,
) -> DistillationResults:
    """Train an HMM on what a teacher writes or reads, as `vlhmm distill` does. The same call continues a run that was stopped.

    Args:
        material: What the HMM is trained on, as `vlhmm.distillation.material` makes it.
        out: The folder of the HMM.
        device: Where it is trained.
        command: What the results are said to come from.
        cluster_tokens: Tokens whose vectors are clustered into states; None: as many as are worth their time.
        joint_tokens: Tokens of training with given states; None: a tenth of it, within bounds.
        compare: Train another HMM without given states too.

    Returns:
        The results of the run or of both.

    Example:
        Here "teacher" is a folder that `save_pretrained` of transformers wrote, with model and tokenizer.

        >>> from pathlib import Path
        >>> from vlhmm.distillation.material import Drawing, draw_text
        >>> from vlhmm.reports import distill_and_report
        >>> from vlhmm.training.presets import preset
        >>> changes = {"states_per_block": "8", "dim": "8", "batch_size": "8", "epochs": "2"}
        >>> drawing = Drawing(Path("samples"), tokens=2000, max_tokens=20)
        >>> material = draw_text("teacher", drawing, preset("distill").with_changes(changes))
        >>> results = distill_and_report(material, "distilled")
        >>> results.run.num_states, results.run.figures.held_out.teacher > 1
        (8, True)
    """
    return result_of(
        distillation_run(
            material,
            out,
            device=device,
            command=command,
            cluster_tokens=cluster_tokens,
            joint_tokens=joint_tokens,
            compare=compare,
        )
    )


def _worse_than_unigram(run: RunResults) -> Generator[Note, None, None]:
    """A warning where the HMM has learned less than how often each token occurs."""
    figures = run.figures
    if isinstance(figures, HeldOutText):
        hmm, unigram = (figures.perplexity[name]["test"] for name in (HMM_NAME, "unigram"))
    elif figures is not None:
        hmm, unigram = figures.held_out.hmm, figures.held_out.unigram
    else:
        return
    if hmm >= unigram:
        yield Note(
            f"warning: the HMM, of perplexity {hmm:,.1f}, is no better than a unigram model, {unigram:,.1f}: "
            "it has seen too little text; draw more tokens (--tokens), or train longer (--set epochs=N)"
        )


def distillation_run(
    material: Material,
    out: str | Path,
    *,
    device: torch.device | str = "cpu",
    command: str = "",
    cluster_tokens: int | None = None,
    joint_tokens: int | None = None,
    compare: bool = False,
    here: World = ALONE,
) -> Generator[RunEvent, None, DistillationResults]:
    """`distill_and_report`, an event at a time."""
    out = Path(out)
    plan = Plan(material.recipe, material.source, material.data_dir)
    joint = None
    if material.teacher is not None:
        joint = yield from finding_states(material, material.teacher, out, cluster_tokens, joint_tokens, here)
    run = yield from training_run(
        plan,
        material.corpus,
        out,
        device=device,
        resume=True,
        command=command,
        joint=joint,
        samples=material.samples,
        here=here,
    )
    yield from _worse_than_unigram(run)
    if not compare or run.stopped == "interrupted":
        return DistillationResults(run)
    yield Note("the same without given states:")
    plain = yield from training_run(
        plan,
        material.corpus,
        out / PLAIN,
        device=device,
        resume=True,
        command=command,
        samples=material.samples,
        here=here,
    )
    return DistillationResults(run, plain)
