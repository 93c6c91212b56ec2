"""From what a person asked for to the exact request that the guest gets. Pure.

The first launch is attempt 1 of the same path as every relaunch: both are a `start_request`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConfigError
from orchestrator.types.decision import Remedy, RemedyKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

DEFAULT_RUN = "dflash"
DEFAULT_CONFIG = "tiny"
DEFAULT_PYTHON = "python3"
DEFAULT_STOP_GRACE_S = 30.0
RELAUNCH_REASON = "relaunch"  # of a stop that the next attempt follows at once

_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What to run. `command` is empty for the bundled trainer; `config_toml` is a user's own config text."""

    run: str
    python: str = DEFAULT_PYTHON
    command: tuple[str, ...] = ()
    config: str | None = None
    config_toml: str | None = None
    overrides: tuple[tuple[str, str], ...] = ()
    inject: tuple[str, ...] = ()
    gpus: tuple[int, ...] | None = None
    checkpoint_dir: str | None = None
    env_names: tuple[str, ...] = ()
    mask: tuple[str, ...] = ()  # patterns of further names whose values are secrets; `!NAME` is none
    trainer_sha256: str | None = None
    trainer_dir: str | None = None
    stop_grace_s: float = DEFAULT_STOP_GRACE_S
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_command(self) -> bool:
        """A trainer of the user's own, of which less is known."""
        return bool(self.command)

    @property
    def title(self) -> str:
        """What is run, for people."""
        return " ".join(self.command) if self.command else f"config {self.config}"

    def with_changes(self, changes: Iterable[tuple[str, str]]) -> RunSpec:
        """Return the spec with config keys set; a later value of a key replaces an earlier one."""
        merged = dict(self.overrides)
        merged.update(changes)
        return replace(self, overrides=tuple(merged.items()))


def check_run_name(name: str) -> str:
    """Return the name if it can be a folder, a tmux session and an argument.

    Raises:
        ConfigError: It cannot.
    """
    if not _RUN_NAME.match(name) or ".." in name:
        raise ConfigError(
            f"--run: {name!r} cannot be a run's name",
            hint="use 1 to 64 letters, digits, '.', '_' or '-', a letter or digit first, without '..'",
        )
    return name


def parse_setting(text: str) -> tuple[str, str]:
    """Return (key, value) of `key=value`.

    Raises:
        ConfigError: There is no key or no equals sign.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set: {text!r} is not key=value", hint="for example --set optim.lr=3e-4")
    return key.strip(), value


def parse_env_file(text: str, where: str) -> dict[str, str]:
    """Return the variables of a NAME=VALUE file, without blank lines, # comments and quotes around a value.

    Raises:
        ConfigError: A line is something else; its value is not shown, it may be a secret.
    """
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip().removeprefix("export ").strip()
        if not stripped or stripped.startswith("#"):
            continue
        name, equals, value = stripped.partition("=")
        if not equals or not _ENV_NAME.match(name.strip()):
            raise ConfigError(f"{where}: line {number}: not NAME=VALUE")
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        values[name.strip()] = value
    return values


def run_dir(state_dir: str, run: str) -> str:
    """Return the run's folder in the container."""
    return f"{state_dir}/runs/{run}"


def trainer_argv(spec: RunSpec, attempt_dir: str) -> tuple[str, ...]:
    """Return the argv of the attempt's main process."""
    if spec.command:
        return spec.command
    config = f"{attempt_dir}/config.toml" if spec.config_toml is not None else spec.config or DEFAULT_CONFIG
    argv = [spec.python, "-m", "trainer", "--config", config]
    for key, value in spec.overrides:
        argv += ["--set", f"{key}={value}"]
    for injection in spec.inject:
        argv += ["--inject", injection]
    return tuple(argv)


