"""The pane's program: starts the trainer, waits for it, and writes exit.json last.

It is not in the data path: the trainer's stdout and stderr are the log file, only followed into the pane. So
its death costs the run nothing. It takes no notice of SIGHUP, SIGTERM or a closed pane.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator import wire
from orchestrator.guest import clock, exits, files, lock, memory, paths, processes, signals
from orchestrator.guest.follow import Follower
from orchestrator.guest.masks import RunMasks

TURN_S = 0.2
TERM_LIMIT_S = 5.0
KILL_LIMIT_S = 10.0
EXIT_RETRY_S = 600.0
NOT_INHERITED = ("TMUX", "TMUX_PANE", "TERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION")


@dataclass
class Supervisor:
    """One attempt from its lock to its exit.json."""

    run: paths.RunDir
    number: int
    trainer_pid: int = 0
    status: int | None = None
    leftover: list[int] = field(default_factory=list)

    @property
    def dir(self) -> Path:
        """The attempt's directory."""
        return self.run.attempt(self.number)

    def supervise(self) -> int:
        """Do the whole job; returns the pane's exit code."""
        held = lock.take(self.run.lock)
        if held is None:
            return self._end(
                exits.fields(self.number, error="the run's lock is held: another attempt is alive")
            )
        if (self.dir / exits.NAME).exists() or self.run.attempts()[-1:] != [self.number]:
            _say(f"attempt {self.number} is no longer wanted")
            return 1
        if (self.dir / "attempt.json").exists():
            _say(f"attempt {self.number} was started before")
            return 1
        signals.become_subreaper()
        wake = signals.wake_on_signals(self.run, self.number)
        started, kills = clock.ticking(), memory.oom_kills()
        try:
            process = self._spawn(held)
        except (OSError, ValueError) as error:
            return self._end(exits.fields(self.number, error=f"the trainer could not be started: {error}"))
        self.trainer_pid = process.pid
        self._write_attempt()
        follower = Follower(self.dir / "log", 1, RunMasks(self.run).current)
        self._wait(wake, follower)
        duration_s = clock.ticking() - started
        self._kill_leftovers(wake)
        process.returncode = 0  # reaped by us; Popen must not wait for a stranger of the same id
        code, number = _decode(self.status)
        fields = exits.fields(
            self.number,
            code=code,
            signal=number,
            duration_s=duration_s,
            leftover=self.leftover,
            oom_kills=memory.since(kills),
        )
        follower.turn(is_final=True)
        return self._end(fields)

    def _spawn(self, held: int) -> subprocess.Popen[bytes]:
        spec = files.read_json(self.dir / "run.json") or {}
        environment = self._environment(spec)
        extra = os.dup(held)
        log = os.open(self.dir / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            return subprocess.Popen(
                spec["argv"], cwd=spec.get("cwd") or self.run.path, env=environment, stdin=held,
                stdout=log, stderr=log, pass_fds=[extra], start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(log)
            os.close(extra)

    def _environment(self, spec: dict[str, Any]) -> dict[str, str]:
        base = {k: v for k, v in os.environ.items() if k not in NOT_INHERITED}
        if "HOME" not in base:
            base["HOME"] = os.path.expanduser("~")  # noqa: PTH111  Path.home() raises for a user without an entry
        checkpoints = spec.get("checkpoint_dir") or str(self.run.path / "checkpoints")
        ours = {
            "DFLASHCTL_RUN": self.run.name,
            processes.MARK: str(self.run.path),
            "DFLASHCTL_ATTEMPT": str(self.number),
            "DFLASHCTL_ATTEMPT_DIR": str(self.dir),
            "DFLASHCTL_CHECKPOINT_DIR": checkpoints,
            "PYTHONUNBUFFERED": "1",
        }
        if spec.get("gpus") is not None:
            ours["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in spec["gpus"])
            # As NVML counts, by which a start waits for its GPUs; CUDA's own order is the fastest first.
            ours["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        theirs = files.read_json(self.run.path / "env") or {}
        # The mark is ours whatever the env file says: without it the run's processes could not be found.
        return {**base, **ours, **theirs, processes.MARK: ours[processes.MARK]}

    def _write_attempt(self) -> None:
        row, own = processes.read_stat(self.trainer_pid), processes.read_stat(os.getpid())
        content = {
            "schema": wire.SCHEMA,
            "attempt": self.number,
            "supervisor_pid": os.getpid(),
            "supervisor_start_ticks": own.start_ticks if own else None,
            "trainer_pid": self.trainer_pid,
            "trainer_start_ticks": row.start_ticks if row else None,
            "boot_id": processes.boot_id(),
            "pid1_start_ticks": processes.pid1_start_ticks(),
            "started_at": clock.now(),
        }
        try:
            files.write_json(self.dir / "attempt.json", content)
        except OSError as error:  # the trainer runs; it stays supervised, if only by its descent
            _say(f"attempt.json: {error}")

    def _wait(self, wake: int, follower: Follower) -> None:
        while self.status is None:
            self._turn(wake, TURN_S)
            follower.turn()

    def _turn(self, wake: int, limit_s: float) -> None:
        """Sleep until a signal or the limit, then reap: orphans of the run come to us too."""
        if select.select([wake], [], [], limit_s)[0]:
            os.read(wake, 512)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.trainer_pid:
                self.status = status

    def _kill_leftovers(self, wake: int) -> None:
        """Nothing of the attempt outlives its main process: torchrun's workers, say, hold the GPUs."""
        begin = clock.ticking()
        told: set[int] = set()
        own = processes.read_stat(os.getpid())
        known = processes.Roots(supervisor=own.pid if own else None)
        while clock.ticking() - begin < TERM_LIMIT_S + KILL_LIMIT_S:
            left = processes.members(processes.scan(), self.run.path, known).pids
            if not left:
                break
            if clock.ticking() - begin < TERM_LIMIT_S:
                new = [pid for pid in left if pid not in told]
                processes.send_signal(new, signal.SIGTERM)
                processes.send_signal(new, signal.SIGCONT)
            else:
                processes.send_signal(left, signal.SIGKILL)
            told.update(left)
            self._turn(wake, 0.05)
        self.leftover = sorted(told)

    def _end(self, content: dict[str, Any]) -> int:
        """Write exit.json, also if the disk is full for a while; then one line for who looks at the pane."""
        deadline = clock.ticking() + EXIT_RETRY_S
        while True:
            try:
                exits.write(self.dir, content)
                break
            except OSError as error:
                if clock.ticking() > deadline:
                    _say(f"exit.json: {error}")
                    return 1
                clock.wait(1.0)
        what = content["error"] or (
            f"signal {content['signal']}" if content["signal"] else f"exit code {content['code']}"
        )
        _say(f"attempt {self.number} ended: {what}")
        return 0


def _say(text: str) -> None:
    """Tell who looks at the pane; a stopped or closed terminal must not keep us, and with us the lock."""
    try:
        os.set_blocking(1, False)
        os.write(1, f"\n[dflashctl] {text}\n".encode())
    except OSError:
        return


def _decode(status: int | None) -> tuple[int | None, int | None]:
    if status is None:
        return None, None
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def main(arguments: list[str]) -> int:
    """`supervise RUN_DIR ATTEMPT`."""
    path = Path(arguments[0])
    return Supervisor(paths.RunDir(path.parent.parent, path.name), int(arguments[1])).supervise()
