"""What the tests of the command line share: the program at the lab, its one line, and what it left."""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli import ROOT, Cli

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.lab.lab import Lab

STANDIN = "/opt/standin.py"
RUNS = "var/lib/dflashctl/runs"


def options(lab: Lab, *, known_hosts: Path | None = None) -> tuple[str, ...]:
    """Return the words that reach the lab's host."""
    return (
        "--host", lab.host, "--port", str(lab.port),
        "--identity", str(lab.identity), "--known-hosts", str(known_hosts or lab.known_hosts),
    )  # fmt: skip


@pytest.fixture
def cli(lab: Lab, tmp_path: Path) -> Iterator[Cli]:
    """The program with a home of its own, at container 200."""
    made = Cli(tmp_path, (*options(lab), "--ct", "200"))
    made.root = lab.rootfs
    yield made
    made.end_watches()
    for path in (lab.rootfs / RUNS).glob("*"):
        made.run("stop", path.name, "--grace", "0s", code=None)
    shutil.rmtree(lab.rootfs / RUNS, ignore_errors=True)


@pytest.fixture
def away(tmp_path: Path) -> Cli:
    """The program without any lab: its place is a port of this machine that refuses."""
    return Cli(tmp_path, ("--host", "127.0.0.1", "--port", "9", "--ct", "200"))


def is_connected(pid: int, port: int) -> bool:
    """Whether the process has a connection to that port, as the kernel tells."""
    sockets = set()
    with suppress(OSError):  # it ended, or is just closing one
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                sockets.add(path.readlink().name)
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    there = {row[9] for row in rows if row[3] == "01" and int(row[2].split(":")[1], 16) == port}
    return any(f"socket:[{inode}]" in sockets for inode in there)


def launch_standin(cli: Cli, run: str, *words: str) -> None:
    """Launch the stand-in trainer in the container."""
    shutil.copy(ROOT / "tests" / "standin.py", cli.root / STANDIN.lstrip("/"))
    cli.launch("--run", run, "--", "python3", STANDIN, *words)


def told(done: subprocess.CompletedProcess[str], *words: str) -> str:
    """Return the one line of an error; it holds all of `words`."""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("dflashctl: ")
    for word in words:
        assert word in lines[0], lines[0]
    assert done.stdout == ""
    return lines[0]


def assert_nothing_left(cli: Cli, lab: Lab | None = None) -> None:
    """No entry in the record; with a lab, no run directory and no process of a run either."""
    assert cli.json("ps", "--offline")["runs"] == []
    if lab is None:
        return
    assert list((lab.rootfs / RUNS).glob("*")) == []
    listed = lab.exec(["ps", "-eo", "args"]).stdout.splitlines()
    # tmux's server keeps the words that it was first started with.
    alive = [
        line for line in listed if re.search(r"supervise|standin|-m trainer", line) and "tmux" not in line
    ]
    assert alive == []
