"""`vlhmm train`: what the options ask for, and what is shown of a run."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vlhmm.cli import options
from vlhmm.cli.options import (
    Changes,
    DataDir,
    DeviceOption,
    Json,
    MinCount,
    TokenizerOption,
    VocabSize,
    choose_device,
    read_corpus,
    require_extra,
)
from vlhmm.cli.settings import Asked, Method
from vlhmm.cli.show import (
    command_line,
    duration,
    facts,
    line,
    message,
    print_json,
    print_table,
    program,
    size,
    table,
)

if TYPE_CHECKING:
    from vlhmm.reports import HeldOutText, Plan, RunResults
    from vlhmm.training.initial import InitialWeights
    from vlhmm.training.plan import Forecast


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples:\n  vlhmm train pydocs --out runs/first --preset demo --set epochs=3\n"
        "  vlhmm train ptb --out runs/ptb --set states_per_block=512 --device cuda\n"
        "  vlhmm train pydocs --out runs/em --method em --set states_per_block=64 --set iterations=10\n"
        "  vlhmm train --out runs/ptb --resume\n"
        "  torchrun --nproc-per-node 8 -m vlhmm train ptb --out runs/ptb8 --preset default"
    )(train)


def train(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder of the run.")],
    corpus_name: Annotated[
        str | None,
        typer.Argument(
            metavar="CORPUS",
            show_default=False,
            help="pydocs, ptb, wikitext-2, a folder made by `vlhmm prepare`, or text files of your own.",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset",
            metavar="NAME",
            help="cpu, default (for a GPU), demo, linear, scalar, chiu2020-ptb, ...; default: chosen by device and amount of text.",
        ),
    ] = None,
    method: Annotated[
        Method | None,
        typer.Option(
            "--method",
            show_default=False,
            help="gradient (the default), or em: Baum-Welch, for free tables (--preset scalar); --set batches_per_step=N in mini-batches.",
        ),
    ] = None,
    changes: Changes = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE.toml", help="Settings under blocks, model and train or em.")
    ] = None,
    blocks_file: Annotated[
        Path | None, typer.Option("--blocks", metavar="FILE", help="Blocks that `vlhmm cluster` wrote.")
    ] = None,
    init_from: Annotated[
        Path | None,
        typer.Option(
            "--init-from",
            metavar="MODEL",
            help="Start from the weights of the model in this folder, with its blocks and model settings.",
        ),
    ] = None,
    split_states: Annotated[
        int | None,
        typer.Option(
            "--split-states",
            metavar="N",
            min=1,
            help="With --init-from: each state becomes N; the probability of every text is unchanged.",
        ),
    ] = None,
    split_blocks: Annotated[
        int | None,
        typer.Option(
            "--split-blocks",
            metavar="N",
            min=1,
            help="With --init-from, for free tables: the words of each block are split into N blocks, each with states of its own.",
        ),
    ] = None,
    tokenizer: TokenizerOption = None,
    vocab_size: VocabSize = None,
    min_count: MinCount = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="Seed of all random numbers.")] = None,
    device: DeviceOption = options.Device.auto,
    max_seconds: Annotated[
        float | None, typer.Option("--max-seconds", min=0, metavar="S", help="Stop after S seconds.")
    ] = None,
    local_steps: Annotated[
        int,
        typer.Option(
            "--local-steps",
            min=1,
            metavar="N",
            help="Under torchrun: steps by each process alone between two averages; 1: sums at every step.",
        ),
    ] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in DIR with its settings.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; write nothing.")] = False,
    no_eval: Annotated[
        bool, typer.Option("--no-eval", help="Do not score the held-out text at the end: the test text is left unread.")
    ] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write events for TensorBoard too.")] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> int:
    """Train a model on a corpus; it can be stopped at any time and resumed."""
    from vlhmm.cli.running import exit_status, watch_run
    from vlhmm.distributed import broadcast_object, world
    from vlhmm.reports import Plan, forecast, read_plan, training_run
    from vlhmm.training.choice import choose_recipe
    from vlhmm.training.estimate import planned_seconds
    from vlhmm.training.initial import refuse_other_settings
    from vlhmm.training.plan import RECIPE, kept_tokenizer
    from vlhmm.training.ranks import require_same_code
    from vlhmm.training.run_folder import begun_before

    here = world()
    chosen_device = choose_device(device)
    if tensorboard:
        require_extra("--tensorboard", "tensorboard", "tensorboard")
    if out.is_file():
        raise ValueError(f"--out {out} is a file: name a folder")
    if begun_before(out, here) and not resume:
        message(f"started anew by torchrun: going on with {out}")
        resume = True
    saved = broadcast_object(read_plan(out) if resume and here.is_first else None, here, f"reading {out}")
    if method is None and saved is not None and saved.em is not None:
        method = Method.em
    asked = Asked(preset, config, tuple(changes or ()), seed, method)
    if resume and saved is None:
        if corpus_name is None:
            missing = (
                "there is no such folder" if not out.exists() else f"it has no {RECIPE}, so no run was started there"
            )
            raise ValueError(
                f"nothing to resume in {out}: {missing}; begin a run with: {program()} train CORPUS --out {shlex.quote(str(out))}"
            )
        message(f"{out} holds no run yet: beginning one")
    source = corpus_name or (saved.source if saved else None)
    if source is None:
        raise ValueError("no CORPUS: name one, pydocs for example; only --resume can do without")
    if data_dir is None and saved is not None:
        data_dir = saved.data_dir
    initial = _initial(
        init_from, split_states, split_blocks, None if saved is None else saved.initial, new=saved is None
    )
    recipe, em = (asked.recipe(), asked.em()) if saved is None else asked.unchanged(saved.recipe, saved.em)
    if em is not None and recipe.model.parameterization != "scalar":
        raise ValueError(
            f"--method em counts uses of free tables, but the model is {recipe.model.parameterization!r}: "
            "use --preset scalar, or --method gradient"
        )
    if em is not None and local_steps > 1:
        raise ValueError(
            f"--local-steps {local_steps} is for --method gradient: --method em sums its counts over all batches of "
            "--set batches_per_step=N"
        )
    kept = None
    if here.is_first:
        kept = None if saved is None else kept_tokenizer(out, source)
        if kept is None and initial is not None:
            kept = kept_tokenizer(initial.folder, source)
    kept = broadcast_object(kept, here, f"reading {out}")
    asked_for = any(value is not None for value in (tokenizer, vocab_size, min_count))
    corpus = read_corpus(source, data_dir, tokenizer if asked_for else kept, vocab_size, min_count)
    if kept is not None and corpus.tokenizer != kept:
        raise ValueError(
            f"the run {'was started' if saved is not None else 'starts'} with {kept!r}, but the options ask for {corpus.tokenizer!r}: "
            "leave --tokenizer, --vocab-size and --min-count out, or start a new run"
        )
    if saved is None and asked.leaves_preset_open:
        choice = choose_recipe(chosen_device.type, len(corpus.train), corpus.tokenizer.vocab_size)
        recipe = asked.recipe(choice.recipe)
        message(
            f"preset {choice.preset}, chosen for {choice.reason}; --preset NAME takes another, --set KEY=VALUE changes it"
        )
    if initial is not None and saved is None:
        refuse_other_settings(initial, asked.named(recipe))
    require_same_code(
        {
            "the recipe": recipe.to_dict(),
            "em": em,
            "the text": corpus.hash,
            "--resume": resume,
            "--local-steps": local_steps,
        },
        here,
    )
    plan = Plan(recipe, source, data_dir, em, initial)
    if dry_run:
        sizes = forecast(plan, corpus, chosen_device, blocks_file=blocks_file)
        if as_json:
            print_json(sizes)
        else:
            # A model that does not fit is not timed.
            fits = sizes.estimated_bytes < sizes.available_bytes
            seconds = planned_seconds(plan, corpus, chosen_device, blocks_file=blocks_file) if fits else None
            _show_plan(plan, sizes, seconds)
        return 0
    events = training_run(
        plan,
        corpus,
        out,
        blocks_file=blocks_file,
        device=chosen_device,
        resume=resume,
        max_seconds=max_seconds,
        command=command_line(),
        score_held_out=not no_eval,
        here=here,
        local_steps=local_steps,
    )
    results = watch_run(events, plan, out, tensorboard=tensorboard and here.is_first, max_seconds=max_seconds)
    status = exit_status(results, out)
    if as_json:
        print_json(results)
    elif status == 0:
        _show_results(results, out)
    return status


def _initial(
    folder: Path | None,
    split_states: int | None,
    split_blocks: int | None,
    saved: InitialWeights | None,
    *,
    new: bool,
) -> InitialWeights | None:
    """What the options say of the first weights; a run that goes on keeps those that it was begun with."""
    from vlhmm.training.initial import InitialWeights

    if folder is None and (split_states or split_blocks) and new:
        raise ValueError("--split-states and --split-blocks split a trained model: name it with --init-from")
    if new:
        return None if folder is None else InitialWeights(folder, split_states or 1, split_blocks or 1)
    named = {
        "--init-from": folder and folder.absolute(),
        "--split-states": split_states,
        "--split-blocks": split_blocks,
    }
    begun = {
        "--init-from": saved and saved.folder.absolute(),
        "--split-states": saved and saved.split_states,
        "--split-blocks": saved and saved.split_blocks,
    }
    for option, value in named.items():
        if value is not None and value != begun[option]:
            raise ValueError(
                f"the run was started with {option} {begun[option] or 'left out'}, not {value}: leave it out, or start a new run"
            )
    return saved


def _show_plan(plan: Plan, sizes: Forecast, seconds: float | None) -> None:
    from vlhmm.reports.sources import corpus_label

    for section, settings in sizes.recipe.items():
        shown = table(f"[{section}]", "")
        for name, value in settings.items():
            shown.add_row(f"  {name}", str(value).lower() if isinstance(value, bool) else str(value))
        print_table(shown)
    line()
    em, train = plan.em, plan.recipe.train if plan.recipe.stages is None else plan.recipe.stages.finetune
    batch = em or train
    passes = f"{train.epochs} epochs" if em is None else f"{em.iterations} iterations of Baum-Welch"
    available = f"{size(sizes.available_bytes)} free on {sizes.device}"
    facts(
        [
            ("corpus", f"{corpus_label(sizes.corpus)}, {sizes.tokens:,} tokens, {sizes.corpus.tokenizer.vocabulary}"),
            ("states", f"{sizes.num_states:,} in {sizes.num_blocks:,} blocks"),
            ("parameters", f"{sizes.num_parameters:,}"),
            *([] if sizes.initial is None else [("starts from", _start_shown(sizes.initial))]),
            *[(stage.name, f"{stage.tokens:,} tokens: {stage.what}") for stage in sizes.stages],
            ("steps", f"{sizes.steps:,} of {batch.batch_size} x {batch.window} tokens, {passes}"),
            ("memory", f"about {size(sizes.estimated_bytes)} while training, of {available}"),
            *([] if seconds is None else [("time", f"about {duration(seconds)}, by the time of a few steps")]),
            ("written", "nothing, this was a dry run"),
        ]
    )


def _start_shown(initial: InitialWeights) -> str:
    told = f"the weights of {initial.folder}"
    if initial.splits:
        told += f", each block in {initial.split_blocks}, each state in {initial.split_states}, noise {initial.noise:g}"
    return told


def print_held_out(figures: HeldOutText) -> None:
    """The held-out text by every model, and which is better."""
    bits = any(value is not None for by_split in figures.bits_per_byte.values() for value in by_split.values())
    columns = ["valid", "test"] if not bits else ["bits per byte, valid", "test", "perplexity, valid", "test"]
    shown = table("model" if bits else "perplexity", *columns, right=tuple(columns))
    for name, scores in figures.perplexity.items():
        cells = [f"{scores[split]:,.1f}" for split in ("valid", "test")]
        if bits:
            found = [figures.bits_per_byte[name][split] for split in ("valid", "test")]
            cells = ["-" if value is None else f"{value:.3f}" for value in found] + cells
        shown.add_row(name, *cells)
    print_table(shown)
    if figures.test.num_unknown:
        line(
            f"unknown words: {figures.test.unknown_rate:.1%} of the test tokens, scored as one word".replace("%", " %")
        )
    if reason := figures.test.no_bits_per_byte:
        line(f"no bits per byte: {reason}")
    if figures.comparison is not None:
        line(figures.comparison)


def _show_results(results: RunResults, out: Path) -> None:
    from vlhmm.cli.running import export_hint
    from vlhmm.reports import HeldOutText

    figures = results.figures
    rows = [("model", str(out))]
    if isinstance(figures, HeldOutText):
        print_held_out(figures)
        line()
        rows.insert(0, ("protocol", figures.test.protocol))
    elif not math.isinf(results.best_check_perplexity):
        rows.insert(
            0, ("valid", f"perplexity {results.best_check_perplexity:,.1f} in parallel streams, at the best check")
        )
    rows += [(stage.name, f"{duration(stage.seconds)}, {stage.tokens:,} tokens") for stage in results.stages]
    if results.learning_curve:
        rows.append(("curve", results.learning_curve))
    if results.stopped == "time":
        rows.append(("go on", f"{program()} train --out {out} --resume"))
    if figures is not None:
        rows.append(("look", f"{program()} info {out}"))
        rows.append(("ship", export_hint(out)))
    facts(rows)
