"""The whole way: sshd, pct, LXC, and the guest at its end."""

from __future__ import annotations

import hashlib
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
import yaml

from orchestrator.connection import (
    Connections,
    GuestClient,
    Shell,
    ShellOptions,
    host_shell,
    open_shell,
    trainer_archive,
)
from orchestrator.errors import (
    CommandTimeout,
    ContainerUnavailable,
    GuestError,
    GuestRefused,
    HostKeyRefused,
    HostUnreachable,
)
from orchestrator.inventory import Inventory, Target, resolve
from orchestrator.inventory.scan import Answer, render, scan
from tests.cli import LONG_S
from tests.integration.test_connection import HOSTILE, SHOW

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.lab.lab import Lab

pytestmark = pytest.mark.integration

OPTIONS = ShellOptions()


def target_of(lab: Lab, ct: int | None = 200, **options: str) -> Target:
    return resolve(
        Inventory(),
        host=lab.host,
        port=lab.port,
        identity=str(lab.identity),
        known_hosts=str(lab.known_hosts),
        ct=ct,
        **options,  # type: ignore[arg-type]
    )


@pytest.fixture
def connections() -> Connections:
    """A test's own, so that none meets another's broken connection."""
    return Connections()


@pytest.fixture
def shell(lab: Lab, connections: Connections) -> Iterator[Shell]:
    made = open_shell(target_of(lab), options=OPTIONS, connections=connections)
    yield made
    made.close()


@pytest.fixture
def local(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("PATH", lab.env["PATH"])
    return open_shell(resolve(Inventory(), host="local", ct=200))


@pytest.fixture(params=["ssh", "local"])
def either(request: pytest.FixtureRequest) -> Shell:
    found: Shell = request.getfixturevalue("shell" if request.param == "ssh" else "local")
    return found


def test_hostile_words_reach_the_container_as_they_are(either: Shell):
    result = either.run([*SHOW, *HOSTILE], timeout_s=LONG_S)
    assert result.stdout == b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in HOSTILE)


def test_bytes_pass_through_pct_in_both_directions(either: Shell):
    data = bytes(range(256)) * 8000
    assert either.run(["cat"], stdin=data, timeout_s=LONG_S).stdout == data


@pytest.mark.parametrize("ct", [201, 999])
def test_a_container_that_is_not_there_is_told(lab: Lab, connections: Connections, ct: int):
    shell = open_shell(target_of(lab, ct), options=OPTIONS, connections=connections)
    message = "the container is stopped; pct start 201" if ct == 201 else "no such container"
    with pytest.raises(ContainerUnavailable, match=f"127.0.0.1/{ct}: {message}"):
        shell.run(["true"], timeout_s=LONG_S)
    with pytest.raises(ContainerUnavailable, match=message):
        shell.stream(["true"]).read_line(LONG_S)


def test_a_program_that_is_not_in_the_container_is_told(either: Shell):
    with pytest.raises(GuestError, match="/200: nonesuch cannot be started: No such file or directory"):
        either.run(["nonesuch"], timeout_s=LONG_S)


