"""Shells over a real sshd on loopback, and here."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.connection import Connections, LocalShell, Shell, Stream, open_shell
from orchestrator.connection.host import HostShell
from orchestrator.errors import CommandTimeout, GuestError, HostDenied, HostKeyRefused, HostUnreachable
from orchestrator.inventory import Host
from tests.cli import LONG_S
from tests.integration.throwaway import Pipe, ThrowawaySshd, free_port, sshd_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sshd_path() is None or os.geteuid() != 0, reason="needs root and openssh-server"),
]

HOSTILE = [
    "",
    " ",
    "-n",
    "--",
    "a'b",
    'a"b',
    "$HOME",
    "`id`",
    "$(id)",
    "a\nb",
    "\\",
    "\\n",
    "*",
    "~",
    "!",
    "!!",
    "%s",
]
HOSTILE += [
    "a;id",
    "a&b",
    "a|b",
    ">x",
    "#",
    "\u00e9\u4e16",
    "\x1b[31m",
    "\t",
    "=ls",
    "{a,b}",
    "\udcff\udc80",
    "'\"'\"'",
]
WORDS = st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=30), max_size=5)
PROXY = """\
import os, socket, sys, threading
far = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def up():
    while data := os.read(0, 65536):
        far.sendall(data)
    far.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while data := far.recv(65536):
    while data:
        data = data[os.write(1, data):]
