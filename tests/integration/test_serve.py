"""The service as a process: a run that really crashes and comes back, seen by whoever follows."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from orchestrator.clock import SystemClock
from orchestrator.errors import NotFound
from orchestrator.inventory import Target
from orchestrator.inventory.models import Host
from orchestrator.launch import RunSpec, spec_document
from orchestrator.record import Record
from orchestrator.serve import models
from orchestrator.serve.logs import LogReader
from orchestrator.site import Site
from tests.cli import LONG_S
from tests.integration.local import Local, local_runs, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.integration

ENDLESS = ("--steps", "100000", "--step-s", "0.05", "--checkpoint-every", "5")
ONE_CRASH = ("--steps", "60", "--step-s", "0.05", "--checkpoint-every", "5", "--crash-at", "30", "--fx-text")
WAITS = "extends: default\nbackoff: [2h]\njitter: 0\n"
BIG = 5 << 30


class Systemd(threading.Thread):
    """The socket that a service manager listens at, and empties: it holds but a few words."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.name_of_socket = f"@dflashctl-serve-{os.getpid()}-{time.monotonic_ns()}"
        self._ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ear.bind("\0" + self.name_of_socket[1:])
        self.words: list[str] = []
        self.start()

    def run(self) -> None:
        while word := self._ear.recv(4096):
            self.words.append(word.decode().splitlines()[0])
        self._ear.close()

    @property
    def is_reloaded(self) -> bool:
        """It said that it reloads, and after that that it is ready, each time."""
        told = [word for word in self.words if word in ("RELOADING=1", "READY=1")]
        return "RELOADING=1" in told and told[-1] == "READY=1"

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", "\0" + self.name_of_socket[1:])
        self.join(LONG_S)


class Service:
    """`dflashctl serve` over the runs of one place."""

    def __init__(self, local: Local, systemd: Systemd) -> None:
        begin, end = os.pipe()
        self.err = local.home / "serve.err"
        env = {**local.env, "NOTIFY_SOCKET": systemd.name_of_socket, "WATCHDOG_USEC": "3000000"}
        with self.err.open("wb") as err:
            self.process = subprocess.Popen(
                local.argv("serve", "--listen", "127.0.0.1:0", "--ready-fd", str(end), "--no-notify"),
                env=env, cwd=local.home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err,
                pass_fds=(end,), text=True,
            )  # fmt: skip
        os.close(end)
        with os.fdopen(begin) as ready:
            self.url = ready.readline().strip()
        assert self.url, self.err.read_text()
        self.place = urlsplit(self.url).netloc
        self.token = (local.home / "config" / "dflashctl" / "serve.token").read_text().strip()

    def ask(self, method: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.place, timeout=LONG_S)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        status, _, body = self.ask("GET", path)
        assert status == 200, body
        return json.loads(body)


