"""The service as a process: its socket, its unit, and what it tells systemd."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import nullcontext

import pytest

from orchestrator.errors import ConfigError, Exit, OrchestratorError
from orchestrator.fleet import service
from orchestrator.serve.app import create_app
from orchestrator.serve.listening import Place, is_loopback, listen, parse, url
from orchestrator.serve.relay import Relay
from orchestrator.serve.running import Running
from orchestrator.serve.sdnotify import Notifier
from orchestrator.serve.unit import unit
from tests.unit.serve.stage import begin, staged


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("127.0.0.1:8765", Place("127.0.0.1", 8765)),
        ("10.1.2.3", Place("10.1.2.3", 8765)),
        ("box.lan:80", Place("box.lan", 80)),
        ("[::1]:0", Place("::1", 0)),
        ("[::1]", Place("::1", 8765)),
        ("::1", Place("::1", 8765)),
        (" localhost:1 ", Place("localhost", 1)),
    ],
)
def test_an_address_is_read_as_people_write_it(text, place):
    assert parse(text) == place


@pytest.mark.parametrize("text", ["", ":80", "a:", "a:b", "a:65536", "a:-1", "[::1", "[::1]x", "[]:1", "a:²"])
def test_what_is_no_address_is_refused_with_its_value(text):
    with pytest.raises(ConfigError, match="--listen: "):
        parse(text)


def test_a_free_port_is_taken_and_told():
    listener, place = listen(Place("127.0.0.1", 0))
    with listener:
        assert place.port > 0
        assert url(place) == f"http://127.0.0.1:{place.port}"
        with pytest.raises(OrchestratorError, match="the port is taken") as caught:
            listen(place)
        assert caught.value.exit_code == Exit.ERROR
        assert str(place.port) in caught.value.message


@pytest.mark.parametrize(
    ("place", "kind", "text"),
    [
        (Place("192.0.2.1", 0), OrchestratorError, "that is no address of this machine"),
        (Place("no-such-host.invalid", 0), ConfigError, "there is no such name or address"),
        (Place("a" * 70 + ".x", 0), ConfigError, "there is no such name or address"),
    ],
)
def test_where_it_cannot_listen_is_told_with_what_to_do(place, kind, text):
    with pytest.raises(kind, match=text) as caught:
        listen(place)
    assert caught.value.hint


def test_only_loopback_is_loopback():
    near = ("127.0.0.1", "127.9.9.9", "::1")
    far = ("0.0.0.0", "::", "10.1.2.3", "localhost", "192.168.1.1", "fe80::1%eth0")
    assert all(is_loopback(Place(host, 1)) for host in near)
    assert not any(is_loopback(Place(host, 1)) for host in far)
    assert url(Place("::", 7)) == f"http://{socket.gethostname()}:7"


# -- systemd


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_systemd_is_told_over_a_socket_of_either_kind(tmp_path, kind):
    name = f"@dflashctl-test-{os.getpid()}" if kind == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind("\0" + name[1:] if kind == "abstract" else name)
        ear.settimeout(5)
        notifier = Notifier(
            {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}
        )
        assert notifier.is_on
        assert notifier.watchdog_s == 60.0

        def heard() -> dict[str, str]:
            return dict(line.split("=", 1) for line in ear.recv(4096).decode().splitlines())

        notifier.ready("3 runs;\n all is well")
        assert heard() == {"READY": "1", "STATUS": "3 runs; all is well"}
        notifier.alive("x" * 1000)
        assert heard() == {"WATCHDOG": "1", "STATUS": "x" * 200}
        before = time.monotonic_ns() // 1000
        notifier.reloading()
        told = heard()
        assert told["RELOADING"] == "1"
        assert before <= int(told["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
        notifier.stopping()
        assert heard() == {"STOPPING": "1"}


def test_without_systemd_nothing_is_said_and_a_lost_word_stops_nothing(tmp_path):
    for env in ({}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}):
        quiet = Notifier(env)
        assert not quiet.is_on
        quiet.ready("x")
    lost = Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    lost.ready("x")
    assert lost.watchdog_s is None
    assert Notifier({"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}).watchdog_s is None
    assert Notifier({"WATCHDOG_USEC": "x"}).watchdog_s is None


def test_a_full_socket_does_not_hold_the_service_up(tmp_path):
    name = str(tmp_path / "full")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(name)
        notifier = Notifier({"NOTIFY_SOCKET": name})
        begun = time.monotonic()
        for _ in range(2_000):
            notifier.alive("x")
        assert time.monotonic() - begun < 60


def lines_of(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


def make_unit(*argv: str, is_far: bool = True, **env: str) -> str:
    return unit(argv or ("/bin/true", "serve"), "root", folder="/srv/50% here", env=env, is_far=is_far)


def test_a_unit_starts_the_same_service_whatever_its_words_hold():
    words = ("/opt/my env/bin/dflashctl", "serve", "--allow-host", "50%.lan", "--token-file", 'a"b\\$x')
    lines = lines_of(make_unit(*words, XDG_STATE_HOME='/a "b" $c'))
    assert lines["ExecStart"] == (
        '"/opt/my env/bin/dflashctl" serve --allow-host 50%%.lan --token-file "a\\"b\\\\$$x"'
    )
    assert lines["WorkingDirectory"] == "/srv/50%% here"
    assert lines["Environment"] == '"XDG_STATE_HOME=/a \\"b\\" $c"'
    assert (lines["Type"], lines["User"], lines["Restart"]) == ("notify", "root", "on-failure")
    assert lines["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert int(lines["WatchdogSec"]) > 0


def test_a_service_that_may_start_runs_here_is_not_confined_and_ends_none_of_them():
    near, far = lines_of(make_unit(is_far=False)), lines_of(make_unit(is_far=True))
    assert near["KillMode"] == "process"
    assert not {"PrivateTmp", "PrivateDevices", "NoNewPrivileges", "RestrictNamespaces"} & set(near)
    assert "KillMode" not in far
    assert far["PrivateDevices"] == far["NoNewPrivileges"] == "yes"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
@pytest.mark.parametrize("is_far", [True, False])
def test_systemd_takes_the_unit(tmp_path, is_far):
    place = tmp_path / "dflashctl.service"
    place.write_text(make_unit(is_far=is_far))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(place)], capture_output=True, text=True, check=False
    )
    assert str(place) not in done.stderr, done.stderr


def test_a_service_whose_record_is_gone_says_so_and_is_not_started_anew_without_it(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "AGAIN_S", 0.05)
    with staged(tmp_path, begins_anew=True) as stage:
        running = Running(
            app=create_app(stage.parts), parts=stage.parts, notifier=Notifier({}), ready=lambda: None,
            relay=Relay(stage.board, lambda view: nullcontext()),
        )  # fmt: skip
        begin(stage)
        assert running._turns()
        (tmp_path / "record.sqlite3").rename(tmp_path / "away")
        deadline = time.monotonic() + 10
        while stage.fleet.fault is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        first = stage.fleet.fault
        while stage.fleet.fault is first:  # it begins anew, and again finds nothing there
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert running._turns(), "a new process would begin a record that knows of no run"
        assert not stage.parts.health().is_well
        assert "was moved or deleted" in running._status()
