"""What a launch came to, in words or as an object."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
                "nothing_left": launched.nothing_left,
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
    if launched.nothing_left is not None:
        out.print(f"  {launched.nothing_left}", markup=False)
    if not in_line:
        out.print(f"`dflashctl watch {row.name}` follows it", markup=False)


def _remedy(left: Sequence[str], row: RunRow) -> str:
    if COMMAND in left or row.spec.get("command"):  # a configuration is of the bundled trainer only
        return "another --run starts it"
    return f"`dflashctl relaunch {row.name}` with the same applies it"


def ignored(spec: RunSpec, known: Mapping[str, Any], *, given: Collection[str]) -> tuple[str, ...]:
    """Return what is asked for but does not run; `known` is its run.json.

    `given` names the options of which the spec may hold a default: --config, --python, --gpus.
    """
    gpus = list(spec.gpus or ())
    named = set(known.get("env_names") or ())
    common = (
        *([f"--gpus {','.join(map(str, gpus))}"] if "--gpus" in given and gpus != known.get("gpus") else []),
        *(f"--env {name}" for name in spec.env_names if name not in named),
    )
    if spec.is_command:
        return (*(() if list(spec.command) == known.get("command") else (COMMAND,)), *common)
    is_other = (spec.config, spec.config_toml) != (known.get("config"), known.get("config_toml"))
    overrides, injected = known.get("overrides") or {}, known.get("inject") or ()
    return (
        *([f"--config {spec.config}"] if "--config" in given and is_other else []),
        *(f"--set {key}={value}" for key, value in spec.overrides if overrides.get(key) != value),
        *(f"--inject {each}" for each in spec.inject if each not in injected),
        *([f"--python {spec.python}"] if "--python" in given and spec.python != known.get("python") else []),
        *common,
    )
