"""What is made sure of before an attempt is stopped or started: its GPUs, its trainer, its configuration."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orchestrator.connection import trainer_archive, trainer_folder
from orchestrator.errors import CommandFailed, ConfigError, EnvironmentIncomplete
from orchestrator.observe.parse import gpus
from orchestrator.types.seen import Present

if TYPE_CHECKING:
    from orchestrator.connection.guest import Progress
    from orchestrator.launch import RunSpec
    from orchestrator.site import Site

ASK_TIMEOUT_S = 30.0
PUSH_TIMEOUT_S = 1800.0
CHECK_TIMEOUT_S = 120.0
_CONFIG_INVALID = 78  # the trainer's exit code
_NO_PROGRAM = (126, 127)


def check_gpus(site: Site, wanted: tuple[int, ...] | None) -> None:
    """Refuse a GPU that is not there; where the GPUs cannot be read, nothing is said of them.

    Raises:
        ConfigError: One is not there.
        BlindError: The container cannot be reached.
    """
    if not wanted:
        return
    # `look` tells nothing of a run that never was, and this is the verb that needs none.
    request = {"session": "-", "socket": "dflashctl", "lines": 1}
    answer = site.client().call("capture", request, timeout_s=ASK_TIMEOUT_S)
    reading = next((gpus(message) for message in answer if message["type"] == "gpu"), None)
    if not isinstance(reading, Present):
        return
    there = [gpu.index for gpu in reading.value]
    missing = [index for index in wanted if index not in there]
    if there and missing:
        raise ConfigError(
            f"{site.target_key}: gpus {','.join(map(str, wanted))}: "
            f"no GPU {', '.join(map(str, missing))} there",
            hint=f"it has {', '.join(map(str, there))}; name some of these, by --gpus or the inventory",
        )


def prepare(site: Site, spec: RunSpec, progress: Progress | None = None) -> RunSpec:
    """Push the bundled trainer if it changed, and let it check its configuration.

    Raises:
        ConfigError: The trainer refused its configuration.
        EnvironmentIncomplete: Its Python lacks packages.
        CommandFailed: It cannot run there.
    """
    if spec.is_command:
        return spec
    place = send_trainer(site, progress)
    ready = replace(spec, trainer_sha256=trainer_archive().sha256, trainer_dir=place)
    stdin = (ready.config_toml or "").encode()
    result = site.shell().run(check_argv(ready), stdin=stdin, timeout_s=CHECK_TIMEOUT_S)
    if result.exit_code != 0:
        raise refusal(site.target_key, ready, result.exit_code, result.stderr)
    return ready


def check_here(spec: RunSpec, where: str) -> None:
    """Let the bundled trainer check its configuration with our own Python, where nothing may be reached.

    What only the container knows, such as its packages, is left to a launch, and so is a check that cannot be
    made here or comes to no end.

    Raises:
        ConfigError: The trainer refused its configuration.
    """
    is_theirs = spec.config_toml is None and "/" in (spec.config or "")  # a file of the container's
    if spec.is_command or is_theirs:
        return
    argv = [sys.executable, *_check_words(spec)]
    try:
        done = subprocess.run(
            argv, input=(spec.config_toml or "").encode(), cwd=trainer_folder(), capture_output=True,
            timeout=CHECK_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (subprocess.TimeoutExpired, OSError):
        return
    if done.returncode == _CONFIG_INVALID:
        error = refusal(where, spec, done.returncode, done.stderr)
        if isinstance(error, ConfigError):
            raise error


def provisioned_python(site: Site) -> str | None:
    """Return the Python of the environment that `provision` made there; None if there is none.

    Raises:
        BlindError: The container cannot be reached.
    """
    python = site.hello.get("venv_python")
    return python if isinstance(python, str) and python else None


def send_trainer(site: Site, progress: Progress | None = None) -> str:
    """Put the bundled trainer there unless it is; return its folder.

    Raises:
        GuestRefused: No space there.
        BlindError: The container cannot be reached.
    """
    archive = trainer_archive()
    request: dict[str, Any] = {"state_dir": site.state_dir, "sha256": archive.sha256, "kind": "trainer"}
    client = site.client()
    (answer,) = client.call("install", {**request, "check": True, "size": 0}, timeout_s=ASK_TIMEOUT_S)
    if not answer["already"]:
        (answer,) = client.call(
            "install",
            {**request, "size": len(archive.data)},
            payload=archive.data,
            timeout_s=PUSH_TIMEOUT_S,
            progress=progress,
        )
    return str(answer["path"])


def check_argv(spec: RunSpec) -> list[str]:
    """Return what lets the trainer check its configuration; the user's own file goes in on standard input."""
    return ["env", "-C", str(spec.trainer_dir), "LC_ALL=C.UTF-8", spec.python, *_check_words(spec)]


def _check_words(spec: RunSpec) -> list[str]:
    argv = ["-m", "trainer", "--check-config"]
    argv += ["--config", "-" if spec.config_toml is not None else spec.config or ""]
    for key, value in spec.overrides:
        argv += ["--set", f"{key}={value}"]
    for injection in spec.inject:
        argv += ["--inject", injection]
    return argv


def refusal(place: str, spec: RunSpec, exit_code: int | None, stderr: bytes) -> ConfigError | CommandFailed:
    """Return the error for a check that did not end with 0."""
    lines = stderr.decode("utf-8", "replace").strip().splitlines() or ["no word on standard error"]
    if exit_code in _NO_PROGRAM:
        return CommandFailed(
            f"{place}: --python {spec.python}: {lines[-1]}",
            hint="name the Python that has torch there, with --python PATH; `dflashctl provision` makes one",
        )
    if spec.config is not None:
        # The user's own file went in on standard input.
        lines[-1] = lines[-1].replace("standard input:", f"{spec.config}:")
    if exit_code == _CONFIG_INVALID:
        # The trainer's own line names its class of error, which is nothing to a person.
        why = lines[-1].removeprefix("trainer: ConfigInvalid: ")
        if "not installed; run" in why:
            lacking, _, pip = why.partition("; run ")
            return EnvironmentIncomplete(
                f"{place}: the trainer's environment is incomplete: {lacking}",
                hint=f"`dflashctl provision` makes one that has them, and is then taken; or run {pip}",
            )
        return ConfigError(f"{place}: the trainer refused its configuration: {why}")
    return CommandFailed(
        f"{place}: {spec.python} cannot run the trainer: {lines[-1]}",
        hint="`dflashctl provision` makes an environment there that can, and is then taken; "
        "or name another Python with --python",
    )
