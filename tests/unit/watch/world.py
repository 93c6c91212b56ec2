"""A run as it truly is, and the messages that the guest would send of it; cut, frozen and restarted at will.

`World.call` is the guest's side of an act: it fences as the contract says, and notes every request that
should never have been made.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.clock import timestamp
from orchestrator.errors import GuestRefused, HostUnreachable
from tests.builders import attempt_message, heartbeat_json
from tests.unit.watch.bench import NO_DRIVER, PONG, SPEC, exit_json, stacks_answer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.unit.watch.bench import FakeClock

HANG_S = 60.0


@dataclass
class Attempt:
    number: int
    by: str
    boot: int
    step: int = 0
    moved_at: float = 0.0
    is_alive: bool = True
    is_supervised: bool = True
    exit: dict[str, Any] | None = None
    result: dict[str, Any] | None = None


@dataclass
class World:
    clock: FakeClock
    attempts: list[Attempt] = field(default_factory=list)
    stop: dict[str, Any] | None = None
    boot: int = 1
    is_frozen: bool = False
    is_stopped: bool = False
    is_connected: bool = False
    connected_at: float = 0.0
    answers: bool = True  # whether the answer of an act comes back
    wire: deque[dict[str, Any]] = field(default_factory=deque)
    wrongs: list[str] = field(default_factory=list)
    starts: int = 0
    stops: int = 0

    @property
    def newest(self) -> Attempt:
        return self.attempts[-1]

    @property
    def lives(self) -> bool:
        return any(attempt.is_alive for attempt in self.attempts)

    @property
    def speaks(self) -> bool:
        return self.is_connected and not self.is_frozen and not self.is_stopped

    def say(self, *messages: dict[str, Any]) -> None:
        if self.speaks:
            self.wire.extend(messages)

    # -- what the guest would send

    def hello(self) -> dict[str, Any]:
        now = self.clock.at.timestamp()
        return {"type": "hello", "now": now, "boot_id": f"boot {self.boot}", "pid1_start_ticks": 5}

    def run_line(self) -> dict[str, Any]:
        one = self.newest
        info = {
            "boot_id": f"boot {one.boot}",
            "pid1_start_ticks": 5,
            "started_at": timestamp(self.clock.at),
        }
        alive = {
            "lock_held": one.is_alive, "pids": [100 + one.number] if one.is_alive else [],
            "supervisor": one.is_alive and one.is_supervised, "session": True,
        }  # fmt: skip
        return {
            "type": "run", "run": "dflash", "attempts": [a.number for a in self.attempts],
            "attempt": one.number, "attempt_info": info,
            "spec": {**SPEC, "attempt": one.number, "by": one.by},
            "alive": alive, "stop": self.stop, "checkpoint_step": one.step // 10 * 10, "checkpoint_bytes": 1,
        }  # fmt: skip

    def beat(self) -> dict[str, Any]:
        one = self.newest
        body = heartbeat_json(step=one.step, checkpoint_step=one.step // 10 * 10, resumed_from_step=0)
        return attempt_message("heartbeat", body, one.number)

    def everything(self) -> list[dict[str, Any]]:
        """A stream's first words: that nothing lives comes after its cause, as the guest orders it."""
        one, line = self.newest, self.run_line()
        messages = [self.hello(), {**line, "alive": line["alive"] if one.is_alive else None}, self.beat()]
        messages += [attempt_message("result", one.result, one.number)] if one.result else []
        messages += [attempt_message("exit", one.exit, one.number)] if one.exit else []
        return [*messages, NO_DRIVER, line]

    # -- what happens

    def step(self) -> None:
        if self.newest.is_alive and not self.is_frozen:
            self.newest.step += 1
            self.newest.moved_at = self.clock.monotonic()
            self.say(self.beat())

    def end(self, code: int | None, *, signal: int | None = None, writes_exit: bool = True) -> None:
        one = self.newest
        if not one.is_alive or self.is_frozen:
            return
        one.is_alive = False
        if code == 0:
            one.result = {"schema": 1, "step": one.step}
            self.say(attempt_message("result", one.result, one.number))
        if writes_exit and one.is_supervised:
            one.exit = {**exit_json(code, signal), "attempt": one.number}
            self.say(attempt_message("exit", one.exit, one.number))
        self.say(self.run_line())

    def lose_supervisor(self) -> None:
        self.newest.is_supervised = False
        self.say(self.run_line())

    def user_stops(self) -> None:
        if not self.is_stopped and not self.is_frozen:
            self.stop = {"by": "user", "attempt": self.newest.number, "reason": "enough"}
            self.say(self.run_line())
            self.end(None, signal=15)

    def user_launches(self) -> None:
        if not self.lives and not self.is_stopped and not self.is_frozen:
            self.begin("user")

    def begin(self, by: str) -> None:
        step = self.newest.step // 10 * 10 if self.attempts else 0
        number = len(self.attempts) + 1
        self.attempts.append(Attempt(number, by, self.boot, step, self.clock.monotonic()))
        # Its first words may come before it is named, and before anybody looked whether it lives.
        self.say(self.beat(), {**self.run_line(), "alive": None}, self.run_line())

    def cut(self) -> bool:
        was, self.is_connected = self.is_connected, False
        self.wire.clear()
        return was

    def connect(self) -> bool:
        if self.is_connected or self.is_frozen or self.is_stopped:
            return False
        self.is_connected, self.connected_at = True, self.clock.monotonic()
        self.wire.extend(self.everything())
        return True

    def stop_container(self) -> None:
        self.is_stopped, self.is_frozen = True, False
        self.cut()
        self.newest.is_alive = False

    def start_container(self) -> None:
        if self.is_stopped:
            self.is_stopped, self.boot = False, self.boot + 1

    def ping(self) -> None:
        self.say(PONG)

    # -- the guest's side of an act

    def call(self, verb: str, request: Mapping[str, Any], *, timeout_s: float) -> list[dict[str, Any]]:
        if self.is_stopped or self.is_frozen:
            raise HostUnreachable("no answer")
        if not self.is_connected:
            self.wrongs.append(f"asked to {verb} while the stream was known to be lost")
        if verb == "stacks":
            return self._stacks(request)
        answer = self._start(request) if verb == "start" else self._stop(request)
        if not self.answers:
            raise HostUnreachable("connection lost in mid-call")
        return [answer]

    def _stacks(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        if not self.newest.is_alive or request["attempt"] != self.newest.number:
            raise GuestRefused("nothing lives", reason="not_found")
        if not self.answers:
            raise HostUnreachable("connection lost in mid-call")
        return stacks_answer(request["attempt"])

    def _start(self, request: Mapping[str, Any]) -> dict[str, Any]:
        number, one = request["attempt"], self.newest
        if number == one.number + 1:
            self._judge_start(request, one)
        if self.lives:
            raise GuestRefused("alive", reason="run_alive")
        if number <= one.number:
            raise GuestRefused("exists", reason="attempt_exists")
        if number > one.number + 1:
            self.wrongs.append(f"asked for attempt {number} after {one.number}")
            raise GuestRefused("gap", reason="attempt_gap")
        if self.stop and self.stop["by"] == "user" and self.stop["attempt"] == one.number:
            raise GuestRefused("stopped", reason="stopped_by_user")
        self.starts += 1
        self.begin("watch")
        return {"type": "started", "attempt": number, "trainer_pid": 1, "session": "s"}

    def _judge_start(self, request: Mapping[str, Any], one: Attempt) -> None:
        """The number is that of the next attempt, so nothing fences it but the truth."""
        if one.is_alive:
            self.wrongs.append(f"asked to start beside the living attempt {one.number}")
        if one.result is not None:
            self.wrongs.append(f"asked to start the finished run after attempt {one.number}")
        if not request["unless_stopped"]:
            self.wrongs.append("asked to start whatever its user says")

    def _stop(self, request: Mapping[str, Any]) -> dict[str, Any]:
        one, still_s = self.newest, self.clock.monotonic() - self.newest.moved_at
        if request["only_attempt"] == one.number:
            # That it moves again may be on its way; that it hung was watched before.
            is_excused = self.wire and self.clock.monotonic() - self.connected_at > HANG_S
            if one.is_alive and still_s <= HANG_S and not is_excused:
                self.wrongs.append(f"asked to stop attempt {one.number}, which moved {still_s:.0f} s ago")
            if not (self.stop and self.stop["by"] == "user" and self.stop["attempt"] == one.number):
                self.stop = {"by": "watch", "attempt": one.number, "reason": "hang"}
            self.stops += 1
            self.end(None, signal=15)
        return {"type": "stopped", "already": False, "terminated": [], "killed": []}
