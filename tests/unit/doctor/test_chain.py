"""The chain as a whole: a healthy place is ready, one fault is one alarm, and unknown is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.doctor import Status, examine, exit_code
from orchestrator.doctor.chain import CHECKS
from orchestrator.doctor.readings import Container, Entered, Hop, HostFacts, Login, Readings, Trouble
from orchestrator.errors import Exit
from tests.unit.doctor.readings import TORCH, healthy, inside, within


def statuses(read: Readings) -> dict[str, Status]:
    return {finding.check: finding.status for finding in examine(read)}


def named(read: Readings, status: Status) -> set[str]:
    return {check for check, each in statuses(read).items() if each is status}


def test_a_healthy_place_is_ready_and_every_check_is_made():
    found = examine(healthy(inside=inside(torch=replace(TORCH, version="2.14.0"))))
    assert [finding.check for finding in found] == [check.name for check in CHECKS]
    assert {f.check: f.seen for f in found if f.status is not Status.OK} == {
        "known bad": next(f.seen for f in found if f.check == "known bad")
    }
    assert exit_code(found) is Exit.OK


def test_what_a_check_rests_on_stands_before_it():
    seen: set[str] = set()
    for check in CHECKS:
        assert {*check.rests_on, *check.needs} <= seen, check.name
        seen.add(check.name)


GONE = Trouble(kind="host_unreachable", message="10.1.2.6: port 22: connection refused")


@pytest.mark.parametrize(
    ("read", "fault", "code"),
    [
        (healthy(hop=Hop(name="pve", port=22, resolve_error="Name or service not known"),
                 login=Login(trouble=GONE)), "name", Exit.UNREACHABLE),
        (healthy(hop=Hop(name="pve", port=22, addresses=("10.1.2.6",), tcp_error="connection refused"),
                 login=Login(trouble=GONE)), "tcp", Exit.UNREACHABLE),
        (healthy(login=Login(trouble=Trouble(kind="host_key_refused", message="changed"))),
         "host key", Exit.UNREACHABLE),
        (healthy(login=Login(trouble=Trouble(kind="host_denied", message="refused"))),
         "login", Exit.UNREACHABLE),
        (healthy(host=HostFacts(uid=1000, user="al", pct="/usr/sbin/pct")), "root", Exit.NOT_READY),
        (healthy(container=Container(
            trouble=Trouble(kind="container_unavailable", message="pve/200: no such container"))),
         "exists", Exit.NOT_READY),
        (healthy(container=Container(status="stopped", is_frozen=False)), "running", Exit.NOT_READY),
        (healthy(container=Container(status="running", lock="backup", is_frozen=True)),
         "frozen", Exit.NOT_READY),
        (healthy(entered=Entered(
            trouble=Trouble(kind="container_unavailable", message="pve/200: cannot be entered"))),
         "enter", Exit.NOT_READY),
    ],
)  # fmt: skip
def test_a_broken_link_is_one_alarm_and_all_behind_it_is_skipped(read, fault, code):
    found = examine(read)
    assert {finding.check for finding in found if finding.status is Status.BAD} == {fault}
    names = [check.name for check in CHECKS]
    behind = names[names.index("enter") :] if fault != "enter" else names[names.index("first byte") :]
    assert set(behind) <= {finding.check for finding in found if finding.status is Status.SKIPPED}
    assert {f.seen for f in found if f.check in behind} == {f"it rests on `{fault}`"}
    assert exit_code(found) is code


@pytest.mark.parametrize("version", [None, "3.8.10"])
def test_without_a_python_the_guest_is_not_a_second_alarm(version):
    read = healthy(
        entered=Entered(seconds=0.1, python=version, tmux="3.3a"),
        inside=None,
        inside_trouble=Trouble(kind="guest_error", message="python3 cannot be started"),
    )
    assert named(read, Status.BAD) == {"python3"}
    assert statuses(read)["guest"] is Status.SKIPPED
    assert statuses(read)["disk"] is Status.SKIPPED


def test_a_fault_of_the_gpus_leaves_the_rest_judged():
    read = within(nodes=(), cards=None, has_driver=True)
    assert named(read, Status.BAD) == {"gpu nodes"}
    assert named(read, Status.SKIPPED) == {"driver", "gpus", "holders", "cuda"}
    assert statuses(read)["torch"] is Status.OK


def test_a_guest_that_did_not_answer_is_blind_and_no_fault():
    late = Trouble(kind="command_timeout", message="no answer within 45 s")
    read = healthy(inside=None, skew=None, inside_trouble=late)
    assert named(read, Status.BAD) == set()
    assert statuses(read)["guest"] is Status.UNKNOWN
    assert exit_code(examine(read)) is Exit.UNREACHABLE


def test_a_connection_lost_on_the_way_says_nothing_of_the_container():
    read = healthy(entered=Entered(trouble=GONE), inside=None, inside_trouble=GONE)
    assert named(read, Status.BAD) == set()
    assert statuses(read)["enter"] is Status.UNKNOWN
    assert exit_code(examine(read)) is Exit.UNREACHABLE


def test_nothing_read_at_all_is_no_fault():
    read = Readings(
        ct=200, hop=Hop(name="pve", port=22, addresses=("10.1.2.6",), tcp_s=0.1, banner="SSH-2.0-x")
    )
    assert named(read, Status.BAD) == set()


def test_a_guest_that_could_read_nothing_is_no_fault():
    from orchestrator.doctor.readings import Inside

    read = healthy(inside=Inside(), host=HostFacts(uid=0), skew=None)
    assert named(read, Status.BAD) == set()
    assert exit_code(examine(read)) is Exit.OK


def test_this_machine_has_no_ssh_and_no_container_to_check():
    found = statuses(healthy(hop=None, ct=None, container=None))
    assert not {"tcp", "host key", "login", "root", "pct", "exists", "running", "lock"} & set(found)
    assert found["enter"] is Status.OK
