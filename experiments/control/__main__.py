"""`python -m experiments.control prompts FILE`, then `vlhmm distill`, then `python -m experiments.control run`, or `cost`."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

import vlhmm
from experiments.control.calibration import calibrate, frequent_words
from experiments.control.methods import Timer, compiled, controlled_texts, guide_of, mask_of, plain_texts
from experiments.control.overhead import measure_lookahead, measure_overhead
from experiments.control.report import about, calibration_plot, method_table, summed_up
from experiments.control.sets import other_prompts, read_sets
from vlhmm.cluster import one_block
from vlhmm.distillation.teachers import Teacher, draw_texts, load_teacher
from vlhmm.hmm import HMM
from vlhmm.models import build_blocked
from vlhmm.tables import Tables
from vlhmm.training.presets import preset

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help=__doc__)

CALIBRATION_WORDS, CALIBRATION_TOKENS, PREFIXES = 48, 32, (0, 2, 4, 8, 12, 16)
LARGE_STATES = 4096
EXAMPLES = 3


@app.command()
def prompts(
    file: Annotated[Path, typer.Argument(help="Written anew: one prompt a line.")],
    num: Annotated[int, typer.Option(min=1)] = 50_000,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Prompts to distil with: of the experiment's form, but with none of its words."""
    file.write_text("\n".join(other_prompts(num, seed)) + "\n", encoding="utf-8")