def spec_document(spec: RunSpec, *, state_dir: str, attempt: int, created_at: str) -> dict[str, Any]:
    """Return run.json for one attempt; it names environment variables and never holds their values."""
    folder = run_dir(state_dir, spec.run)
    return {
        "schema": 1,
        "run": spec.run,
        "attempt": attempt,
        "kind": "command" if spec.is_command else "trainer",
        "argv": list(trainer_argv(spec, f"{folder}/attempts/{attempt}")),
        "cwd": spec.trainer_dir,
        "env_names": sorted(spec.env_names),
        "mask": list(spec.mask),
        "config": spec.config,
        "config_toml": spec.config_toml,
        "overrides": dict(spec.overrides),
        "checkpoint_dir": spec.checkpoint_dir or f"{folder}/checkpoints",
        "gpus": None if spec.gpus is None else list(spec.gpus),
        "trainer_sha256": spec.trainer_sha256,
        "stop_grace_s": spec.stop_grace_s,
        "created_at": created_at,
        "python": spec.python,
        "inject": list(spec.inject),
        "command": list(spec.command),
        "own_checkpoint_dir": spec.checkpoint_dir,
    }


def spec_from_document(document: Mapping[str, Any]) -> RunSpec:
    """Return the spec that `spec_document` was made from.

    Raises:
        ConfigError: The document is not one of ours.
    """
    try:
        gpus = document["gpus"]
        return RunSpec(
            run=document["run"],
            python=document.get("python") or DEFAULT_PYTHON,
            command=tuple(document.get("command") or ()),
            config=document["config"],
            config_toml=document["config_toml"],
            overrides=tuple((str(k), str(v)) for k, v in document["overrides"].items()),
            inject=tuple(document.get("inject") or ()),
            gpus=None if gpus is None else tuple(gpus),
            checkpoint_dir=document.get("own_checkpoint_dir"),
            env_names=tuple(document["env_names"]),
            mask=tuple(document.get("mask") or ()),
            trainer_sha256=document["trainer_sha256"],
            trainer_dir=document["cwd"],
            stop_grace_s=float(document["stop_grace_s"]),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(f"run.json of {document.get('run')!r}: {error!r} is missing or wrong") from error


def start_request(
    spec: RunSpec,
    *,
    state_dir: str,
    attempt: int,
    created_at: str,
    env: Mapping[str, str] | None,
    env_update: Mapping[str, str] | None = None,
    min_free_bytes: int = 64 << 20,
    unless_stopped: bool = False,
    finishes: str | None = None,
    remedies: Sequence[Remedy] = (),
) -> dict[str, Any]:
    """Return the request of the guest's `start`; `env` None keeps the values that the container has."""
    back = (r.step for r in remedies if r.kind is RemedyKind.PREVIOUS_CHECKPOINT)
    return {
        "state_dir": state_dir,
        "run": spec.run,
        "attempt": attempt,
        "spec": spec_document(spec, state_dir=state_dir, attempt=attempt, created_at=created_at),
        "env": None if env is None else dict(env),
        "env_update": dict(env_update or {}),
        "min_free_bytes": min_free_bytes,
        "unless_stopped": unless_stopped,
        "finishes": finishes,
        "set_aside_step": next(back, None),
        "skip_steps": [r.step for r in remedies if r.kind is RemedyKind.SKIP_BATCH],
    }


def origin(spec: Mapping[str, Any], attempt: int | None) -> dict[str, Any]:
    """Return who began the attempt, by run.json: `by`, `actor`, and `text` for people; empty if not known."""
    by, who = spec.get("by"), spec.get("actor")
    if attempt is None or spec.get("attempt") != attempt or by not in ("user", "watch"):
        return {}
    known = {key: str(who.get(key)) for key in ("user", "host", "pid")} if isinstance(who, dict) else {}
    at = f" {known['user']}@{known['host']} (pid {known['pid']})" if known else ""
    told = f"relaunched by the watch of{at}" if by == "watch" else f"begun by{at or ' a person'}"
    return {"by": by, "actor": known or None, "text": told.removesuffix(" of")}


def difference(old: RunSpec, new: RunSpec) -> tuple[tuple[str, str, str], ...]:
    """Return (key, old, new) of what a relaunch changes, for the record and the person."""
    rows: list[tuple[str, str, str]] = []
    before, after = dict(old.overrides), dict(new.overrides)
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            rows.append((key, before.get(key, "(config)"), after.get(key, "(config)")))
    fields: Sequence[str] = (
        "config",
        "python",
        "trainer_sha256",
        "checkpoint_dir",
        "gpus",
        "command",
        "inject",
    )
    for name in fields:
        one, two = getattr(old, name), getattr(new, name)
        if one != two:
            rows.append((name, str(one), str(two)))
    if old.config_toml != new.config_toml:
        rows.append(("config text", "changed", "changed"))
    return tuple(rows)
