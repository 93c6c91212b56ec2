"""demo: the whole story on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.context import SETTINGS
from orchestrator.cli.reaching import push_progress, site_at
from orchestrator.cli.watching import watch_rows
from orchestrator.errors import Exit, OrchestratorError


def register(app: typer.Typer) -> None:
    """Add this file's verb."""
    app.command(rich_help_panel="Act")(demo)


def demo(
    short: Annotated[bool, typer.Option("--short", help="Fewer steps: about a minute.")] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where its state, drafter and picture go.")] = Path(
        "demo-out"
    ),
    log: Annotated[bool, typer.Option("--log/--no-log", help="Show the trainer's own lines.")] = True,
) -> None:
    """Train a drafter here, let it crash with the FX-trace error, and be brought back. Needs torch.

    Examples:

        dflashctl demo
        dflashctl demo --short --out /tmp/demo
    """
    from orchestrator import demo as story
    from orchestrator.playbook import shipped
    from orchestrator.record import Record

    config = "fast" if short else "tiny"
    say = SETTINGS.out.print
    target = story.prepare(out)
    out.mkdir(parents=True, exist_ok=True)
    site = site_at(target)
    story.clear(out, site, SETTINGS.clock)
    injection = story.INJECTION[config]
    say(
        f"launching run {story.RUN!r} (config {config}) here; it is told to fail: --inject {injection}",
        markup=False,
    )
    with Record.open(out / "record.sqlite3") as record:
        try:
            with push_progress("installing the trainer") as progress:
                row = story.launch(site, record, SETTINGS.clock, config, str(shipped("demo")), progress)
            code = watch_rows(record, [row], show_log=log, telling=False)
            if code is not Exit.OK:
                raise OrchestratorError(
                    f"the run did not finish (watch ended with {code.value})", hint="see `dflashctl explain`"
                )
            result = story.conclude(site, record, SETTINGS.clock, row, out)
            story.leave(site, record, row)
        finally:
            site.close()
    raise typer.Exit(story.story(result, lambda text: say(text, markup=False)))
