"""Python, tmux, room, limits and clock: right, a fault, tight, not known."""

from __future__ import annotations

import pytest

from orchestrator.doctor import Status, inside
from orchestrator.doctor.readings import Container, Entered, Skew, Trouble
from tests.unit.doctor.readings import GIB, healthy, within

NO_SPACE = Trouble(kind="guest_refused", message="no space for the guest", hint="free some")
SMALL = Container(status="running", memory_bytes=8 * GIB)
LATE = Trouble(kind="command_timeout", message="no answer within 45 s")


def entered(python: str | None = "3.11.2", tmux: str | None = "3.3a") -> Entered:
    return Entered(seconds=0.1, python=python, tmux=tmux)


@pytest.mark.parametrize(
    ("check", "read", "status", "told"),
    [
        ("python3", healthy(), Status.OK, "3.11.2"),
        ("python3", healthy(entered=entered(python=None)), Status.BAD, "apt install python3"),
        (
            "python3",
            healthy(entered=entered(python=None), guest_python="/opt/py"),
            Status.BAD,
            "guest_python",
        ),
        ("python3", healthy(entered=entered(python="3.9.2")), Status.BAD, "3.10 or newer"),
        ("python3", healthy(entered=entered(python="pypy")), Status.UNKNOWN, "pypy"),
        ("python3", healthy(entered=None), Status.UNKNOWN, "not asked"),
        ("tmux", healthy(), Status.OK, "3.3a"),
        ("tmux", healthy(entered=entered(tmux="next-3.6")), Status.OK, "next-3.6"),
        ("tmux", healthy(entered=entered(tmux=None)), Status.BAD, "apt install tmux"),
        ("tmux", healthy(entered=entered(tmux="2.9a")), Status.BAD, "3.2a or newer"),
        ("tmux", healthy(entered=entered(tmux="master")), Status.UNKNOWN, "master"),
        ("guest", healthy(), Status.OK, "/var/lib/dflashctl"),
        ("guest", healthy(inside=None, inside_trouble=NO_SPACE), Status.BAD, "free some"),
        ("guest", healthy(inside=None, inside_trouble=LATE), Status.UNKNOWN, "no answer"),
        ("locale", healthy(), Status.OK, "C.UTF-8"),
        ("locale", within(locale=False), Status.WARN, "no C.UTF-8"),
        ("locale", within(locale=None), Status.UNKNOWN, "not told"),
        ("disk", healthy(), Status.OK, "500 GiB of 1000 GiB free"),
        ("disk", within(free_bytes=100 << 20), Status.BAD, "nothing is started under 1.0 GiB"),
        ("disk", within(free_bytes=5 * GIB), Status.WARN, "dflashctl prune"),
        ("disk", within(free_bytes=None), Status.UNKNOWN, "does not say"),
        ("shm", healthy(), Status.OK, "64 GiB"),
        ("shm", within(shm_free_bytes=64 << 20), Status.WARN, "remount,size=16G"),
        ("shm", within(shm_free_bytes=None, has_shm=False), Status.BAD, "no /dev/shm"),
        ("shm", within(shm_free_bytes=None), Status.UNKNOWN, "not told"),
        ("memory", healthy(), Status.OK, "limit 256 GiB"),
        ("memory", within(memory_limit_bytes=None), Status.OK, "no limit of its own"),
        ("memory", within(memory_limit_bytes=None, memory_told=False), Status.OK, "limit not told"),
        ("memory", healthy(container=SMALL), Status.WARN, "8.0 GiB free, limit 8.0 GiB"),
        ("memory", within(memory_free_bytes=GIB), Status.BAD, "pct set 200 --memory"),
        ("memory", within(memory_free_bytes=8 * GIB), Status.WARN, "8.0 GiB free"),
        ("memory", within(oom_kills=2), Status.WARN, "killed 2"),
        ("memory", within(memory_free_bytes=None), Status.UNKNOWN, "meminfo"),
        ("limits", healthy(), Status.OK, "processes no limit"),
        ("limits", within(open_files=1024), Status.WARN, "open files 1024"),
        ("limits", within(open_files=None, processes=None), Status.UNKNOWN, "not told"),
        ("clock", healthy(), Status.OK, "the same"),
        ("clock", healthy(skew=Skew(seconds=180, within_s=0.2)), Status.WARN, "180 s ahead of"),
        ("clock", healthy(skew=Skew(seconds=-180, within_s=0.2)), Status.WARN, "180 s behind"),
        ("clock", healthy(skew=Skew(seconds=5, within_s=4)), Status.OK, "within 5.0 s"),
        ("clock", healthy(skew=None), Status.UNKNOWN, "not measured"),
    ],
)
def test_each_need_beside_the_gpus(check, read, status, told):
    verdict = getattr(inside, check)(read)
    assert verdict.status is status
    assert told in f"{verdict.seen}; {verdict.fix}"
    assert verdict.fix is not None or status not in (Status.BAD, Status.WARN)