def test_a_host_without_pct_is_told(lab: Lab, connections: Connections, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    shell = open_shell(resolve(Inventory(), host="local", ct=200))
    with pytest.raises(ContainerUnavailable, match="there is no pct; is it a Proxmox VE host"):
        shell.run(["true"], timeout_s=LONG_S)


def test_a_frozen_container_costs_the_limit_and_no_more(clean_lab: Lab, connections: Connections):
    target = target_of(clean_lab)
    shell = open_shell(target, options=OPTIONS, connections=connections)
    clean_lab.freeze()
    started = time.monotonic()
    with pytest.raises(CommandTimeout):
        shell.run(["true"], timeout_s=1.5)
    host = host_shell(target, options=OPTIONS, connections=connections)
    assert host.run(["pct", "status", "200"], timeout_s=LONG_S).stdout == b"status: running\n"
    assert time.monotonic() - started < 60
    clean_lab.unfreeze()
    shell.close()
    host.close()


def test_a_locked_container_can_be_looked_into(clean_lab: Lab, connections: Connections):
    clean_lab.lock()
    shell = open_shell(target_of(clean_lab), options=OPTIONS, connections=connections)
    assert shell.run(["true"], timeout_s=LONG_S).is_success


def test_a_slow_pct_is_waited_for(clean_lab: Lab, connections: Connections):
    clean_lab.set_pct_delay(1)
    shell = open_shell(target_of(clean_lab), options=OPTIONS, connections=connections)
    assert shell.run(["true"], timeout_s=LONG_S).duration_s > 1


def test_a_new_host_key_is_refused(clean_lab: Lab, connections: Connections):
    clean_lab.restart_sshd(new_host_key=True)
    shell = open_shell(
        target_of(clean_lab), options=ShellOptions(accept_new_host_key=True), connections=connections
    )
    with pytest.raises(HostKeyRefused, match="has changed"):
        shell.run(["true"], timeout_s=LONG_S)


# -- the guest


def test_the_guest_is_sent_once_and_again_when_it_is_broken(lab: Lab, shell: Shell):
    target = target_of(lab, state_dir="/var/lib/dflashctl-test-push")
    client = GuestClient(shell, target)
    assert client.ensure() is True
    assert GuestClient(shell, target).ensure() is False
    got = shell.run(["sha256sum", client.path], timeout_s=LONG_S).stdout.split()[0].decode()
    assert client.path.endswith(f"/{got}.pyz")
    shell.run(["sh", "-c", 'echo x >> "$1"', "sh", client.path], timeout_s=LONG_S)
    assert GuestClient(shell, target).ensure() is True
    listed = shell.run(["ls", "-A", "/var/lib/dflashctl-test-push/guest"], timeout_s=LONG_S).stdout
    assert listed.decode().split() == [f"{got}.pyz"]
    shell.run(["rm", "-r", "/var/lib/dflashctl-test-push"], timeout_s=LONG_S)


def test_a_cut_transfer_leaves_no_guest(lab: Lab, shell: Shell):
    target = target_of(lab, state_dir="/var/lib/dflashctl-test-cut")
    client = GuestClient(shell, target)
    whole = client._guest.data
    object.__setattr__(client, "_guest", type(client._guest)(data=whole[:-1], sha256=client._guest.sha256))
    with pytest.raises(GuestError, match="cannot be put into /var/lib/dflashctl-test-cut/guest"):
        client.ensure()
    assert shell.run(["ls", "-A", "/var/lib/dflashctl-test-cut/guest"], timeout_s=LONG_S).stdout == b""
    shell.run(["rm", "-r", "/var/lib/dflashctl-test-cut"], timeout_s=LONG_S)


def test_the_guest_answers_hello_over_either_way(lab: Lab, either: Shell):
    client = GuestClient(either, Target(ct=200))
    asked_at = time.time()
    hello = client.call("hello")[0]
    assert hello["type"] == "hello"
    assert hello["uid"] == 0
    assert asked_at - 1 < hello["now"] < time.time() + 1


def test_a_container_without_python_is_told_with_the_fix(lab: Lab, shell: Shell):
    client = GuestClient(shell, target_of(lab, guest_python="python3.99"))
    with pytest.raises(GuestError, match=r"python3\.99 cannot be started: No such file or directory"):
        client.call("hello")


def test_a_stream_answers_pings_and_ends_with_its_input(lab: Lab, shell: Shell):
    client = GuestClient(shell, target_of(lab))
    stream = client.watch({"runs": None, "gpus": False, "interval_s": 0.2})
    assert read(stream, "hello")["uid"] == 0
    stream.send("ping")
    assert read(stream, "pong")
    stream.close_stdin()
    assert read(stream, "bye")
    assert stream.read(LONG_S) is None
    assert stream.is_ended
    stream.close()


def test_a_stream_whose_connection_is_killed_is_unreachable(clean_lab: Lab, connections: Connections):
    target = target_of(clean_lab)
    client = GuestClient(open_shell(target, options=OPTIONS, connections=connections), target)
    stream = client.watch({"runs": None, "gpus": False, "interval_s": 0.2})
    read(stream, "hello")
    assert clean_lab.kill_ssh_connections() > 0
    with pytest.raises(HostUnreachable):
        [stream.read(1) for _ in range(100)]
    stream.close()
    again = client.watch({"runs": None, "gpus": False, "interval_s": 0.2})
    assert read(again, "hello")
    again.close()


def test_a_stream_into_a_container_that_stops_ends(clean_lab: Lab, connections: Connections):
    target = target_of(clean_lab)
    client = GuestClient(open_shell(target, options=OPTIONS, connections=connections), target)
    stream = client.watch({"runs": None, "gpus": False, "interval_s": 0.2})
    read(stream, "hello")
    clean_lab.stop_container()
    with pytest.raises(GuestError, match="guest watch ended"):
        [stream.read(1) for _ in range(100)]
    stream.close()
    with pytest.raises(ContainerUnavailable, match="stopped"):
        client.call("hello")


def read(stream, kind: str):
    """Return the next message of a kind."""
    for _ in range(100):
        message = stream.read(LONG_S)
        if message is not None and message["type"] == kind:
            return message
    raise AssertionError(kind)


# -- scan


def test_a_scan_of_a_live_host_is_an_inventory(lab: Lab, connections: Connections, tmp_path: Path):
    target = target_of(lab, ct=None)
    host = host_shell(target, options=OPTIONS, connections=connections)

    def ask(argv: Sequence[str]) -> Answer:
        result = host.run(argv, timeout_s=LONG_S)
        return Answer(exit_code=result.exit_code, stdout=result.stdout.decode(), stderr=result.stderr_text())

    text = render(target, scan(ask, target))
    assert yaml.safe_load(text)["containers"]["trainer"]["gpus"] == list(range(8))
    (tmp_path / "scanned.yaml").write_text(text)
    inventory = Inventory.load([tmp_path])
    found = resolve(inventory, container="trainer", known_hosts=str(lab.known_hosts))
    assert found.key == target_of(lab).key
    shell = open_shell(found, options=OPTIONS, connections=connections)
    assert shell.run(["true"], timeout_s=LONG_S).is_success
    host.close()


def test_openssh_agrees_with_what_we_sent(lab: Lab, shell: Shell):
    text = "a 'b' \"c\" $d\n"
    path = "/tmp/dflashctl-agree"
    shell.run(["sh", "-c", 'cat > "$1"', "sh", path], stdin=text.encode(), timeout_s=LONG_S)
    other = subprocess.run(
        [*lab.ssh_argv(), f"pct exec 200 -- sha256sum {path}"], capture_output=True, check=True
    )
    assert other.stdout.split()[0].decode() == hashlib.sha256(text.encode()).hexdigest()


def test_the_trainer_travels_and_is_unpacked(lab: Lab, shell: Shell):
    archive = trainer_archive()
    client = GuestClient(shell, target_of(lab, state_dir="/var/lib/dflashctl-test-trainer"))
    request = {"sha256": archive.sha256, "size": archive.size, "kind": "trainer"}
    told: list[tuple[int, int]] = []
    first = client.call(
        "install", request, payload=archive.data, timeout_s=LONG_S, progress=lambda *at: told.append(at)
    )[-1]
    assert (first["type"], first["already"]) == ("installed", False)
    assert told[-1] == (archive.size, archive.size)
    assert shell.run(["test", "-f", f"{first['path']}/trainer/__init__.py"], timeout_s=LONG_S).is_success
    again = client.call("install", {**request, "check": True})[-1]
    assert again["already"] is True
    with pytest.raises(GuestRefused) as caught:
        client.call("install", {**request, "sha256": "0" * 64}, payload=archive.data, timeout_s=LONG_S)
    assert caught.value.reason == "checksum"
    shell.run(["rm", "-r", "/var/lib/dflashctl-test-trainer"], timeout_s=LONG_S)
