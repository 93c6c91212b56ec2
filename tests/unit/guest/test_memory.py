"""The count of OOM kills, in both versions of cgroups; a count that is not told is not zero."""

from __future__ import annotations

import pytest

from orchestrator.guest import memory

EVENTS = "low 0\nhigh 0\nmax 12\noom 3\noom_kill {}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"


@pytest.fixture
def place(tmp_path):
    (tmp_path / "own").write_text("5:memory:/lxc/200/ns\n0::/init.scope\n")
    return tmp_path


def count(place) -> int | None:
    return memory.oom_kills(place, place / "own")


def write(path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_container_reads_the_root_of_its_own_tree(place):
    write(place / "memory.events", EVENTS.format(2))
    write(place / "init.scope" / "memory.events", EVENTS.format(1))
    assert count(place) == 2


def test_a_machine_reads_the_group_of_the_process_itself(place):
    write(place / "init.scope" / "memory.events", EVENTS.format(1))
    assert count(place) == 1


def test_the_older_hierarchy_is_read_too(place):
    write(place / "memory" / "lxc/200/ns" / "memory.oom_control", CONTROL.format(4))
    assert count(place) == 4


def test_where_its_own_group_is_not_to_be_seen_its_root_is(place):
    write(place / "memory" / "memory.oom_control", CONTROL.format(5))
    assert count(place) == 5


def test_what_is_not_told_is_unknown_and_not_zero(place):
    assert count(place) is None
    write(place / "memory.events", "low 0\n")
    assert count(place) is None
    assert memory.oom_kills(place, place / "missing") is None


def test_kills_are_counted_from_a_beginning(monkeypatch):
    monkeypatch.setattr(memory, "oom_kills", lambda: 7)
    assert memory.since(5) == 2
    assert memory.since(9) == 0, "the group was made anew"
    assert memory.since(None) is None
    monkeypatch.setattr(memory, "oom_kills", lambda: None)
    assert memory.since(5) is None
