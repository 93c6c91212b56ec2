"""eval: how many drafted tokens the target accepts, measured where the drafter lies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import options
from orchestrator.cli.context import SETTINGS, find_run, opened_record, print_json
from orchestrator.cli.reaching import site_of
from orchestrator.errors import ConfigError, NotFound, RunAlive

if TYPE_CHECKING:
    from orchestrator.evaluation import Evaluation
    from orchestrator.record import RunRow
    from orchestrator.site import Site

BAR_CHARS = 40


def register(app: typer.Typer) -> None:
    """Add this file's verb."""
    app.command("eval", rich_help_panel="Take")(eval_)


def eval_(
    run: options.RunName = None,
    prompts: Annotated[
        int | None, typer.Option("--prompts", help="Held-out prompts to decode; default the run's.", min=1)
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="0 is greedy decoding; default the trainer's.")
    ] = None,
    timeout: Annotated[str, typer.Option("--timeout", help="It is ended after so long: 30m, 2h.")] = "1h",
    beside: Annotated[
        bool, typer.Option("--beside", help="Also while the run trains, whose GPU memory it then shares.")
    ] = False,
    host: options.Host = None,
    ct: options.Ct = None,
    as_json: options.Json = False,
) -> None:
    """Measure a run's drafter by real speculative decoding, in its container, with the run's own trainer.

    The acceptance length is the mean number of accepted draft tokens a
    verification.

    Examples:

        dflashctl eval
        dflashctl eval b32 --prompts 32 --temperature 0.7 --json
    """
    if temperature is not None and not (math.isfinite(temperature) and temperature >= 0):
        raise ConfigError(f"--temperature {temperature:g}: must be 0 or more")
    limit_s = max(1, math.ceil(options.seconds(timeout)))
    with opened_record() as record:
        row = find_run(record, run, host, ct)
    site = site_of(row)
    try:
        with SETTINGS.err.status(f"evaluating {row.name}, up to {timeout}"):
            found = _evaluate(site, row, prompts, temperature, limit_s, beside=beside)
    finally:
        site.close()
    if as_json:
        print_json(
            {
                "run": row.name,
                "target": row.target_key,
                "acceptance_length": found.acceptance_length,
                "per_position": list(found.per_position),
                "evaluation": found.body,
            }
        )
    else:
        _print(row, found)


def _evaluate(
    site: Site, row: RunRow, prompts: int | None, temperature: float | None, limit_s: int, *, beside: bool
) -> Evaluation:
    from orchestrator import evaluation
    from orchestrator.launch import run_dir, spec_from_document
    from orchestrator.observe import is_alive, look

    tracker = look(site, row.name, SETTINGS.clock)
    if tracker.spec is None:
        raise NotFound(f"{row.target_key}: run {row.name!r} was never started there")
    if is_alive(tracker.snapshot(SETTINGS.clock.now())) and not beside:
        raise RunAlive(
            f"{row.target_key}: run {row.name!r} is training; an evaluation would share its GPUs",
            hint="wait for its end, or give --beside if there is memory for both",
        )
    folder = run_dir(site.state_dir, row.name)
    words = evaluation.argv(
        spec_from_document(tracker.spec),
        folder,
        tracker.view.number if tracker.view else 1,
        prompts=prompts,
        temperature=temperature,
        limit_s=limit_s,
    )
    return evaluation.evaluate(site.shell(), words, limit_s=limit_s)


def _print(row: RunRow, found: Evaluation) -> None:
    out = SETTINGS.out
    how = " (teacher-forced on held-out documents)" if "teacher_forced" in found.body else ""
    length = found.acceptance_length
    out.print(f"{row.name} at {row.target_key}: acceptance length {length:.3f}{how}", markup=False)
    for line in decoded_lines(found.body):
        out.print(f"  {line}", markup=False)
    if found.per_position:
        out.print("  position  accepted", markup=False)
    for index, share in enumerate(found.per_position, 1):
        bar = "#" * round(BAR_CHARS * share)
        out.print(f"  {index:>8}  {share:>7.1%}  {bar}", markup=False)


def decoded_lines(body: Mapping[str, Any]) -> list[str]:
    """Return what real decoding gave, where the trainer tells it in figures."""
    from orchestrator.evaluation import is_number

    lines = []
    for key, name, rest in (
        ("decoded", "greedy decoding", ("prompts", "new_tokens", "lookup", "speedup")),
        ("sampled", "sampling", ("temperature",)),
    ):
        told = body.get(key)
        if isinstance(told, dict) and is_number(told.get("drafter")):
            shown = "".join(
                f", {word.replace('_', ' ')} {told[word]:.4g}" for word in rest if is_number(told.get(word))
            )
            lines.append(f"{name}: acceptance length {told['drafter']:.3f}{shown}")
    return lines