class Follower(threading.Thread):
    """Reads the stream as a page does."""

    def __init__(self, place: str) -> None:
        super().__init__(daemon=True)
        self.runs: dict[str, dict[str, Any]] = {}
        self.seen: list[tuple[str, str, int | None]] = []  # name, state, attempt, in order
        self.told: list[dict[str, Any]] = []
        self.firsts: list[str] = []
        self.has_ended = False
        self._connection = http.client.HTTPConnection(place, timeout=LONG_S)
        self._connection.request("GET", "/api/v1/stream")
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200

    def run(self) -> None:
        kind = ""
        while line := self._answer.readline():
            word, _, rest = line.decode().rstrip("\n").partition(": ")
            if word == "event":
                kind = rest
            elif word == "data":
                self._take(kind, json.loads(rest))
        self.has_ended = True
        self._connection.close()

    def _take(self, kind: str, body: dict[str, Any]) -> None:
        self.firsts.append(kind)
        if kind == "told":
            self.told.append(models.Told.model_validate(body).model_dump())
        elif kind in ("fleet", "runs"):
            (models.Fleet if kind == "fleet" else models.Changes).model_validate(body)
            for run in body["runs"]:
                self.runs[run["name"]] = run
                self.seen.append((run["name"], run["state"], run["attempt"]))

    def wait(self, name: str, test: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        wait_until(
            lambda: name in self.runs and test(self.runs[name]), what=f"{name}, last {self.runs.get(name)}"
        )
        return self.runs[name]


@pytest.fixture
def local(tmp_path) -> Iterator[Local]:
    with local_runs(tmp_path) as here:
        yield here


def told_reloads(page: Follower) -> int:
    return sum(each["kind"] == "reload" for each in page.told)


@contextmanager
def serving(local: Local) -> Iterator[tuple[Service, Systemd]]:
    systemd = Systemd()
    service = Service(local, systemd)
    try:
        yield service, systemd
    finally:
        if service.process.poll() is None:
            service.process.kill()
        service.process.communicate()
        systemd.close()
        assert "Traceback" not in service.err.read_text(), service.err.read_text()[-4000:]


def add_unreachable(local: Local) -> None:
    """A run at a host where nothing listens."""
    host = Host(name="gone", address="127.0.0.1", user="root", port=1)
    target = Target(host=host, ct=200, state_dir="/nowhere")
    spec = spec_document(RunSpec(run="far", config="tiny"), state_dir="/nowhere", attempt=1, created_at="t")
    with local.record() as record:
        record.save_run("far", target.to_json(), target.key, spec, SystemClock().now())


def test_a_crash_its_relaunch_and_what_is_asked_are_seen_by_whoever_follows(local):
    quick = local.playbook.read_text()
    local.playbook.write_text(WAITS)
    local.begin_standin("risky", *ONE_CRASH, "--crash-attempts", "1")
    local.begin_standin("endless", *ENDLESS)
    with serving(local) as (service, systemd):
        wait_until(lambda: "READY=1" in systemd.words, what="READY=1")
        page = Follower(service.place)
        page.start()
        # It crashes, and the playbook starts it again once that lets it, so that its death is seen.
        page.wait("risky", lambda run: run["state"] == "dead" and run["attempt"] == 1)
        local.playbook.write_text(quick)
        service.process.send_signal(signal.SIGHUP)
        page.wait("risky", lambda run: run["state"] == "finished" and run["attempt"] == 2)
        assert page.firsts[0] == "fleet"
        kinds = [each["kind"] for each in page.told if each["run"] == "risky"]
        assert {"diagnosis", "decision", "act", "outcome"} <= set(kinds)
        wait_until(lambda: service.ask("GET", "/healthz")[0] == 200, what="all are seen")

        detail = models.RunDetail.model_validate(service.get("/api/v1/runs/1"))
        assert [(each.n, each.failure) for each in detail.attempts] == [
            (1, "fx_trace_race"),
            (2, "completed"),
        ]
        proof = next(each for each in detail.diagnoses if each.state == "dead").evidence[0]
        assert proof.offset is not None
        curves = models.Curves.model_validate(service.get("/api/v1/runs/1/curves"))
        assert [each.attempt for each in curves.series] == [1, 2]
        assert [(each.attempt, each.label) for each in curves.deaths] == [(1, "fx_trace_race")]
        alive = models.RunDetail.model_validate(service.get("/api/v1/runs/2"))
        assert alive.playbook.ceiling is not None
        assert alive.playbook.decision is not None
        assert alive.playbook.decision.kind == "none"

        # The proof is where it is said to be, in the copy here as in the container.
        place = f"attempt=1&start={proof.offset}&length=4096"
        status, headers, body = service.ask("GET", f"/api/v1/runs/1/log?{place}")
        assert (status, headers["x-log-source"]) == (200, "mirror")
        assert body.decode().startswith(proof.text[:40])
        log = (local.state / "runs" / "risky" / "attempts" / "1" / "log").read_bytes()
        assert body == log[proof.offset :][:4096]
        assert int(headers["x-log-size"]) == len(log)
        assert service.ask("GET", "/api/v1/runs/1/log?attempt=9")[0] == 404

        # What is asked is done, and only with the token.
        assert service.ask("POST", "/api/v1/runs/2/stop")[0] == 401
        bearer = {"Authorization": f"Bearer {service.token}"}
        assert service.ask("POST", "/api/v1/runs/2/stop", **bearer)[0] == 202
        page.wait("endless", lambda run: run["state"] == "stopped" and run["has_ended"])
        wait_until(
            lambda: any(each["text"] == "stopped by its user" for each in page.told), what="the outcome"
        )
        assert service.ask("POST", "/api/v1/runs/2/relaunch", **bearer)[0] == 202
        page.wait("endless", lambda run: run["attempt"] == 2 and (run["step"] or 0) > 0)

        # A reload leaves who follows alone, and systemd hears that it lives.
        before = systemd.words.count("RELOADING=1"), told_reloads(page)
        service.process.send_signal(signal.SIGHUP)
        wait_until(lambda: told_reloads(page) > before[1], what="the reload")
        wait_until(lambda: systemd.words.count("RELOADING=1") > before[0], what="RELOADING=1")
        wait_until(lambda: systemd.is_reloaded, what="READY=1 again")
        assert page.is_alive()
        wait_until(lambda: "WATCHDOG=1" in systemd.words, what="WATCHDOG=1")

        # A watch that cannot see is not healthy, and says so.
        add_unreachable(local)
        page.wait("far", lambda run: run["blind"] is not None)
        status, _, why = service.ask("GET", "/healthz")
        assert status == 503
        assert b"far at 127.0.0.1:1/200 is not seen: " in why
        assert b"dflash_watch_well 0.0" in service.ask("GET", "/metrics")[2]

        # Its end ends no run.
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(LONG_S) == 0
        page.join(LONG_S)
        assert page.has_ended
        assert "STOPPING=1" in systemd.words
        assert local.trainers("endless")


def test_a_range_of_a_log_of_5_gb_costs_no_more_than_it_holds(tmp_path, monkeypatch):
    folder = tmp_path / "runs" / "big" / "attempts" / "1"
    folder.mkdir(parents=True)
    with (folder / "log").open("wb") as file:
        file.truncate(BIG)
        file.seek(BIG)
        file.write(b"\na line with hf_aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bD1fG\nthe last line\n")
    with Record.open(tmp_path / "r.sqlite3") as record:
        target = Target(state_dir=str(tmp_path))
        row = record.save_run("big", target.to_json(), target.key, {}, SystemClock().now())
    reader = LogReader(lambda row: Site(Target.from_json(row.target)), SystemClock())
    try:
        reader.read(row, 1, 0, 1, None)  # it connects
        begun = time.monotonic()
        tail = reader.read(row, None, -14, 1000, 1)
        assert (tail.data, tail.attempt, tail.source) == (b"the last line\n", 1, "container")
        assert tail.start == tail.size - 14
        assert reader.read(row, 1, BIG // 2, 1 << 20, None).data == bytes(1 << 20)
        assert time.monotonic() - begun < 60, "all of it was read"
        masked = reader.read(row, 1, BIG, 4096, None).data
        assert b"aB3dE5gH" not in masked
        assert masked.endswith(b"\nthe last line\n")
        beyond = reader.read(row, 1, 2 * BIG, 10, None)
        assert (beyond.data, beyond.start) == (b"", tail.size)
        with pytest.raises(NotFound, match="no attempt 2"):
            reader.read(row, 2, 0, 10, None)
    finally:
        reader.close()


@pytest.mark.slow
def test_what_a_person_got_wrong_is_told_in_a_line(local):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = local.run("serve", "--listen", f"127.0.0.1:{port}", code=1)
    assert done.stderr.startswith(f"dflashctl: 127.0.0.1:{port}: the port is taken; ")
    token = local.home / "config" / "dflashctl" / "serve.token"
    token.chmod(0o644)
    done = local.run("serve", "--listen", "127.0.0.1:0", code=2)
    assert f"{token}: others may read it (mode 0644)" in done.stderr
    assert "chmod 600" in done.stderr
