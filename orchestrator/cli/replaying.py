"""replay: the reader, the classifier and the playbook over what was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import options
from orchestrator.cli.context import SETTINGS, load_playbook, print_json
from orchestrator.cli.playing import Show, print_changes, show_recording
from orchestrator.errors import ConfigError
from orchestrator.terminal import one_line, plain

if TYPE_CHECKING:
    from orchestrator.playbook import Playbook
    from orchestrator.replay.judge import Judgement
    from orchestrator.replay.labels import Label
    from orchestrator.replay.score import Answer


def register(app: typer.Typer) -> None:
    """Add this file's verb."""
    app.command(rich_help_panel="Look")(replay)


def replay(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[DIR|FILE]...", help="Recorded runs, bare logs, or folders of labelled ones."
        ),
    ] = None,
    log: Annotated[
        Path | None, typer.Option("--log", help="One bare log or a pane's text; - is standard input.")
    ] = None,
    exit_status: Annotated[
        int | None,
        typer.Option(
            "--exit-status", help="What the shell said of its end, 137 for SIGKILL; left out: not known."
        ),
    ] = None,
    width: Annotated[
        int | None,
        typer.Option("--width", help="The pane's columns; wrapped lines are joined.", min=20, max=10_000),
    ] = None,
    labels: Annotated[
        Path | None, typer.Option("--labels", help="Labels of a folder's logs; default its index.jsonl.")
    ] = None,
    pace: Annotated[
        float | None,
        typer.Option("--pace", help="As it happened, so many times as fast; default all at once.", min=0.001),
    ] = None,
    playbook: options.Playbook = None,
    as_json: options.Json = False,
) -> None:
    """Say what recorded runs and logs show, with the line that proves it, and what the playbook would do.

    Nothing is connected to and nothing is done. Of a recorded run: every
    diagnosis and decision in order, with its time, through the reader, the
    classifier and the playbook of a watch. Between them, as `pattern`, what its
    steps and attempts prove together: slower steps, slow ranks, the same step
    again, a crash loop, a start from step 0; it informs only. How a log grows
    and that a tmux session is gone no recording proves, so it is not told.
    A bare log says less than a run: whether its program still lives is known
    only from an exit status. Of labelled logs: precision and recall by class,
    what was taken for what, and what would be relaunched though a person should
    be called.

    Examples:

        dflashctl replay --log pane.txt --width 120 --json
        dflashctl replay --log train.log --exit-status 137
        dflashctl replay b32-recording.tar.gz --pace 60
        dflashctl replay labelled-logs/ --json
    """
    if (log is None) == (not paths):
        raise ConfigError("give recorded paths, or --log with one file", hint="see `dflashctl replay --help`")
    rules = load_playbook(playbook)
    if log is not None:
        _replay_log(log, exit_status, width, rules, as_json=as_json)
        return
    for option, value in (("--exit-status", exit_status), ("--width", width)):
        if value is not None:
            raise ConfigError(f"{option} {value} belongs to --log", hint="labels give it for each log")
    show = Show(rules=rules, as_json=as_json, pace=pace)
    bodies = [_replay_path(path, labels, show) for path in paths or ()]
    if as_json:
        print_json({"replays": bodies})


def _replay_log(
    log: Path, exit_status: int | None, width: int | None, rules: Playbook, *, as_json: bool
) -> None:
    from orchestrator.replay.files import read_chunks
    from orchestrator.replay.judge import judge_chunks

    found = judge_chunks(read_chunks(log), exit_status=exit_status, width=width, playbook=rules)
    if as_json:
        print_json(found.to_json())
    else:
        _print(found)


def _replay_path(path: Path, labels: Path | None, show: Show) -> dict[str, Any]:
    """Replay one path, print it unless the answer is to be JSON, and return it as plain data."""
    from orchestrator.replay.archive import is_archive, unpacked
    from orchestrator.replay.files import read_chunks
    from orchestrator.replay.judge import judge_chunks
    from orchestrator.replay.labels import INDEX, read_labels

    if labels is not None and not path.is_dir():
        what = f"--labels {one_line(str(labels))} belongs to a folder of logs"
        raise ConfigError(f"{one_line(str(path))}: {what}", hint="give the folder that the labels are of")
    index = labels or (path / INDEX)
    if is_archive(path):
        with unpacked(path) as folder:
            return show_recording(path, folder, show)
    if path.is_dir() and (labels is not None or index.is_file()):
        return _replay_labelled(path, read_labels(index), show.rules, as_json=show.as_json)
    if path.is_dir():
        return show_recording(path, path, show)
    found = judge_chunks(read_chunks(path), exit_status=None, width=None, playbook=show.rules)
    if not show.as_json:
        SETTINGS.out.print(f"{one_line(str(path))}:", markup=False)
        _print(found)
    return {"path": str(path), **found.to_json()}


def _replay_labelled(path: Path, labels: list[Label], rules: Playbook, *, as_json: bool) -> dict[str, Any]:
    from orchestrator.cli.scoretable import print_score
    from orchestrator.replay.score import score

    answers = [_answer(path, label, rules) for label in labels]
    counts = score(answers, rules)
    if not as_json:
        print_score(SETTINGS.out, counts)
    told = [{"id": a.label.id, "file": a.label.file, **a.found.to_json()} for a in answers]
    return {"path": str(path), "score": counts, "answers": told}


def _answer(folder: Path, label: Label, rules: Playbook) -> Answer:
    from orchestrator.replay.files import read_chunks
    from orchestrator.replay.judge import judge_chunks
    from orchestrator.replay.score import Answer

    chunks = read_chunks(folder / label.file)
    found = judge_chunks(chunks, exit_status=label.exit_status, width=label.width, playbook=rules)
    return Answer(label=label, found=found)


def _print(found: Judgement) -> None:
    out = SETTINGS.out
    body = found.to_json()
    sure = f"confidence {body['confidence']:.0%}"
    out.print(f"{body['state']}: {body['class']} ({body['title']}), {sure}", markup=False)
    out.print(f"  {plain(body['summary'])}", markup=False)
    shown = found.evidence
    if shown is not None:
        where = f" byte {shown.offset}" if shown.offset is not None else ""
        rank = f", rank {shown.rank}" if shown.rank is not None else ""
        out.print(
            f"  {shown.role.value} ({shown.source}{where}{rank}): {plain(body['evidence']['line'])}",
            markup=False,
        )
    if body["also"]:
        out.print(f"  it may also be: {', '.join(body['also'])}", markup=False)
    decision = body["decision"]
    out.print(f"  playbook: {decision['kind']}. {decision['reason']}", markup=False)
    print_changes(decision["changes"])
