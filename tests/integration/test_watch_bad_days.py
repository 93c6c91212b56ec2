"""The watch over sshd, pct and a container, on days when one of them is slow, gone or silent."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from orchestrator.connection.route import BANNER_TIMEOUT_S
from orchestrator.record import Record
from tests.cli import ROOT, Cli, is_kind
from tests.integration.clilab import RUNS, is_connected
from tests.integration.local import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.lab import Lab

pytestmark = pytest.mark.integration

STANDIN = "/opt/standin.py"
FAST_PLAYBOOK = "extends: default\nbackoff: [0s, 1s]\njitter: 0\n"
SLOW_PCT_S = 15
CRASHING = ("--crash-attempts", "1", "--fx-text")


class LabCli(Cli):
    """`dflashctl` at the lab's container."""

    def __init__(self, home, lab: Lab, ct: int = 200) -> None:
        login = ("--host", lab.host, "--port", str(lab.port), "--identity", str(lab.identity))
        super().__init__(home, (*login, "--known-hosts", str(lab.known_hosts), "--ct", str(ct)))
        self.root = lab.containers[ct].root
        self.names: list[str] = []
        self.playbook = home / "playbook.yaml"
        self.playbook.write_text(FAST_PLAYBOOK)

    def begin(self, run: str, *words: str) -> None:
        shutil.copy(ROOT / "tests" / "standin.py", self.root / STANDIN.lstrip("/"))
        self.names.append(run)
        self.launch("--run", run, "--playbook", str(self.playbook), "--", "python3", STANDIN, *words)

    def clean_up(self) -> None:
        self.end_watches()
        for name in self.names:
            self.run("stop", name, "--grace", "0s", code=None)


@pytest.fixture
def cli(clean_lab, tmp_path) -> Iterator[LabCli]:
    made = LabCli(tmp_path, clean_lab)
    yield made
    made.clean_up()


@pytest.fixture
def run(request) -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", request.node.name)[:50].strip("-")


def step(number: int):
    return lambda e: e["kind"] == "log" and e["text"].startswith(f"step {number}/")


@pytest.mark.slow
def test_a_pct_that_takes_a_second_changes_nothing_but_the_pace(cli, clean_lab, run):
    clean_lab.set_pct_delay(1)
    cli.begin(run, "--steps", "40", "--step-s", "0.1", "--crash-at", "20", *CRASHING)
    watch = cli.watch(run)
    assert watch.end() == 0, watch.story()
    dead = watch.wait_for(is_kind("diagnosis", state="dead"))
    assert dead["detail"]["failure"] == "fx_trace_race"
    assert cli.json("status", run)["attempt"] == 2


@pytest.mark.slow
def test_a_host_that_is_gone_for_forty_seconds_is_told_with_its_age_and_found_again(cli, clean_lab, run):
    cli.begin(run, "--steps", "20000", "--step-s", "0.1")
    watch = cli.watch(run)
    watch.wait_for(step(5))
    clean_lab.stop_sshd()
    try:
        watch.wait_for(lambda e: e["kind"] == "blind")
        watch.wait_for(lambda e: e["kind"] == "blind" and e["detail"].get("blind_s", 0) >= 30)
        time.sleep(5)
    finally:
        clean_lab.start_sshd()
    back = watch.wait_for(lambda e: e["kind"] == "state" and "it was not seen for" in e["text"])
    assert back["detail"]["state"] == "healthy"
    assert not any(e["kind"] == "act" for e in watch.events()), watch.story()
    assert {e["attempt"] for e in watch.events() if e["kind"] == "attempt"} == {1}


def test_a_container_that_was_frozen_is_known_to_be_thawed_and_its_end_is_seen(cli, clean_lab, run):
    cue = cli.root / "opt" / "cue"
    cli.begin(run, "--steps", "100", "--step-s", "0.1", "--crash-at", "60", *CRASHING, "--cue", "/opt/cue")
    watch = cli.watch(run)
    watch.wait_for(step(5))
    clean_lab.freeze()
    try:
        watch.wait_for(is_kind("diagnosis", state="container_frozen"))
    finally:
        clean_lab.unfreeze()
    cue.touch()
    assert watch.end() == 0, watch.story()
    assert watch.wait_for(is_kind("diagnosis", state="dead"))["detail"]["failure"] == "fx_trace_race"


def test_a_run_in_a_container_without_gpus_and_driver_is_relaunched(clean_lab, tmp_path, run):
    clean_lab.start_container(201)
    cli = LabCli(tmp_path, clean_lab, ct=201)
    try:
        for library in cli.root.glob("usr/lib/*/libnvidia-ml.so*"):
            library.unlink()
        for tool in ("usr/bin/nvidia-smi", "usr/local/bin/nvidia-smi"):
            (cli.root / tool).unlink(missing_ok=True)
        cli.begin(run, "--steps", "20", "--step-s", "0.1", "--crash-at", "10", *CRASHING)
        watch = cli.watch(run)
        assert watch.end() == 0, watch.story()
        assert cli.json("status", run)["attempt"] == 2
    finally:
        cli.clean_up()
        clean_lab.stop_container(201)


def test_ctrl_c_in_the_midst_of_a_relaunch_leaves_its_intent_and_the_next_watch_goes_on(cli, clean_lab, run):
    cli.begin(run, "--steps", "60", "--step-s", "0.1", "--crash-at", "20", *CRASHING, "--cue", "/opt/cue")
    watch = cli.watch(run)
    watch.wait_for(step(5))
    clean_lab.set_pct_delay(SLOW_PCT_S)  # the start is now under way for a while
    (cli.root / "opt" / "cue").touch()
    watch.wait_for(lambda e: e["kind"] == "act" and "relaunching" in e["text"])
    wait_until(lambda: _open_intents(cli) == ["relaunch"], what="the intent of the relaunch")
    watch.process.send_signal(signal.SIGINT)
    assert watch.end() == 130, watch.story()
    assert not (cli.root / RUNS / run / "attempts" / "2").exists(), "it did not wait for the start"
    assert watch.events()[-1]["error"]["code"] == "interrupted"
    assert "Traceback" not in watch.err.read_text()
    clean_lab.set_pct_delay(0)
    second = cli.watch(run)
    assert second.end() == 0, second.story()
    assert cli.json("status", run)["attempt"] == 2
    assert _open_intents(cli) == []


def _open_intents(cli: LabCli) -> list[str]:
    with Record.open(cli.home / "state" / "dflashctl" / "record.sqlite3") as record:
        (row,) = record.runs()
        return [action.kind for action in record.open_intents(row.id)]


@contextmanager
def a_host_that_answers_nothing(lab: Lab) -> Iterator[None]:
    """sshd is stopped in its tracks: connections are taken and nothing is ever said."""
    pid = lab.sshd.pid()
    assert pid is not None
    lab.kill_ssh_connections()
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_ctrl_c_while_the_host_takes_the_connection_and_says_nothing_ends_the_watch_at_once(
    cli, clean_lab, run
):
    cli.begin(run, "--steps", "20000", "--step-s", "0.1")
    with a_host_that_answers_nothing(clean_lab):
        watch = cli.watch(run)
        wait_until(lambda: is_connected(watch.process.pid, clean_lab.port), what="it connects")
        time.sleep(1)
        assert watch.process.poll() is None, watch.story()
        begin = time.monotonic()
        watch.process.send_signal(signal.SIGINT)
        assert watch.end() == 130
        assert time.monotonic() - begin < BANNER_TIMEOUT_S, "it waited for the host's first word"
        assert watch.err.read_text() == ""
