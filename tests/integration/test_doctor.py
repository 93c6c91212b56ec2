"""doctor at the lab: sshd, pct, LXC, a stub NVML. One fault is one alarm; a frozen place holds nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.errors import Exit
from tests.cli import LONG_S
from tests.integration.clilab import cli, options

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli import Cli
    from tests.lab.lab import Lab

pytestmark = pytest.mark.integration
__all__ = ["cli"]

WAY = ("name", "tcp", "host key", "login", "root", "pct", "exists", "running", "frozen", "lock", "enter")
INSIDE = (
    "first byte",
    "python3",
    "tmux",
    "guest",
    "locale",
    "clock",
    "gpu nodes",
    "driver",
    "gpus",
    "holders",
)
NODES = "cd /dev && for name in nvidia0 nvidiactl nvidia-uvm; do ln -s /dev/null $name; done"


def look(cli: Cli, lab: Lab, code: Exit, known_hosts: Path | None = None) -> dict[str, dict[str, Any]]:
    """Ask the doctor; its answer has that code, and comes before anybody gives up waiting."""
    words = ("doctor", *options(lab, known_hosts=known_hosts), "--ct", "200")
    body = cli.json(*words, code=int(code))
    assert body["exit_code"] == code
    assert body["seconds"] < LONG_S, body
    return {check["check"]: check for check in body["checks"]}


def faults(found: dict[str, dict[str, Any]]) -> list[str]:
    return [name for name, check in found.items() if check["status"] == "bad"]


def test_each_fault_of_a_place_is_told_once(cli, clean_lab, tmp_path):
    lab = clean_lab
    lab.exec(["sh", "-c", NODES])
    found = look(cli, lab, Exit.NOT_READY)
    assert {name: found[name] for name in (*WAY, *INSIDE) if found[name]["status"] != "ok"} == {}
    assert faults(found) == ["cuda"], "the stub has NVML, and no libcuda"
    assert "libcuda.so.1 cannot be loaded" in found["cuda"]["seen"]
    assert found["torch"]["status"] == "warn"

    lab.lock()
    lab.freeze()
    found = look(cli, lab, Exit.NOT_READY)
    lab.unfreeze()
    lab.unlock()
    assert faults(found) == ["frozen"]
    assert found["frozen"]["seen"] == "frozen by a backup"
    assert found["enter"]["status"] == found["torch"]["status"] == "skipped"

    lab.stop_container()
    found = look(cli, lab, Exit.NOT_READY)
    lab.start_container()
    assert faults(found) == ["running"]
    assert found["running"]["fix"] == "`pct start 200` on the host"

    (tmp_path / "nobody").touch()
    found = look(cli, lab, Exit.UNREACHABLE, tmp_path / "nobody")
    assert faults(found) == ["host key"]
    assert "--accept-new-host-key" in found["host key"]["fix"]