"""
# The program that shows its words: NUL-ended, so that nothing can hide.
SHOW = ["sh", "-c", 'for word; do printf "%s\\0" "$word"; done', "show"]


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThrowawaySshd]:
    server = ThrowawaySshd(tmp_path_factory.mktemp("sshd"))
    yield server
    server.stop()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ThrowawaySshd]:
    """A server that a test may break."""
    server = ThrowawaySshd(tmp_path / "sshd")
    yield server
    server.stop()


@pytest.fixture
def host(sshd: ThrowawaySshd) -> Iterator[HostShell]:
    shell = reach(sshd)
    yield shell
    shell.close()


def reach(server: ThrowawaySshd, *, connections: Connections | None = None, **options: object) -> HostShell:
    """Return a shell to the server, over a connection of its own."""
    shell = open_shell(
        server.target(), options=server.options(**options), connections=connections or Connections()
    )
    assert isinstance(shell, HostShell)
    return shell


@pytest.fixture(params=["local", "host"])
def shell(request: pytest.FixtureRequest) -> Shell:
    if request.param == "local":
        return LocalShell()
    found: Shell = request.getfixturevalue("host")
    return found


# -- what a shell must do, here and over ssh


def test_hostile_words_arrive_as_they_are(shell: Shell):
    result = shell.run([*SHOW, *HOSTILE], timeout_s=LONG_S)
    assert result.stdout == b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in HOSTILE)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(WORDS)
def test_any_words_arrive_as_they_are(shell: Shell, words: list[str]):
    assert shell.run([*SHOW, *words], timeout_s=LONG_S).stdout == b"".join(
        word.encode() + b"\0" for word in words
    )


def test_exit_code_and_both_outputs_come_back(shell: Shell):
    result = shell.run(["sh", "-c", "echo out; echo err >&2; exit 7"], timeout_s=LONG_S)
    assert (result.exit_code, result.stdout, result.stderr) == (7, b"out\n", b"err\n")
    assert 0 < result.duration_s < LONG_S


def test_more_than_any_window_on_both_outputs_does_not_block(shell: Shell):
    script = "head -c 6000000 /dev/zero >&2; head -c 6000000 /dev/zero; head -c 6000000 /dev/zero >&2"
    result = shell.run(["sh", "-c", script], timeout_s=LONG_S)
    assert (len(result.stdout), len(result.stderr)) == (6_000_000, 12_000_000)


@pytest.mark.parametrize("wrap", [bytes, io.BytesIO])
def test_a_large_input_passes_through_while_output_comes(shell: Shell, wrap):
    data = os.urandom(6_000_000)
    assert shell.run(["cat"], stdin=wrap(data), timeout_s=LONG_S).stdout == data


def test_a_program_that_does_not_read_its_input_ends(shell: Shell):
    assert shell.run(["true"], stdin=b"x" * 6_000_000, timeout_s=LONG_S).exit_code == 0


def test_without_input_a_program_sees_its_end(shell: Shell):
    assert shell.run(["cat"], timeout_s=LONG_S).stdout == b""


def test_a_missing_program_ends_with_127(shell: Shell):
    result = shell.run(["no-such-program"], timeout_s=LONG_S)
    assert result.exit_code == 127
    assert b"not found" in result.stderr


def test_no_answer_in_time_is_told(shell: Shell):
    started = time.monotonic()
    with pytest.raises(CommandTimeout, match=r"no answer within 0\.5 s to sleep 3600"):
        shell.run(["sleep", "3600"], timeout_s=0.5)
    assert time.monotonic() - started < LONG_S


TRICKLE = ["sh", "-c", "while printf x; do sleep 0.02; done"]


def test_a_trickle_of_output_does_not_hold_the_limit_up(shell: Shell):
    started = time.monotonic()
    with pytest.raises(CommandTimeout):
        shell.run(TRICKLE, timeout_s=0.5)
    stream = shell.stream(TRICKLE)
    assert stream.read_line(0.5) is None
    stream.close()
    assert time.monotonic() - started < LONG_S


def test_a_stream_gives_lines_while_it_runs(shell: Shell):
    stream = shell.stream(
        ["sh", "-c", 'echo ready; while read line; do echo "got $line"; done; echo err >&2; exit 3']
    )
    assert stream.read_line(LONG_S) == b"ready\n"
    assert stream.read_line(0.05) is None
    stream.send(b"a $b\n")
    assert stream.read_line(LONG_S) == b"got a $b\n"
    stream.close_stdin()
    assert stream.read_line(LONG_S) == b""
    assert stream.stderr_tail() == "err\n"
    assert stream.exit_code == 3
    stream.close()


def test_a_last_line_without_its_end_is_given_as_it_is(shell: Shell):
    stream = shell.stream(["printf", "a\\nb"])
    assert [stream.read_line(LONG_S), stream.read_line(LONG_S), stream.read_line(LONG_S)] == [
        b"a\n",
        b"b",
        b"",
    ]
    stream.close()


def test_a_stream_takes_many_lines(shell: Shell):
    stream = shell.stream(["seq", "100000"])
    got = 0
    while line := stream.read_line(LONG_S):
        got += 1
        assert line == b"%d\n" % got
    assert got == 100_000
    stream.close()


def test_a_stream_that_has_ended_takes_no_input(shell: Shell):
    stream = shell.stream(["sh", "-c", "echo gone >&2; exit 1"])
    assert stream.read_line(LONG_S) == b""
    with pytest.raises(GuestError, match="gone"):
        send_much(stream)
    stream.close()


def send_much(stream: Stream) -> None:
    for _ in range(100):
        stream.send(b"x" * 100_000)


def test_an_endless_line_is_refused(shell: Shell):
    stream = shell.stream(["head", "-c", "3000000", "/dev/zero"])
    with pytest.raises(GuestError, match="a line of more than"):
        [stream.read_line(LONG_S) for _ in range(100)]
    stream.close()


# -- one connection, shared


def test_a_signal_there_is_an_unknown_end(host: HostShell):
    assert host.run(["sh", "-c", "kill -9 $$"], timeout_s=LONG_S).exit_code is None


def test_commands_share_a_connection_and_its_channels_are_bounded(own: ThrowawaySshd):
    shell = reach(own)
    streams = [shell.stream(["cat"]) for _ in range(8)]
    assert len(own.children()) == 1
    streams += [shell.stream(["cat"]) for _ in range(3)]
    assert len(own.children()) == 2
    for number, stream in enumerate(streams):
        stream.send(b"%d\n" % number)
    assert [stream.read_line(LONG_S) for stream in streams] == [b"%d\n" % number for number in range(11)]
    for stream in streams:
        stream.close()
    streams = [shell.stream(["cat"]) for _ in range(16)]
    assert len(own.children()) == 2
    shell.close()


def test_two_shells_of_one_login_share_and_the_last_one_closes(own: ThrowawaySshd):
    shared = Connections()
    first, second = reach(own, connections=shared), reach(own, connections=shared)
    first.run(["true"], timeout_s=LONG_S)
    second.run(["true"], timeout_s=LONG_S)
    assert len(own.children()) == 1
    first.close()
    first.close()
    assert second.run(["true"], timeout_s=LONG_S).is_success
    second.close()
    wait_until(lambda: not own.children())


def test_a_server_that_allows_fewer_channels_gets_more_connections(tmp_path: Path):
    server = ThrowawaySshd(tmp_path / "sshd", "MaxSessions 2\n")
    try:
        shell = reach(server)
        streams = [shell.stream(["cat"]) for _ in range(4)]
        for stream in streams:
            stream.send(b"x\n")
            assert stream.read_line(LONG_S) == b"x\n"
        assert len(server.children()) == 2
        shell.close()
    finally:
        server.stop()


def test_many_threads_use_one_shell(host: HostShell):
    failures: list[str] = []

    def work(number: int) -> None:
        for turn in range(5):
            got = host.run(["echo", f"{number} {turn}"], timeout_s=LONG_S).stdout
            if got != f"{number} {turn}\n".encode():
                failures.append(got.decode())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# -- bad days


def test_a_dropped_connection_is_unreachable_and_the_next_command_reconnects(own: ThrowawaySshd):
    shell = reach(own)
    stream = shell.stream(["cat"])
    assert stream.read_line(0.1) is None
    own.kill_connections()
    with pytest.raises(HostUnreachable, match=r"127\.0\.0\.1: the connection was lost"):
        stream.read_line(LONG_S)
    stream.close()
    assert shell.run(["echo", "back"], timeout_s=LONG_S).stdout == b"back\n"
    shell.close()


def test_a_command_whose_connection_drops_is_unreachable(own: ThrowawaySshd):
    shell = reach(own)
    begun = own.home / "begun"

    def drop() -> None:
        wait_until(begun.exists)
        own.kill_connections()

    dropping = threading.Thread(target=drop)
    dropping.start()
    with pytest.raises(HostUnreachable, match="unknown"):
        shell.run(["sh", "-c", 'touch "$1"; exec sleep 3600', "sh", str(begun)], timeout_s=LONG_S)
    dropping.join()
    shell.close()


def test_a_silent_connection_is_dropped_in_time(own: ThrowawaySshd):
    pipe = Pipe(own.port)
    own.known_hosts.write_text(f"[127.0.0.1]:{pipe.port} {own.public()}\n")
    shell = open_shell(
        own.target(port=pipe.port),
        options=own.options(keepalive_s=1.0, answer_s=4.0),
        connections=Connections(),
    )
    stream = shell.stream(["cat"])
    for _ in range(5):  # silent for longer than the limit, but it answers
        assert stream.read_line(1.2) is None
    stream.send(b"alive\n")
    assert stream.read_line(LONG_S) == b"alive\n"
    pipe.is_silent = True
    started = time.monotonic()
    with pytest.raises(HostUnreachable, match="no sign of life"):
        [stream.read_line(1.0) for _ in range(60)]
    assert time.monotonic() - started < 60
    stream.close()
    shell.close()
    pipe.close()


def test_a_stopped_server_process_is_left_for_a_new_connection(own: ThrowawaySshd):
    shell = reach(own, keepalive_s=1.0, answer_s=4.0)
    shell.run(["true"], timeout_s=LONG_S)
    pid = own.children()[0]
    os.kill(pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        assert shell.run(["true"], timeout_s=LONG_S).is_success
        assert 1 < time.monotonic() - started < 60
    finally:
        os.kill(pid, signal.SIGCONT)
    shell.close()


def test_a_closed_port_is_unreachable(sshd: ThrowawaySshd):
    target = sshd.target(port=free_port())
    with pytest.raises(
        HostUnreachable, match=r"127.0.0.1: port \d+: connection refused; is sshd running there"
    ):
        open_shell(target, options=sshd.options()).run(["true"], timeout_s=LONG_S)


def test_a_name_that_does_not_resolve_is_unreachable(sshd: ThrowawaySshd):
    target = sshd.target(address="no-such-host.invalid")
    with pytest.raises(HostUnreachable, match=r"no-such-host\.invalid: the name does not resolve"):
        open_shell(target, options=sshd.options()).run(["true"], timeout_s=LONG_S)


def test_a_port_that_says_nothing_is_given_up(sshd: ThrowawaySshd, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("orchestrator.connection.route.BANNER_TIMEOUT_S", 1)
    pipe = Pipe(sshd.port)
    pipe.is_silent = True
    started = time.monotonic()
    with pytest.raises(HostUnreachable):
        open_shell(sshd.target(port=pipe.port), options=sshd.options(connect_timeout_s=2)).run(
            ["true"], timeout_s=LONG_S
        )
    assert time.monotonic() - started < 60
    pipe.close()


def test_a_refused_login_says_as_whom_and_with_which_keys(sshd: ThrowawaySshd):
    other = sshd.make_key("other")
    with pytest.raises(HostDenied) as caught:
        open_shell(sshd.target(identity=str(other)), options=sshd.options()).run(["true"], timeout_s=LONG_S)
    assert (
        f'127.0.0.1: the login as "root" was refused; keys tried: {other} (refused)' in caught.value.message
    )
    assert "ssh-copy-id" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            lambda server: server.make_key("locked", passphrase="secret"),
            "has a passphrase; load it with ssh-add",
        ),
        (lambda server: server.home / "none", "no such file"),
        (lambda server: server.home / "ssh_config", "not a readable private key"),
    ],
)
def test_a_key_that_cannot_be_used_is_told(sshd: ThrowawaySshd, make, reason: str):
    with pytest.raises(HostDenied, match=reason):
        open_shell(sshd.target(identity=str(make(sshd))), options=sshd.options()).run(
            ["true"], timeout_s=LONG_S
        )


def test_a_key_with_a_passphrase_comes_from_the_agent(own: ThrowawaySshd, monkeypatch: pytest.MonkeyPatch):
    started = subprocess.run(["ssh-agent", "-s"], capture_output=True, text=True, check=True).stdout
    values = dict(
        part.split("=", 1) for part in started.replace("\n", "").split(";") if part.startswith("SSH_")
    )
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    try:
        subprocess.run(["ssh-add", "-q", own.home / "identity"], check=True)
        locked = own.home / "identity"
        subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-P", "", "-f", locked], check=True)
        (own.home / "ssh_config").write_text("IdentitiesOnly yes\n")
        assert reach(own).run(["echo", "in"], timeout_s=LONG_S).stdout == b"in\n"
    finally:
        os.kill(int(values["SSH_AGENT_PID"]), signal.SIGTERM)


# -- host keys


def test_an_unknown_key_is_refused_with_its_fingerprint_and_what_to_type(own: ThrowawaySshd):
    own.known_hosts.write_text("")
    with pytest.raises(HostKeyRefused) as caught:
        reach(own, accept_command="dflashctl launch --accept-new-host-key").run(["true"], timeout_s=LONG_S)
    assert caught.value.message == f"127.0.0.1: unknown host key {own.fingerprint()} (ssh-ed25519)"
    assert "dflashctl launch --accept-new-host-key" in str(caught.value.hint)
    assert own.known_hosts.read_text() == ""


def test_an_unknown_key_that_is_accepted_is_recorded_and_known_from_then_on(own: ThrowawaySshd):
    own.known_hosts.write_text("other ssh-ed25519 AAAA")  # without a newline at its end
    assert reach(own, accept_new_host_key=True).run(["true"], timeout_s=LONG_S).is_success
    assert own.known_hosts.read_text().splitlines() == [
        "other ssh-ed25519 AAAA",
        f"[127.0.0.1]:{own.port} {own.public()}",
    ]
    assert reach(own).run(["true"], timeout_s=LONG_S).is_success
    assert subprocess.run(
        ["ssh-keygen", "-F", f"[127.0.0.1]:{own.port}", "-f", own.known_hosts],
        capture_output=True,
        check=False,
    ).stdout


def test_a_file_for_known_hosts_is_made_private(own: ThrowawaySshd):
    own.known_hosts = own.home / "new" / "known_hosts"
    reach(own, accept_new_host_key=True).run(["true"], timeout_s=LONG_S)
    assert own.known_hosts.stat().st_mode & 0o777 == 0o600


def test_a_changed_key_is_refused_even_if_new_ones_are_accepted(own: ThrowawaySshd):
    own.make_key("host_key")
    own.restart()
    with pytest.raises(HostKeyRefused) as caught:
        reach(own, accept_new_host_key=True).run(["true"], timeout_s=LONG_S)
    assert f"the host key has changed: it showed {own.fingerprint()}" in caught.value.message
    assert f"{own.known_hosts}:1 has SHA256:" in caught.value.message
    command = str(caught.value.hint).split("remove the old key: ")[1]
    subprocess.run(command, shell=True, check=True, capture_output=True)
    assert reach(own, accept_new_host_key=True).run(["true"], timeout_s=LONG_S).is_success


def test_a_changed_key_of_another_type_is_refused(own: ThrowawaySshd):
    own.make_key("host_key", kind="ecdsa")
    own.restart()
    with pytest.raises(HostKeyRefused, match="has changed"):
        reach(own, accept_new_host_key=True).run(["true"], timeout_s=LONG_S)


def test_a_known_type_is_asked_for_though_the_host_has_others(tmp_path: Path):
    home = tmp_path / "sshd"
    server = ThrowawaySshd(home, f"HostKey {home}/second\n")
    server.make_key("second", kind="rsa")
    server.restart()
    try:
        server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {server.public('second')}\n")
        assert reach(server).run(["true"], timeout_s=LONG_S).is_success
    finally:
        server.stop()


def test_hashed_known_hosts_are_read(own: ThrowawaySshd):
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", own.known_hosts], check=True, capture_output=True)
    assert own.known_hosts.read_text().startswith("|1|")
    assert reach(own).run(["true"], timeout_s=LONG_S).is_success


def test_the_inventorys_fingerprint_is_enough_and_another_is_refused(own: ThrowawaySshd):
    own.known_hosts.write_text("")
    good = own.target(host_key=own.fingerprint())
    assert (
        open_shell(good, options=own.options(), connections=Connections())
        .run(["true"], timeout_s=LONG_S)
        .is_success
    )
    bad = own.target(host_key=own.fingerprint("identity"))
    with pytest.raises(HostKeyRefused, match="the inventory says SHA256:"):
        open_shell(bad, options=own.options(accept_new_host_key=True), connections=Connections()).run(
            ["true"], timeout_s=LONG_S
        )


def test_a_changed_key_is_refused_before_any_key_of_ours_is_shown(own: ThrowawaySshd):
    own.make_key("host_key")
    own.restart()
    with pytest.raises(HostKeyRefused):
        reach(own).run(["true"], timeout_s=LONG_S)
    assert "publickey" not in (own.home / "log").read_text()


# -- ssh config and jump hosts


def test_an_alias_of_the_ssh_config_works(own: ThrowawaySshd):
    (own.home / "ssh_config").write_text(
        f"Host box\n  HostName 127.0.0.1\n  Port {own.port}\n  User root\n"
        f"  IdentityFile {own.home}/identity\n  UserKnownHostsFile {own.known_hosts}\n"
    )
    target = own.target(address="box", port=None, identity=None)
    object.__setattr__(target, "known_hosts", None)
    assert (
        open_shell(target, options=own.options(), connections=Connections())
        .run(["true"], timeout_s=LONG_S)
        .is_success
    )


def jumping(own: ThrowawaySshd, far: ThrowawaySshd) -> None:
    """One known_hosts and one config for both."""
    own.known_hosts.write_text(own.known_hosts.read_text() + far.known_hosts.read_text())


@pytest.mark.parametrize("by", ["ssh config", "inventory"])
def test_a_jump_host_is_passed_and_its_key_is_checked_too(own: ThrowawaySshd, sshd: ThrowawaySshd, by: str):
    own.known_hosts.write_text(own.known_hosts.read_text() + f"[127.0.0.1]:{sshd.port} {sshd.public()}\n")
    (own.home / "ssh_config").write_text(
        f"Host hop\n  HostName 127.0.0.1\n  Port {own.port}\n  IdentityFile {own.home}/identity\n"
        f"  UserKnownHostsFile {own.known_hosts}\n"
        + (
            f"Host far\n  HostName 127.0.0.1\n  Port {sshd.port}\n  ProxyJump hop\n"
            if by == "ssh config"
            else ""
        )
    )
    host = {"name": "far", "user": "root", "identity": str(sshd.home / "identity")}
    if by == "ssh config":
        target = own.target(**host, address="far", port=None)
    else:
        target = own.target(**host, port=sshd.port)
        object.__setattr__(target, "jumps", (Host(name="hop", address="hop"),))
    shell = open_shell(target, options=own.options(), connections=Connections())
    assert (
        shell.run(["sh", "-c", "echo ${SSH_CONNECTION##* }"], timeout_s=LONG_S).stdout == b"%d\n" % sshd.port
    )
    shell.close()
    wait_until(lambda: not own.children())
    own.make_key("host_key")
    own.restart()
    with pytest.raises(HostKeyRefused, match="has changed"):
        open_shell(target, options=own.options(), connections=Connections()).run(["true"], timeout_s=LONG_S)


def test_a_proxy_command_of_the_ssh_config_works(own: ThrowawaySshd):
    proxy = own.home / "proxy.py"
    proxy.write_text(PROXY)
    (own.home / "ssh_config").write_text(f"ProxyCommand {sys.executable} {proxy} %p\n")
    shell = reach(own)
    assert shell.run(["echo", "a b"], timeout_s=LONG_S).stdout == b"a b\n"
    assert len(shell.run(["head", "-c", "3000000", "/dev/zero"], timeout_s=LONG_S).stdout) == 3_000_000
    shell.close()


def test_a_proxy_command_that_fails_is_told_in_its_own_words(own: ThrowawaySshd):
    (own.home / "ssh_config").write_text("ProxyCommand echo no way to %h:%p >&2; exit 1\n")
    with pytest.raises(HostUnreachable, match=rf"its ProxyCommand ended: no way to 127\.0\.0\.1:{own.port}"):
        reach(own).run(["true"], timeout_s=LONG_S)


def test_nothing_of_paramikos_own_log_reaches_the_terminal(own: ThrowawaySshd):
    (own.home / "try.py").write_text(
        "import sys, os, signal\n"
        "from pathlib import Path\n"
        "from orchestrator.connection import open_shell, ShellOptions\n"
        "from orchestrator.inventory import Target\n"
        "import json\n"
        "target = Target.from_json(json.loads(sys.argv[1]))\n"
        "shell = open_shell(target, options=ShellOptions(ssh_config=Path('/dev/null')))\n"
        "stream = shell.stream(['cat'])\n"
        "print('open', flush=True)\n"
        "sys.stdin.readline()\n"
        "try:\n    stream.read_line(300)\nexcept Exception as error:\n    print(type(error).__name__)\n"
    )
    argv = [sys.executable, str(own.home / "try.py"), json.dumps(own.target().to_json())]
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"open\n"
    own.kill_connections()
    assert process.communicate(b"\n", timeout=LONG_S) == (b"HostUnreachable\n", b"")


def test_agent_forwarding_stays_off(own: ThrowawaySshd):
    (own.home / "ssh_config").write_text("ForwardAgent yes\n")
    assert reach(own).run(["sh", "-c", 'echo "<$SSH_AUTH_SOCK>"'], timeout_s=LONG_S).stdout == b"<>\n"


def wait_until(is_so, limit_s: float = LONG_S) -> None:
    """Wait for what happens in another process."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_command_that_prints_without_end_is_cut_off(shell: Shell):
    with pytest.raises(GuestError, match="printed more than 64 MiB"):
        shell.run(["head", "-c", "200000000", "/dev/zero"], timeout_s=LONG_S)


def test_another_thread_may_close_a_stream(shell: Shell):
    stream = shell.stream(["cat"])
    threading.Timer(0.3, stream.close).start()
    started = time.monotonic()
    assert stream.read_line(LONG_S) == b""
    assert time.monotonic() - started < LONG_S - 1
