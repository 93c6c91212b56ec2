"""One schedule a seed: how the trainer dies, what breaks around it and when. The same seed draws the same."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

# What the trainer does to itself, by how often it is drawn.
DEATHS = {
    "fx": 4, "oom": 2, "traceback": 3, "code": 2, "KILL": 3, "SEGV": 1, "ABRT": 1, "flood": 1, "hang": 1,
}  # fmt: skip
# What is done to it and around it; the second number is the longest that it lasts, in seconds.
FAULTS = {
    "ssh_cut": (4, 0.0),
    "sshd_restart": (2, 0.0),
    "sshd_down": (2, 4.0),
    "sshd_mute": (1, 6.0),
    "watch_kill": (5, 2.0),
    "watch_kill_at_line": (3, 1.0),
    "watch_pause": (1, 4.0),
    "second_watch": (2, 0.0),
    "other_watch": (2, 0.0),
    "ct_stop": (2, 4.0),
    "ct_freeze": (2, 9.0),
    "disk_full": (2, 5.0),
    "clock_near": (1, 0.0),
    "clock_ct": (1, 0.0),
    "tmux_kill": (2, 0.0),
    "guest_delete": (2, 0.0),
    "guest_kill": (2, 0.0),
    "trainer_kill": (3, 0.0),
    "supervisor_kill": (1, 0.0),
}
JUMPS_S = (-86_400, -3_600, -45, 45, 3_600, 86_400)
USER_STOP_SHARE = 0.08
LATEST_S = 9.0


@dataclass(frozen=True)
class Death:
    """Attempt `attempt` dies in this way once it has finished `step` steps."""

    attempt: int
    step: int
    how: str


@dataclass(frozen=True)
class Fault:
    """At `at_s` after the launch this happens; `lasts_s` and `value` mean what the kind says."""

    at_s: float
    kind: str
    lasts_s: float = 0.0
    value: int = 0


@dataclass(frozen=True)
class Schedule:
    """Everything that is drawn for a seed."""

    seed: int
    steps: int
    step_s: float
    checkpoint_every: int
    deaths: tuple[Death, ...]
    faults: tuple[Fault, ...]

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data, for a report."""
        return asdict(self)

    def has(self, kind: str) -> bool:
        """Whether a fault of this kind is in it."""
        return any(fault.kind == kind for fault in self.faults)


def draw(seed: int) -> Schedule:
    """Return the schedule of a seed."""
    dice = random.Random(seed)
    steps = dice.randint(30, 60)
    deaths = [Death(number, dice.randint(3, steps), how) for number, how in enumerate(_hows(dice), 1)]
    kinds = dice.choices(list(FAULTS), [weight for weight, _ in FAULTS.values()], k=dice.randint(2, 6))
    faults = [_fault(dice, kind) for kind in kinds]
    if dice.random() < USER_STOP_SHARE:
        faults.append(Fault(round(dice.uniform(1.0, LATEST_S), 2), "user_stop"))
    return Schedule(
        seed=seed,
        steps=steps,
        step_s=round(dice.uniform(0.06, 0.14), 3),
        checkpoint_every=dice.randint(2, 6),
        deaths=tuple(deaths),
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
    )


def _hows(dice: random.Random) -> list[str]:
    hows = dice.choices(list(DEATHS), list(DEATHS.values()), k=dice.randint(0, 3))
    # A hang waits for its limit, which is most of a schedule's time: one at most.
    seen_hang = False
    for place, how in enumerate(hows):
        if how == "hang" and (seen_hang or dice.random() < 0.4):
            hows[place] = "fx"
        seen_hang = seen_hang or hows[place] == "hang"
    return hows


def _fault(dice: random.Random, kind: str) -> Fault:
    at_s, longest_s = round(dice.uniform(0.2, LATEST_S), 2), FAULTS[kind][1]
    lasts_s = round(dice.uniform(longest_s / 8, longest_s), 2)
    if kind in ("clock_near", "clock_ct"):
        return Fault(at_s, kind, value=dice.choice(JUMPS_S))
    if kind == "watch_kill_at_line":
        return Fault(at_s, kind, lasts_s, value=dice.randint(1, 120))
    return Fault(at_s, kind, lasts_s)
