"""The links of the way: for each what is right, what is a fault, and what is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.doctor import Status, way
from orchestrator.doctor.readings import Container, Entered, Hop, HostFacts, Login, Trouble
from tests.unit.doctor.readings import healthy

HOP = healthy().hop or Hop(name="", port=0)
UP = Container(status="running", is_frozen=False)
LATE = Trouble(kind="command_timeout", message="no answer within 10 s")
DENIED = Trouble(kind="host_denied", message="sudo said: a password is required")
AL = HostFacts(uid=1000, user="al", pct="/usr/sbin/pct")
SUDO = ("sudo", "-n")


def trouble(kind: str, message: str = "it said no") -> Login:
    return Login(trouble=Trouble(kind=kind, message=message))


@pytest.mark.parametrize(
    ("check", "changes", "status", "told"),
    [
        ("name", {}, Status.OK, "10.1.2.6, an address"),
        ("name", {"hop": replace(HOP, name="pve")}, Status.OK, "pve is 10.1.2.6"),
        ("name", {"hop": None}, Status.OK, "no ssh"),
        ("name", {"hop": replace(HOP, resolve_error="Name or service not known")}, Status.BAD, "resolve"),
        ("name", {"hop": replace(HOP, addresses=())}, Status.UNKNOWN, "resolver"),
        ("name", {"hop": Hop(name="pve", port=22, via="nc", is_command=True)}, Status.SKIPPED, "nc"),
        ("tcp", {}, Status.OK, "4 ms, SSH-2.0-OpenSSH_9.2"),
        ("tcp", {"hop": replace(HOP, tcp_error="connection refused")}, Status.BAD, "port 22: connection ref"),
        ("tcp", {"hop": replace(HOP, banner="HTTP/1.1 400")}, Status.BAD, "no sshd"),
        ("tcp", {"hop": replace(HOP, banner=None)}, Status.WARN, "no banner"),
        ("tcp", {"hop": replace(HOP, tcp_s=None)}, Status.UNKNOWN, "not tried"),
        ("host_key", {}, Status.OK, "known"),
        ("host_key", {"login": trouble("host_key_refused", "pve: changed")}, Status.BAD, "changed"),
        ("host_key", {"login": trouble("host_denied")}, Status.OK, "known"),
        ("host_key", {"login": trouble("host_unreachable")}, Status.UNKNOWN, "handshake"),
        ("login", {}, Status.OK, "as root in 0.3 s"),
        ("login", {"login": trouble("host_denied")}, Status.BAD, "said no"),
        ("login", {"login": trouble("host_unreachable")}, Status.BAD, "said no"),
        ("login", {"login": trouble("command_timeout")}, Status.UNKNOWN, "said no"),
        ("root", {}, Status.OK, "root"),
        ("root", {"host": AL, "become": SUDO}, Status.OK, "al by `sudo -n`"),
        ("root", {"host": AL}, Status.BAD, "al ALL=(root) NOPASSWD: /usr/sbin/pct"),
        ("root", {"host": AL, "become": SUDO, "container": Container(trouble=DENIED)}, Status.BAD,
         "password is required; /etc/sudoers.d/dflashctl: al ALL=(root) NOPASSWD: /usr/sbin/pct"),
        ("root", {"host": AL, "become": SUDO, "container": Container(trouble=LATE)}, Status.UNKNOWN, "not"),
        ("root", {"host": HostFacts()}, Status.UNKNOWN, "who we are"),
        ("pct", {}, Status.OK, "/usr/sbin/pct, pve-container 6.1.2"),
        ("pct", {"host": HostFacts(uid=0), "container": Container(
            trouble=Trouble(kind="container_unavailable", message="pve/200: there is no pct"))},
         Status.BAD, "is it the Proxmox host"),
        ("pct", {"host": None}, Status.UNKNOWN, "did not say"),
        ("exists", {}, Status.OK, "CT 200"),
        ("exists", {"container": Container(
            trouble=Trouble(kind="container_unavailable", message="no such container", hint="`pct list`"))},
         Status.BAD, "CT 200 is not on this host; `pct list`"),
        ("exists", {"container": Container(trouble=LATE)}, Status.UNKNOWN, "no answer"),
        ("running", {}, Status.OK, "running"),
        ("running", {"container": Container(status="stopped")}, Status.BAD, "`pct start 200`"),
        ("running", {"container": Container()}, Status.UNKNOWN, "not told"),
        ("unfrozen", {}, Status.OK, "not frozen"),
        ("unfrozen", {"container": replace(UP, is_frozen=True)}, Status.BAD, "lxc-unfreeze -n 200"),
        ("unfrozen", {"container": replace(UP, is_frozen=True, lock="backup")}, Status.BAD, "by a backup"),
        ("unfrozen", {"container": replace(UP, is_frozen=None)}, Status.UNKNOWN, "did not say"),
        ("unlocked", {}, Status.OK, "not locked"),
        ("unlocked", {"container": replace(UP, lock="snapshot")}, Status.WARN, "snapshot"),
        ("unlocked", {"container": Container()}, Status.UNKNOWN, "not told"),
        ("enter", {}, Status.OK, "in the container"),
        ("enter", {"entered": Entered(trouble=DENIED)}, Status.BAD, "password"),
        ("enter", {"entered": Entered(trouble=LATE)}, Status.UNKNOWN, "no answer"),
        ("enter", {"entered": None}, Status.UNKNOWN, "no command"),
        ("first_byte", {}, Status.OK, "900 ms, 4 ms of it"),
        ("first_byte", {"entered": Entered(seconds=4.2)}, Status.WARN, "4200 ms"),
        ("first_byte", {"entered": Entered()}, Status.UNKNOWN, "not measured"),
    ],
)  # fmt: skip
def test_each_link_of_the_way(check, changes, status, told):
    verdict = getattr(way, check)(healthy(**changes))
    assert verdict.status is status
    assert told in f"{verdict.seen}; {verdict.fix}"
    assert verdict.fix is not None or status is not Status.BAD or check in ("host_key", "login", "enter")


def test_what_a_jump_host_finds_is_said_to_be_its():
    assert "jump host gate" in way.name(healthy(hop=replace(HOP, name="gate", via="gate"))).seen
