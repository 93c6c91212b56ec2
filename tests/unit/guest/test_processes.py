"""Which processes are of a run, on process tables made by hand."""

import os
from pathlib import Path
from typing import Any

from orchestrator.guest.processes import Process, Roots, members

RUN = Path("/state/runs/r")


def table(*rows: tuple[Any, ...]) -> dict[int, Process]:
    """Rows of (pid, ppid, sid) or with a mark; ours is there too, as a child of 1."""
    found = {
        1: Process(1, 0, 1, 5, is_zombie=False),
        os.getpid(): Process(os.getpid(), 1, 1, 5, is_zombie=False),
    }
    for pid, ppid, sid, *mark in rows:
        found[pid] = Process(pid, ppid, sid, 7, False, *mark)
    return found


def pids(rows: list[tuple[Any, ...]], known: Roots | None = None) -> tuple[int, ...]:
    return members(table(*rows), RUN, known or Roots()).pids


def test_a_marked_process_and_its_descendants_are_of_the_run():
    assert pids([(10, 1, 10, str(RUN)), (11, 10, 11), (12, 11, 12)]) == (10, 11, 12)


def test_another_runs_mark_is_not_ours():
    assert pids([(10, 1, 10, "/state/runs/r2"), (11, 1, 11, "/state/runs/r/"), (12, 1, 12)]) == ()


def test_all_below_the_supervisor_is_of_the_run_and_it_is_not():
    rows = [(20, 1, 20), (21, 20, 21), (22, 21, 22), (23, 20, 23)]
    found = members(table(*rows), RUN, Roots(supervisor=20))
    assert (found.pids, found.has_supervisor) == ((21, 22, 23), True)


def test_the_session_of_a_dead_leader_is_of_the_run():
    assert pids([(10, 1, 9, str(RUN)), (11, 1, 9), (12, 1, 8)]) == (10, 11)


def test_the_shell_of_a_person_is_not_of_the_run():
    assert pids([(9, 1, 9), (10, 9, 9, str(RUN)), (11, 9, 9)]) == (10,)


def test_what_shares_the_supervisors_session_is_not_of_the_run_for_that():
    assert pids([(20, 1, 20), (21, 20, 20), (22, 1, 20)], Roots(supervisor=20)) == (21,)


def test_a_known_trainer_without_a_mark_is_of_the_run():
    assert pids([(10, 1, 10), (11, 1, 10)], Roots(trainer=10)) == (10, 11)


def test_the_guest_its_ancestors_and_init_are_never_of_the_run():
    rows = {
        1: Process(1, 0, 1, 5, False, str(RUN)),
        30: Process(30, 1, 30, 5, False, str(RUN)),
        os.getpid(): Process(os.getpid(), 30, 30, 5, False, str(RUN)),
        31: Process(31, 30, 30, 5, False, str(RUN)),
    }
    assert members(rows, RUN, Roots()).pids == (31,)


def test_a_zombie_is_not_alive_but_its_children_are_of_the_run():
    rows = table((11, 10, 11))
    rows[10] = Process(10, 1, 10, 7, True, str(RUN))
    assert members(rows, RUN, Roots()).pids == (11,)
