"""provision at the lab: from a container without Python and tmux to one where `launch` finds its Python."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.errors import Exit
from tests import wheels
from tests.cli import LONG_S
from tests.integration.clilab import cli, options
from tests.lab import bare

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli import Cli
    from tests.lab.lab import Lab

pytestmark = pytest.mark.integration
__all__ = ["cli"]

STATE = "var/lib/dflashctl"
BOOK = """\
apt_wait: 1s
steps:
  - name: python
    why: The guest runs by it.
    check: {program: python3, at_least: "3.10", module: ensurepip}
    apt: [python3]
  - name: tmux
    why: Each run lives in a session of it.
    check: {program: tmux, at_least: "3.2"}
    apt: [tmux]
  - name: venv
    why: Two small packages in the place of torch.
    venv: {requirements: [alpha, beta], lock: small.lock, imports: [alpha, beta]}
  - name: trainer
    why: The bundled trainer under its own hash.
    trainer: bundled
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A provision file, its lock, and a wheelhouse of tiny wheels and pip's own."""
    house = tmp_path / "house"
    house.mkdir()
    pip = wheels.pips_own(house).name.split("-")[1]
    wheels.make(house, "alpha", "1.0", {"alpha_data.bin": bytes(12 << 20)})
    wheels.make(house, "beta", "2.0")
    (tmp_path / "small.lock").write_text(f"alpha==1.0\nbeta==2.0\npip=={pip}\n")
    (tmp_path / "book.yaml").write_text(BOOK)
    return tmp_path


def words(lab: Lab, files: Path, *more: str) -> list[str]:
    where = (*options(lab), "--ct", "200")
    return [
        "provision",
        *where,
        "--file",
        str(files / "book.yaml"),
        "--wheelhouse",
        str(files / "house"),
        *more,
    ]


def statuses(body: dict[str, Any]) -> list[str]:
    return [step["status"] for step in body["steps"]]


def test_a_bare_container_is_made_ready_past_bad_days_and_is_then_left_alone(cli, clean_lab, files):
    lab = clean_lab
    bare.strip(lab)
    checked = cli.json(*words(lab, files, "--check"), code=Exit.NOT_READY)
    assert statuses(checked) == ["would"] * 4
    assert not (lab.rootfs / STATE).exists(), "--check changes nothing, and sends no guest"

    _assert_apt_in_use_is_told(cli, lab, files)
    _assert_no_mirror_is_told(cli, lab, files)
    bare.use_source(lab, bare.OWN_SOURCE)
    _cut_while_wheels_are_sent(cli, lab, files)

    body = cli.json(*words(lab, files))
    assert statuses(body) == ["ok", "ok", "changed", "changed"]
    key = (lab.rootfs / STATE / "venv").readlink().name
    python = f"/{STATE}/venvs/{key}/bin/python"
    said = lab.exec([python, "-c", "import alpha, beta; print(alpha.VERSION, beta.VERSION)"])
    assert said.stdout.split() == ["1.0", "2.0"]
    assert not list((lab.rootfs / STATE).glob("wheelhouse/*")), "it is not needed any more"

    again = cli.run(*words(lab, files)).stdout
    assert "ok=4 changed=0 failed=0 skipped=0" in again
    refused = cli.launch(code=Exit.NOT_READY).stderr
    assert f"{python}: torch and safetensors and numpy not installed" in refused, "taken, though it is small"


def _assert_apt_in_use_is_told(cli: Cli, lab: Lab, files: Path) -> None:
    with (lab.rootfs / "var/lib/dpkg/lock-frontend").open("w") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        body = cli.json(*words(lab, files), code=Exit.ERROR)
    assert statuses(body) == ["failed", "skipped", "skipped", "skipped"]
    error = body["steps"][0]["error"]
    assert "another apt or dpkg is at work there" in error["message"]
    assert "wait for its end" in error["hint"]


def _assert_no_mirror_is_told(cli: Cli, lab: Lab, files: Path) -> None:
    bare.use_source(lab, "deb [trusted=yes] http://127.0.0.1:9/debian stable main")
    done = cli.run(*words(lab, files), code=Exit.ERROR)
    assert "apt reaches no mirror from there" in done.stderr
    assert "apt-get install -y ./*.deb" in done.stderr
    assert "Connection refused" in done.stderr, "the tail of what apt said"
    assert "failed=1 skipped=3" in done.stdout


def _cut_while_wheels_are_sent(cli: Cli, lab: Lab, files: Path) -> None:
    """Ctrl-C as soon as a wheel is on its way: apt's steps are done, the environment is nobody's."""
    cut = subprocess.Popen(
        cli.argv(*words(lab, files)),
        env=cli.env,
        cwd=cli.home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    stop_at = time.monotonic() + LONG_S
    while not list((lab.rootfs / STATE).glob("wheelhouse/*/*alpha*")):
        assert cut.poll() is None
        assert time.monotonic() < stop_at
        time.sleep(0.01)
    cut.send_signal(signal.SIGINT)
    out, err = cut.communicate(timeout=LONG_S)
    assert cut.returncode == Exit.INTERRUPTED, (out, err)
    assert "Traceback" not in err
    assert "the same command goes on from here" in err
    assert [line.split()[:2] for line in out.splitlines()] == [["changed", "python"], ["changed", "tmux"]]
    assert not list((lab.rootfs / STATE).glob("venvs/*/dflashctl.json"))
