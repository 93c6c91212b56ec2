"""One schedule: launch, break things at their times, then calm, and wait for the end."""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.integration.chaos.arena import TRAINER, set_clock
from tests.integration.chaos.played import PLAYBOOK, Played, Told
from tests.lab.host import LabError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.chaos.arena import Place
    from tests.integration.chaos.nursery import Child, Nursery
    from tests.integration.chaos.schedule import Fault, Schedule

CALM_LIMIT_S = 480.0
LAUNCH_LIMIT_S = 240.0


class Play:
    """The playing of one schedule."""

    def __init__(self, schedule: Schedule, place: Place, nursery: Nursery, home: Path) -> None:
        self.schedule = schedule
        self.place = place
        self.played = Played(schedule, place, home, f"c{schedule.seed}")
        self._nursery = nursery
        self._undo: list[tuple[float, Callable[[], object]]] = []
        self._count = 0
        for which in ("a", "b"):
            (home / which / "inventory").mkdir(parents=True)
            (home / which / "playbook.yaml").write_text(PLAYBOOK)
        set_clock(home / "clock", 0)
        set_clock(place.container.disk / "clock", 0)

    # -- the program

    def call(self, which: str, *words: str) -> Child:
        """Start the program with the record of that machine."""
        home = self.played.home / which
        self._count += 1
        env = {
            "HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "XDG_CONFIG_HOME": str(home / "config"),
            "DFLASHCTL_INVENTORY": str(home / "inventory"), "NO_COLOR": "1", "COLUMNS": "200",
        }  # fmt: skip
        out = home / f"{self._count}-{words[0]}.jsonl"
        return self._nursery.start(words, env=env, cwd=home, out=out, clock=self.played.home / "clock")

    def launch(self) -> None:
        """Start attempt 1."""
        schedule = self.schedule
        command = [
            "python3", TRAINER, "--steps", str(schedule.steps), "--step-s", str(schedule.step_s),
            "--checkpoint-every", str(schedule.checkpoint_every), "--die",
            *(f"{death.attempt}:{death.step}:{death.how}" for death in schedule.deaths),
        ]  # fmt: skip
        book = str(self.played.home / "a" / "playbook.yaml")
        words = ["launch", *self.place.where(), "--run", self.played.run, "--playbook", book, "--", *command]
        child = self.call("a", *words)
        code = child.wait(LAUNCH_LIMIT_S)
        assert code == 0, f"launch ended with {code}: {child.err.read_text()[-800:]}"

    def watch(self, which: str = "a") -> Told:
        """Start a watch."""
        words = ["watch", self.played.run, "--json"]
        if which == "b":
            words += [*self.place.where(), "--playbook", str(self.played.home / "b" / "playbook.yaml")]
        told = Told(self.call(which, *words), which)
        self.played.watches.append(told)
        return told

    def living(self, which: str = "a") -> list[Told]:
        """The watches that run."""
        return [told for told in self.played.watches if told.record == which and told.child.code is None]

    def first(self) -> Told | None:
        """The oldest watch of the launcher's machine that runs."""
        return next(iter(self.living()), None)

    # -- playing

    def play(self) -> None:
        """Everything, up to the end of the run or of our patience."""
        self.launch()
        self.watch()
        begin = time.monotonic()
        due = [(begin + fault.at_s, fault) for fault in self.schedule.faults]
        while due or self._undo or any(told.again_at for told in self.played.watches):
            self.tick()
            while due and due[0][0] <= time.monotonic():
                self.do(due.pop(0)[1])
            time.sleep(0.02)
        self.calm()

    def tick(self) -> None:
        """What is due of what was begun before."""
        now = time.monotonic()
        for item in [item for item in self._undo if item[0] <= now]:
            self._undo.remove(item)
            with suppress(LabError):
                item[1]()
        for told in self.played.watches:
            at = told.kill_at_line
            if at is not None and (told.child.code is not None or told.num_lines >= at):
                told.kill_at_line = None
                self.kill(told)
            if told.again_at is not None and told.again_at <= now:
                told.again_at = None
                self.watch(told.record)

    def do(self, fault: Fault) -> None:
        """Begin a fault."""
        at = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.played.done.append((at, fault.kind))
        with suppress(LabError):
            getattr(self, f"_do_{fault.kind}")(fault)

    def later(self, fault: Fault, undo: Callable[[], object]) -> None:
        """End it when its time has passed."""
        self._undo.append((time.monotonic() + fault.lasts_s, undo))

    def kill(self, told: Told) -> None:
        """SIGKILL a watch, as a power cut would."""
        told.is_killed = told.child.code is None or told.is_killed
        told.child.signal(signal.SIGKILL)

    def calm(self) -> None:
        """Heal everything and wait until the run is at its end and every watch knows."""
        deadline = time.monotonic() + CALM_LIMIT_S
        self.place.heal()
        is_heard = False
        while not is_heard and time.monotonic() < deadline:
            self.tick()
            living = self.living()
            if not living and not self._is_told():
                self.watch()
            is_heard = not living and self._is_told() and not self.living("b")
            time.sleep(0.05)
        if not is_heard:
            load = f"the load average is {os.getloadavg()[0]:.0f}"
            self.played.problems.append(
                f"not at its end {CALM_LIMIT_S:.0f} s after every fault was undone; {load}"
            )

    def _is_told(self) -> bool:
        """Whether a watch of the launcher's record saw the end; one that left for a person ends it too."""
        codes = [told.child.code for told in self.played.watches if told.record == "a"]
        return any(code is not None and code >= 0 for code in codes) and codes[-1] is not None

    def clean_up(self) -> None:
        """End what is left, and remove the run."""
        for told in self.played.watches:
            told.child.signal(signal.SIGKILL)
        self.place.heal()
        if self.place.processes(TRAINER) or self.place.processes("supervise"):
            self.place.container.stop()
            self.place.container.start()
        shutil.rmtree(self.place.runs / self.played.run, ignore_errors=True)

    # -- faults

    def _do_ssh_cut(self, _: Fault) -> None:
        self.place.sshd.kill_connections()

    def _do_sshd_restart(self, _: Fault) -> None:
        if self.place.sshd.pid() is not None:
            self.place.unmute()
            self.place.sshd.restart()

    def _do_sshd_down(self, fault: Fault) -> None:
        self.place.unmute()
        self.place.sshd.stop()
        self.later(fault, self.place.sshd.start)

    def _do_sshd_mute(self, fault: Fault) -> None:
        self.place.mute()
        self.later(fault, self.place.unmute)

    def _do_watch_kill(self, fault: Fault) -> None:
        told = self.first()
        if told is not None:
            self.kill(told)
            told.again_at = time.monotonic() + fault.lasts_s

    def _do_watch_kill_at_line(self, fault: Fault) -> None:
        told = self.first()
        if told is not None:
            told.kill_at_line = told.num_lines + fault.value
            self.later(fault, lambda: self._kill_after_all(told))

    def _kill_after_all(self, told: Told) -> None:
        told.kill_at_line = None
        if told.child.code is None:
            self.kill(told)
        told.again_at = time.monotonic()

    def _do_watch_pause(self, fault: Fault) -> None:
        told = self.first()
        if told is not None:
            told.child.signal(signal.SIGSTOP)
            self.later(fault, lambda: told.child.signal(signal.SIGCONT))

    def _do_second_watch(self, _: Fault) -> None:
        self.watch()

    def _do_other_watch(self, _: Fault) -> None:
        self.watch("b")

    def _do_ct_stop(self, fault: Fault) -> None:
        self.place.container.stop()
        self.later(fault, self.place.container.start)

    def _do_ct_freeze(self, fault: Fault) -> None:
        if self.place.container.state() == "RUNNING":
            self.place.container.freeze()
            self.later(fault, self._thaw)

    def _thaw(self) -> None:
        if self.place.container.state() == "FROZEN":
            self.place.container.unfreeze()

    def _do_disk_full(self, fault: Fault) -> None:
        self.place.fill_disk()
        self.later(fault, self.place.empty_disk)

    def _do_clock_near(self, fault: Fault) -> None:
        set_clock(self.played.home / "clock", fault.value)

    def _do_clock_ct(self, fault: Fault) -> None:
        set_clock(self.place.container.disk / "clock", fault.value)

    def _do_tmux_kill(self, _: Fault) -> None:
        if self.place.container.state() == "RUNNING":
            self.place.kill_tmux()

    def _do_guest_delete(self, _: Fault) -> None:
        for path in (self.place.container.disk / "state" / "guest").glob("*"):
            path.unlink(missing_ok=True)

    def _do_guest_kill(self, _: Fault) -> None:
        self.place.kill(".pyz", "watch")

    def _do_trainer_kill(self, _: Fault) -> None:
        self.place.kill(TRAINER, "--steps")

    def _do_supervisor_kill(self, _: Fault) -> None:
        self.place.kill(".pyz", "supervise")

    def _do_user_stop(self, _: Fault) -> None:
        child = self.call("a", "stop", self.played.run, "--grace", "2s")
        code = child.wait(60)
        if code == 0:
            self.played.num_at_stop = len(self.played.attempts)
        else:
            self.played.done.pop()  # it did not come through; the run goes on
            self.played.done.append((time.clock_gettime(time.CLOCK_BOOTTIME), "user_stop_failed"))
