from __future__ import annotations

import pytest

from orchestrator.errors import RecordError
from orchestrator.fleet.board import Fleet
from orchestrator.fleet.health import health
from orchestrator.types.failure import RunState
from tests.builders import NOW, ago
from tests.unit.fleet.test_board import make_card


def why(*cards, fault=None, turned_s_ago=0.1, acting=False) -> tuple[str, ...]:
    return health(Fleet(1, NOW, cards), NOW, acting=acting, fault=fault, turned_s_ago=turned_s_ago).why


def test_a_watch_that_turns_and_sees_all_is_well():
    assert why() == ()
    assert why(make_card(looked_at=ago(4)), make_card(id=2, state=RunState.DEAD, looked_at=ago(1))) == ()


def test_what_has_ended_need_not_be_seen():
    assert why(make_card(state=RunState.FINISHED, has_ended=True)) == ()
    assert why(make_card(state=RunState.STOPPED, has_ended=True, blind="no route", looked_at=ago(9000))) == ()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"looked_at": ago(1), "blind": "connection refused"}, "is not seen: connection refused"),
        ({"looked_at": ago(1), "state": RunState.BLIND}, "is not seen: blind"),
        ({"looked_at": ago(1), "state": RunState.CONTAINER_FROZEN}, "is not seen: container_frozen"),
        ({"looked_at": ago(1), "state": RunState.CONTAINER_STOPPED}, "is not seen: container_stopped"),
        ({"looked_at": None}, "is not seen: no look yet"),
        ({"looked_at": ago(31)}, "is not seen: healthy"),
    ],
)
def test_a_blind_watcher_is_not_healthy(changes, told):
    (line,) = why(make_card(**changes), make_card(id=2, name="b", looked_at=ago(1)))
    assert line == f"a at here {told}"


def test_a_run_that_is_only_looked_at_by_a_watch_that_acts_is_not_cared_for():
    remark = "only looked at: b.yaml:3: unknown key"
    let_be = make_card(id=2, name="b", looked_at=ago(1), remark=remark)
    cared_for = make_card(looked_at=ago(1), is_acting=True, remark="the disk fills")
    assert why(cared_for, let_be, acting=True) == (f"b at here is {remark}",)
    assert why(cared_for, let_be, acting=False) == (), "that is what was asked for"
    assert why(make_card(state=RunState.FINISHED, has_ended=True), acting=True) == ()
    (line,) = why(make_card(looked_at=ago(99), remark=remark), acting=True)
    assert "is not seen" in line, "one reason a run"


def test_a_watch_that_stands_still_or_has_ended_is_not_healthy():
    assert why(turned_s_ago=None) == ("the watch has not turned yet",)
    assert why(turned_s_ago=31.0) == ("the watch has not turned for 31 s",)
    assert why(fault=RecordError("disk full"), turned_s_ago=500.0) == ("the watch ended: disk full",)
