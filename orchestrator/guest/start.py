"""`start`: one attempt, by exclusive mkdir under the run's lock; the supervisor does the rest.

The number is the fencing token. Everything up to the new directory happens with the lock held; then the lock
passes to the supervisor, which starts nothing if in between somebody wrote exit.json or made a newer attempt.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING, Any

from orchestrator import wire
from orchestrator.guest import asked, clock, exits, files, itself, liveness, lock, paths, repairs, session
from orchestrator.guest.masks import keep_former
from orchestrator.guest.refusal import TMUX_HINT, Refusal, from_os_error

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.guest.link import Link
    from orchestrator.guest.paths import RunDir

MIN_FREE_BYTES = 64 << 20
STARTED_LIMIT_S = 15.0
UNDER_WAY_LIMIT_S = 5.0
NEVER_STARTED = "the start was cut before the trainer was started"


def run(verb: str, request: wire.Message, link: Link) -> None:
    """Answer `started`, or refuse."""
    del verb
    place = paths.run_dir(request, must_exist=False)
    number, spec, env = _checked(place, request)
    if shutil.which("tmux") is None:
        raise Refusal("no_tmux", "there is no tmux in the container", TMUX_HINT)
    _check_space(place.path, request)
    directory, repaired = _claim(place, number, request, spec, env)
    try:
        name = session.start(
            place.name, place.path, itself.command("supervise", str(place.path), str(number))
        )
    except OSError as error:
        raise _failed(directory, number, from_os_error(error, "start")) from error
    except Refusal as refusal:
        raise _failed(directory, number, refusal) from refusal
    info = _await_start(place, number)
    fields = {
        "attempt": number,
        "attempt_dir": str(directory),
        "supervisor_pid": info.get("supervisor_pid"),
        "trainer_pid": info.get("trainer_pid"),
        "session": name,
        **repaired,
    }
    link.send("started", fields)


def _checked(place: RunDir, request: wire.Message) -> tuple[int, dict[str, Any], dict[str, str]]:
    number, spec = request.get("attempt"), request.get("spec")
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise Refusal("bad_request", f"attempt: {number!r} is no attempt number; they count from 1")
    if not isinstance(spec, dict) or not _is_texts(spec.get("argv")) or not spec["argv"]:
        raise Refusal("bad_request", "spec.argv: must be a list of texts with at least a program in it")
    for key in ("cwd", "checkpoint_dir"):
        if spec.get(key) is not None:
            spec[key] = str(paths.expand(spec[key], f"spec.{key}"))
    if spec.get("config_toml") is not None and not asked.is_text(spec["config_toml"]):
        raise Refusal("bad_request", "spec.config_toml: must be a text")
    # null keeps the values that are there: a watch that relaunches never knew them.
    kept = request.get("env") is None
    env = files.read_json(place.path / "env") or {} if kept else request["env"]
    update = _checked_env(request.get("env_update") or {}, "env_update")
    return number, spec, {**_checked_env(env, "env"), **update}


def _checked_env(env: object, key: str) -> dict[str, str]:
    if not isinstance(env, dict) or not _is_texts(list(env)) or not _is_texts(list(env.values())):
        raise Refusal("bad_request", f"{key}: must map names to texts")
    if any("=" in name or not name for name in env):
        raise Refusal("bad_request", f"{key}: a name is empty or holds '='")
    return env


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(asked.is_text(item) for item in value)


def _claim(
    place: RunDir, number: int, request: wire.Message, spec: dict[str, Any], env: dict[str, str]
) -> tuple[Path, dict[str, Any]]:
    """Make the attempt's directory and its files, if nothing of the run lives and it is the next one.

    What the request repairs is repaired first, so that of several that ask for it one alone does it.
    """
    place.attempts_dir.mkdir(parents=True, exist_ok=True)
    held = lock.take(place.lock)
    try:
        attempts = place.attempts()
        alive = liveness.look(place, attempts)
        if held is None or alive.pids or liveness.is_by_hand(place, attempts):
            raise _run_alive(place, attempts, alive)
        newest = attempts[-1] if attempts else 0
        if number <= newest:
            os.close(held)  # a start that is under way needs it
            held = None
            raise _attempt_exists(place, number, newest)
        if number > newest + 1:
            message = f'run "{place.name}": attempt {number} after {newest}: one is missing between'
            raise Refusal("attempt_gap", message, f"start attempt {newest + 1}", newest=newest)
        _check_stop(place, newest, request)
        _fence(place, newest)
        repaired = repairs.carry_out(place, request, spec)
        return _make(place, number, spec, env), repaired
    finally:
        if held is not None:
            _tidy(place)
            os.close(held)


def _make(place: RunDir, number: int, spec: dict[str, Any], env: dict[str, str]) -> Path:
    """Make the directory; without its files (a full disk) it is taken back, and the number is not used up."""
    directory = place.attempt(number)
    directory.mkdir()
    try:
        _write_files(place, number, spec, env)
    except OSError:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    files.sync_directory(place.attempts_dir)
    return directory


def _tidy(place: RunDir) -> None:
    """A refused first start leaves no empty run behind."""
    if place.attempts():
        return
    for name in ("env", "run.json", "lock"):
        (place.path / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        place.attempts_dir.rmdir()
        place.path.rmdir()


def _run_alive(place: RunDir, attempts: list[int], alive: liveness.Liveness) -> Refusal:
    pids = list(alive.pids)
    newest = attempts[-1] if attempts else None
    who = f"pids {', '.join(map(str, pids[:10]))}" if pids else "its lock is held"
    message = f'run "{place.name}" is alive: attempt {newest}, {who}'
    return Refusal("run_alive", message, "watch it, or stop it first", attempt=newest, pids=pids)


def _attempt_exists(place: RunDir, number: int, newest: int) -> Refusal:
    directory = place.attempt(number)
    what = f"the newest is {newest}" if number < newest else _what_became_of(place, directory, number)
    message = f'run "{place.name}": attempt {number} exists; {what}'
    return Refusal("attempt_exists", message, f"the next attempt is {newest + 1}", newest=newest)


def _what_became_of(place: RunDir, directory: Path, number: int) -> str:
    """Say what became of an attempt asked for again; one whose start was cut gets its exit.json."""
    deadline = clock.ticking() + UNDER_WAY_LIMIT_S
    while clock.ticking() < deadline:
        ended = files.read_json(directory / exits.NAME)
        if ended:
            error = ended.get("error")
            return (
                str(error) if error else f"it ended (code {ended.get('code')}, signal {ended.get('signal')})"
            )
        if lock.is_held(place.lock):
            return "it is being started or alive"
        if (directory / "attempt.json").exists():
            return "it was started"
        clock.wait(0.1)
    held = lock.take(place.lock)
    if held is None:
        return "it is being started or alive"
    try:
        _fence(place, number)
    finally:
        os.close(held)
    return NEVER_STARTED


def _fence(place: RunDir, newest: int) -> None:
    """With the lock held: an attempt that was never started must not start any more."""
    directory = place.attempt(newest)
    if newest and not (directory / "attempt.json").exists():
        exits.write(directory, exits.fields(newest, error=NEVER_STARTED))


def _check_stop(place: RunDir, newest: int, request: wire.Message) -> None:
    """With `unless_stopped`: refuse if the person stopped the newest attempt, however lately.

    `finishes` names the stop, by its time, that this start is meant to follow: any other one forbids it.
    """
    stop = files.read_json(place.stop) if request.get("unless_stopped") else None
    finishes = request.get("finishes")
    if finishes is not None and (not stop or (stop.get("at"), stop.get("attempt")) != (finishes, newest)):
        message = f'run "{place.name}": the stop at {finishes} is not the last word any more'
        raise Refusal("stopped_by_user", message, "relaunch it by hand if it is wanted", newest=newest)
    if finishes is None and stop and stop.get("by") == "user" and stop.get("attempt") == newest:
        message = f'run "{place.name}": attempt {newest} was stopped by its user at {stop.get("at")}'
        raise Refusal("stopped_by_user", message, "relaunch it by hand if it is wanted", newest=newest)


def _check_space(path: Path, request: wire.Message) -> None:
    needed = request.get("min_free_bytes") or MIN_FREE_BYTES
    free = paths.free_bytes(path)
    if isinstance(needed, int) and free is not None and free < needed:
        message = f"{path}: {free} bytes are free, {needed} are needed"
        raise Refusal("no_space", message, "free space in the container (dflashctl prune)", free_bytes=free)


def _write_files(place: RunDir, number: int, spec: dict[str, Any], env: dict[str, str]) -> None:
    directory = place.attempt(number)
    exits.reserve(directory)
    keep_former(place, env)
    files.write_json(place.path / "env", dict(env), mode=0o600)
    spec = {**spec, "schema": wire.SCHEMA, "run": place.name, "attempt": number}
    spec["env_names"] = sorted(env)
    spec.setdefault("created_at", clock.now())
    spec["checkpoint_dir"] = spec.get("checkpoint_dir") or str(place.path / "checkpoints")
    if spec.get("config_toml") is not None:
        files.write_text(directory / "config.toml", spec["config_toml"])
    files.write_json(directory / "run.json", spec)
    files.write_json(place.path / "run.json", spec)


def _failed(directory: Path, number: int, refusal: Refusal) -> Refusal:
    """The attempt is used up; its exit.json says why."""
    try:
        exits.write(directory, exits.fields(number, error=refusal.message))
    except OSError:
        refusal.details["exit_written"] = False
    return refusal


def _await_start(place: RunDir, number: int) -> dict[str, Any]:
    directory = place.attempt(number)
    deadline = clock.ticking() + STARTED_LIMIT_S
    while clock.ticking() < deadline:
        info = files.read_json(directory / "attempt.json")
        if info:
            return info
        ended = files.read_json(directory / exits.NAME)
        if ended:
            raise Refusal("start_failed", f"attempt {number}: {ended.get('error')}", attempt=number)
        clock.wait(0.02)
    held = lock.take(place.lock)
    if held is None:  # its supervisor, or what it started, is there, and only the disk is slow
        pids = liveness.look(place, [number]).pids
        return {"trainer_pid": pids[0] if pids else None}
    try:
        session.kill(place.name, place.path)
        message = f"attempt {number}: its supervisor did not start the trainer within {STARTED_LIMIT_S:.0f} s"
        raise _failed(directory, number, Refusal("start_failed", message, attempt=number))
    finally:
        os.close(held)
