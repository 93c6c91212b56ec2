"""The first hop: what the ssh config makes of it, and a real port of this machine."""

from __future__ import annotations

import socket
import threading

import pytest

from orchestrator.connection.firsthop import first_hop
from orchestrator.doctor import near
from orchestrator.inventory import Host, Target

CONFIG = """\
Host pve
  HostName 10.1.2.6
  Port 2022
Host far
  ProxyJump root@gate:2200
Host gate
  HostName gate.example
Host tunnel
  ProxyCommand nc %h %p
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config"
    path.write_text(CONFIG)
    return path


def host(address: str, port: int | None = None) -> Host:
    return Host(name="h", address=address, port=port)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("pve", ("10.1.2.6", 2022, None, False)),
        ("192.0.2.1", ("192.0.2.1", 22, None, False)),
        ("far", ("gate.example", 2200, "gate", False)),
        ("tunnel", ("tunnel", 22, "nc", True)),
    ],
)
def test_where_the_way_begins(config, address, expected):
    assert tuple(first_hop(host(address), (), config)) == expected


def test_a_port_and_a_jump_of_the_inventory_win(config):
    assert first_hop(host("pve", port=9), (), config).port == 9
    assert first_hop(host("pve"), (host("gate"),), config) == ("gate.example", 22, "gate", False)


def look(port: int):
    return near.hop_of(Target(host=host("127.0.0.1", port=port), ct=200))


def test_a_port_that_greets():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            with server.accept()[0] as link:
                link.sendall(b"SSH-2.0-test\r\n")

        threading.Thread(target=greet, daemon=True).start()
        seen = look(server.getsockname()[1])
    assert seen is not None
    assert (seen.banner, seen.addresses, seen.tcp_error) == ("SSH-2.0-test", ("127.0.0.1",), None)


def test_a_port_that_is_silent_and_one_that_refuses(monkeypatch):
    monkeypatch.setattr(near, "BANNER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        silent = look(port)
    assert silent is not None
    assert silent.tcp_s is not None
    assert silent.banner is None
    refused = look(port)
    assert refused is not None
    assert refused.tcp_error == "connection refused"


def test_a_name_that_is_none(monkeypatch):
    def nobody(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    seen = near.hop_of(Target(host=host("no-such-name.invalid"), ct=200))
    assert seen is not None
    assert (seen.resolve_error, seen.addresses) == ("Name or service not known", ())


def test_this_machine_itself_has_no_hop():
    assert near.hop_of(Target(host=None, ct=None)) is None
