"""What is asked, and what is not: a frozen container is never entered, a refusal is a reading."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from orchestrator.clock import SystemClock
from orchestrator.connection.shell import Result
from orchestrator.doctor import collect, examine, exit_code
from orchestrator.errors import CommandTimeout, Exit, HostUnreachable
from orchestrator.inventory import Host, Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.doctor import Readings
    from orchestrator.site import Site

FACTS = b"uid 1000\nuser al\npct /usr/sbin/pct\npct-version 6.1.2\nmodule \ndevices \n"
RUNNING = (0, b"status: running\n", b"")


class FakeSite:
    """A host that answers by program; whoever enters its container is remembered, and gets nothing."""

    def __init__(self, answers: dict[str, tuple[int, bytes, bytes]], become: tuple[str, ...] | None) -> None:
        host = Host(name="pve", address="127.0.0.1", port=1)
        self.target = Target(host=host, ct=200, become=become)
        self.host_key = "127.0.0.1"
        self.entered: list[tuple[str, ...]] = []
        self.rooted: list[str] = []
        self._answers = {"sh": (0, FACTS, b""), "true": (0, b"", b""), **answers}

    def ask_host(self, argv: Sequence[str], *, is_root: bool, timeout_s: float) -> Result:
        del timeout_s
        if is_root:
            self.rooted.append(argv[0])
        if argv[0] not in self._answers:
            raise CommandTimeout(f"no answer to {argv[0]}")
        code, out, err = self._answers[argv[0]]
        return Result(argv=tuple(argv), exit_code=code, stdout=out, stderr=err, duration_s=0.01)

    def shell(self) -> FakeSite:
        return self

    name = "127.0.0.1/200"

    def run(self, argv: Sequence[str], *, stdin: object = None, timeout_s: float) -> Result:
        del stdin, timeout_s
        self.entered.append(tuple(argv))
        raise HostUnreachable("127.0.0.1: the connection was lost")


def look(site: FakeSite) -> Readings:
    return collect(cast("Site", site), SystemClock())


@pytest.mark.parametrize("state", [b"State:          FROZEN\n", b"State: STOPPED\n"])
def test_who_would_be_held_is_not_sent_in(state):
    site = FakeSite({"pct": RUNNING, "lxc-info": (0, state, b"")}, ("sudo", "-n"))
    read = look(site)
    assert site.entered == []
    assert read.entered is None
    assert read.container is not None
    assert read.container.is_frozen is (b"FROZEN" in state)
    assert sorted(site.rooted) == ["lxc-info", "pct"]


def test_a_lxc_info_that_may_not_be_asked_keeps_nobody_out():
    site = FakeSite({"pct": RUNNING, "lxc-info": (1, b"", b"sudo: a password is required\n")}, ("sudo", "-n"))
    read = look(site)
    assert site.entered
    assert read.container is not None
    assert (read.container.status, read.container.is_frozen) == ("running", None)
    assert read.entered is not None
    assert read.entered.trouble is not None
    assert read.entered.trouble.kind == "host_unreachable"
    assert read.inside is None


def test_a_sudo_that_refuses_is_one_fault_with_the_line_for_sudoers():
    refused = (1, b"", b"sudo: a password is required\n")
    read = look(FakeSite({"pct": refused, "lxc-info": refused}, ("sudo", "-n")))
    assert read.container is not None
    assert read.container.trouble is not None
    assert read.container.trouble.kind == "host_denied"


def test_a_host_that_answers_nothing_is_blind():
    site = FakeSite({}, None)
    del site._answers["sh"]
    read = look(site)
    assert read.login.trouble is not None
    assert read.login.trouble.kind == "command_timeout"
    assert read.host is None
    assert exit_code(examine(read)) is Exit.UNREACHABLE
