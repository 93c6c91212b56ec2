"""From what is typed at `launch` to what is to run: a configuration, an environment, a list of GPUs."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.secrets import check_secrets
from orchestrator.errors import ConfigError
from orchestrator.launch import (
    DEFAULT_CONFIG,
    DEFAULT_PYTHON,
    RunSpec,
    check_run_name,
    parse_env_file,
    parse_setting,
)
from orchestrator.userfile import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.inventory import Target

CONFIG_HINT = "give the path of a TOML file, or the name of a bundled configuration, such as `tiny`"


def read_config(config: str) -> tuple[str, str | None]:
    """Return (name, text): the text is None for a bundled configuration.

    Raises:
        ConfigError: The file cannot be read.
    """
    path = Path(config).expanduser()
    if path.suffix != ".toml" and not path.exists():
        return config, None
    try:
        text = read_text(path, waits=True)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {config}: cannot be read: {_why(error)}", hint=CONFIG_HINT) from error
    _check_toml(config, text)
    return config, text


def _check_toml(config: str, text: str) -> None:
    """Find a slip before anything is reached; Python 3.10 has no reader, there the trainer finds it."""
    if importlib.util.find_spec("tomllib") is None:
        return
    tomllib = importlib.import_module("tomllib")
    try:
        tomllib.loads(text)
    except ValueError as error:
        raise ConfigError(f"--config {config}: not TOML: {error}") from error


def _why(error: OSError | UnicodeDecodeError) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return f"byte {error.start} is not UTF-8"


def read_env(names: list[str] | None, files: list[Path]) -> dict[str, str]:
    """Return the trainer's variables: those of the files, then those of our own that are named.

    Raises:
        ConfigError: A file cannot be read, a variable is not set here, or a value was typed.
    """
    values: dict[str, str] = {}
    for path in files:
        try:
            values.update(parse_env_file(read_text(path.expanduser(), waits=True), str(path)))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"env file {path}: cannot be read: {_why(error)}",
                hint="--env-file, or the inventory's env_file, is a file of NAME=VALUE lines on this machine",
            ) from error
    for item in names or []:
        if "=" in item:
            raise ConfigError(
                f"--env {item.partition('=')[0]}=...: a value in a command line is seen by every user here",
                hint="export it and give --env NAME, or put it into a file and give --env-file",
            )
        if item not in os.environ:
            raise ConfigError(f"--env {item}: not set here", hint=f"export {item}=... first")
        values[item] = os.environ[item]
    return values


def make_spec(
    run: str,
    target: Target,
    config: str | None,
    settings: list[str],
    inject: list[str],
    command: list[str],
    env: Mapping[str, str],
    mask: list[str],
) -> RunSpec:
    """Return what is to run where.

    Raises:
        ConfigError: Options contradict each other, one is wrong, or a secret would be seen by everybody.
    """
    if command and (config or settings or inject):
        raise ConfigError("-- COMMAND: --config, --set and --inject are for the bundled trainer only")
    name, text = (None, None) if command else read_config(config or target.config or DEFAULT_CONFIG)
    spec = RunSpec(
        run=check_run_name(run),
        python=target.python or DEFAULT_PYTHON,
        command=tuple(command),
        config=name,
        config_toml=text,
        overrides=tuple(parse_setting(item) for item in settings),
        inject=tuple(inject),
        gpus=target.gpus,
        checkpoint_dir=target.checkpoint_dir,
        env_names=tuple(sorted(env)),
        mask=(*target.mask, *mask),
    )
    check_secrets(spec, env)
    return spec


def parse_gpus(text: str | None) -> tuple[int, ...] | None:
    """Return the indices of a list such as `0,1`; None if none was given.

    Raises:
        ConfigError: It is no such list.
    """
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ConfigError(
            f"--gpus {text!r}: not a list of GPU indices", hint="for example --gpus 0,1"
        ) from error