TeacherName = Annotated[str, typer.Option("--teacher", help="As in `vlhmm distill`.")]
Distilled = Annotated[Path, typer.Option("--hmm", help="What `vlhmm distill` left.")]
DeviceName = Annotated[str, typer.Option("--device")]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@app.command()
def run(
    teacher_name: TeacherName,
    hmm: Distilled,
    out: Annotated[Path, typer.Option("--out", help="A folder for results.json, outputs.json and calibration.png.")],
    device_name: DeviceName = DEVICE,
    num_sets: Annotated[int, typer.Option("--sets", min=1, help="The first so many of the 200.")] = 200,
    samples: Annotated[int, typer.Option(min=1, help="Outputs a set of the methods that always succeed.")] = 8,
    tries: Annotated[int, typer.Option(min=1, help="Texts a set that rejection may draw.")] = 16,
    sets_together: Annotated[int, typer.Option(min=1, help="Sets in one call of generate.")] = 8,
    rows: Annotated[int, typer.Option(min=1, help="Plain texts drawn side by side.")] = 512,
    calibration_texts: Annotated[int, typer.Option(min=20)] = 4096,
    processes: Annotated[int, typer.Option(min=1, help="That compile constraints.")] = 2,
    timing: Annotated[bool, typer.Option(help="Measure what the guide costs.")] = True,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Four ways to get texts with the keywords; calibration; cost of the guide."""
    begun = time.perf_counter()
    device = torch.device(device_name)
    console = Console(stderr=True)
    out.mkdir(parents=True, exist_ok=True)
    lm = vlhmm.load(hmm, device)
    teacher = load_teacher(teacher_name, device, lm.tokenizer)
    sets = read_sets()[:num_sets]
    eos = lm.tokenizer.eos_id
    assert eos is not None
    timers = {name: Timer() for name in ("guided", "masked", "plain")}

    def said(text: str) -> None:
        console.print(f"{time.perf_counter() - begun:6.1f} s  {text}", style="dim")

    said(f"{lm.hmm.num_states:,} states; {len(sets)} keyword sets")
    automata = compiled(sets, hmm / "tokenizer.json", processes)
    said(f"automata of {max(automaton.num_states for automaton in automata):,} states at most")
    plain = plain_texts(teacher, sets, tries, rows, seed, timers["plain"])
    said("plain texts")
    guided = controlled_texts(
        teacher,
        sets,
        automata,
        lambda some, limit, width: guide_of(lm, some, limit).step,
        samples,
        sets_together,
        seed,
        timers["guided"],
    )
    said("guided texts")
    masked = controlled_texts(
        teacher,
        sets,
        automata,
        lambda some, limit, width: mask_of(eos, some, limit, width, samples),
        samples,
        sets_together,
        seed,
        timers["masked"],
    )
    said("masked texts")
    shared = {output.number for output in plain if output.satisfied}
    methods = {
        "guided": summed_up(guided, len(sets), timers["guided"].seconds, shared),
        "hard masking": summed_up(masked, len(sets), timers["masked"].seconds, shared),
        f"rejection of {tries}": summed_up(plain, len(sets), timers["plain"].seconds, shared, only_satisfied=True),
        "unconstrained": summed_up(plain, len(sets), timers["plain"].seconds, shared),
    }
    results: dict[str, Any] = {"methods": {name: asdict(method) for name, method in methods.items()}}
    results["calibration"] = _calibrated(lm, teacher, calibration_texts, rows, seed, out)
    said("calibration")
    if timing:
        results |= _costs(teacher, lm)
        said("cost")
    results = {**_about(device, begun, seed, teacher_name, lm), "sets": len(sets), **results}
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    texts = {
        name: [
            {"set": o.number, "text": o.text, "satisfied": o.satisfied, "log_likelihood": o.log_likelihood}
            for o in each
        ]
        for name, each in (("guided", guided), ("masked", masked), ("plain", plain))
    }
    (out / "outputs.json").write_text(json.dumps(texts, indent=0) + "\n", encoding="utf-8")
    shown = Console() if Console().is_terminal else Console(width=140)
    shown.print(method_table(methods))
    for output in guided[: EXAMPLES * samples : samples]:
        shown.print(f"{', '.join(sets[output.number].items)}: {output.text}", markup=False, highlight=False)
    _show_numbers(shown, results)
    failures = [output for output in guided if not output.satisfied]
    if failures:
        console.print(f"{len(failures)} guided outputs do not satisfy their constraint: {failures[0]}", style="red")
        raise typer.Exit(1)


@app.command()
def cost(
    teacher_name: TeacherName,
    hmm: Distilled,
    out: Annotated[Path, typer.Option("--out", help="The JSON to write.")],
    device_name: DeviceName = DEVICE,
    states: Annotated[int | None, typer.Option(min=1, help="Of an untrained HMM, measured in its place.")] = None,
) -> None:
    """What the guide adds to a decoding step, and how long its look-ahead takes."""
    begun = time.perf_counter()
    device = torch.device(device_name)
    lm = vlhmm.load(hmm, device)
    teacher = load_teacher(teacher_name, device, lm.tokenizer)
    costs = _costs(teacher, lm, lm.hmm if states is None else HMM(_untrained(lm, states)))
    results = {**_about(device, begun, 0, teacher_name, lm), **costs}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    _show_numbers(Console(), results)


@app.command()
def plot(
    results: Annotated[Path, typer.Argument(help="A results.json.")],
    file: Annotated[Path, typer.Argument(help="The PNG to write.")],
) -> None:
    """The calibration of a run, drawn again."""
    values = json.loads(results.read_text(encoding="utf-8"))
    calibration_plot(values["calibration"], file, values["hmm"]["states"])


def _calibrated(lm: vlhmm.LanguageModel, teacher: Teacher, num: int, rows: int, seed: int, out: Path) -> dict[str, Any]:
    """On texts of new prompts, which the HMM was not distilled with."""
    generator = torch.Generator(teacher.device).manual_seed(seed + 1)
    made = teacher.prompt_ids(other_prompts(num, seed + 1_000_003))
    parts = [
        draw_texts(teacher, made[first : first + rows], max_tokens=CALIBRATION_TOKENS, generator=generator)
        for first in range(0, num, rows)
    ]
    drawn = type(parts[0])(
        *(torch.cat([getattr(part, name) for part in parts]) for name in ("tokens", "lengths", "log_probs"))
    )
    texts = [teacher.text_tokenizer.decode(row) for row in drawn.tokens.tolist()]
    words = frequent_words(texts, CALIBRATION_WORDS)
    calibration = calibrate(lm, teacher, drawn, words, PREFIXES)
    values = asdict(calibration)
    try:
        calibration_plot(values, out / "calibration.png", lm.hmm.num_states)
    except ValueError as error:
        Console(stderr=True).print(f"no picture: {error}", markup=False)
    return values


def _costs(teacher: Teacher, lm: vlhmm.LanguageModel, hmm: HMM | None = None) -> dict[str, Any]:
    hmm = hmm or lm.hmm
    large = hmm.tables if hmm.num_states == LARGE_STATES else _untrained(lm, LARGE_STATES)
    return {
        "overhead": asdict(measure_overhead(teacher, hmm, lm.tokenizer)),
        "lookahead": asdict(measure_lookahead(large)),
    }


def _about(device: torch.device, begun: float, seed: int, teacher_name: str, lm: vlhmm.LanguageModel) -> dict[str, Any]:
    """What was measured, where, and by which command."""
    command = shlex.join(["python", "-m", "experiments.control", *sys.argv[1:]])
    return {
        **about(device, command, time.perf_counter() - begun, seed),
        "teacher": teacher_name,
        "hmm": {"states": lm.hmm.num_states, "tokens": lm.hmm.num_words, "about": lm.about},
    }


def _show_numbers(console: Console, results: Mapping[str, Any]) -> None:
    for name in ("calibration", "overhead", "lookahead"):
        if name in results:
            numbers = {key: value for key, value in results[name].items() if isinstance(value, int | float)}
            console.print(name, json.dumps(numbers), markup=False, highlight=False)


def _untrained(lm: vlhmm.LanguageModel, num_states: int) -> Tables:
    """A dense HMM over the same tokens, for a measurement in which its numbers do not matter."""
    settings = replace(preset("distill").model, states_per_block=num_states)
    model = build_blocked(settings, one_block(lm.hmm.num_words), eos_id=lm.tokenizer.eos_id, reset="eos")
    with torch.no_grad():
        return model.to(lm.hmm.tables.device).tables().detach()


if __name__ == "__main__":
    app()
