"""What a launch came to, in words or as an object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.cli.context import SETTINGS, print_json

if TYPE_CHECKING:
    from orchestrator.launch import RunSpec
    from orchestrator.operate import Launched
    from orchestrator.record import RunRow

COMMAND = "-- COMMAND"


def report(
    launched: Launched, spec: RunSpec, *, as_json: bool, in_line: bool = False, left: Sequence[str] = ()
) -> None:
    """Say what a launch came to; `in_line` if a watch follows, `left` is what was ignored."""
    row = launched.row
    if as_json:
        print_json(
            {
                "run": row.name,
                "target": row.target_key,
                "attempt": launched.attempt,
                "already": launched.already,
                "resumes_at": launched.resumes_at,
                "argv": list(launched.argv),
                "ignored": list(left),
                "changes": [{"key": k, "old": old, "new": new} for k, old, new in launched.changes],
            },
            in_line=in_line,
        )
        return
    out = SETTINGS.out
    if launched.already:
        hint = {
            "alive": f"nothing was started; `dflashctl watch {row.name}` follows it",
            "finished": "nothing was started; `dflashctl relaunch` trains on, another --run starts afresh",
        }[launched.already]
        out.print(
            f"{row.name} at {row.target_key}: attempt {launched.attempt} is {launched.already}; {hint}",
            markup=False,
        )
        if left:
            out.print(f"  ignored: {', '.join(left)}; {_remedy(left, row)}", markup=False)
        return
    resume = f", resuming from step {launched.resumes_at}" if launched.resumes_at is not None else ""
    out.print(
        f"{row.name} at {row.target_key}: attempt {launched.attempt} started ({spec.title}){resume}",
        markup=False,
    )
    for key, old, new in launched.changes:
        out.print(f"  {key}: {old} -> {new}", markup=False)
    if not in_line:
        out.print(f"`dflashctl watch {row.name}` follows it", markup=False)


def _remedy(left: Sequence[str], row: RunRow) -> str:
    if COMMAND in left or row.spec.get("command"):  # a configuration is of the bundled trainer only
        return "another --run starts it"
    return f"`dflashctl relaunch {row.name}` with the same applies it"


def ignored(spec: RunSpec, known: Mapping[str, Any], *, has_config: bool) -> tuple[str, ...]:
    """Return what is asked for but does not run; `known` is its run.json, `has_config` a --config given."""
    if spec.is_command:
        return () if list(spec.command) == known.get("command") else (COMMAND,)
    is_other = (spec.config, spec.config_toml) != (known.get("config"), known.get("config_toml"))
    overrides = known.get("overrides") or {}
    settings = (f"--set {key}={value}" for key, value in spec.overrides if overrides.get(key) != value)
    return (*([f"--config {spec.config}"] if has_config and is_other else []), *settings)
