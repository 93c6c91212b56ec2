"""A fault of one run: it is told once, that run does not act for a while, and the others go on."""

from __future__ import annotations

import pytest

from orchestrator.errors import RecordError
from orchestrator.watch.faults import AFTER_FAULT_S, Faults
from tests.unit.watch.bench import Bench, FakeClock


def test_a_fault_is_told_once_and_holds_its_own_run_for_a_while(record):
    bench, clock = Bench(record, runs=("dflash", "other")), FakeClock()
    faults, other = Faults(clock), bench.watcher.runs[1]
    for _ in range(3):
        with faults.contained(bench.run, "a turn failed", is_deafening=False):
            raise KeyError("step")
    assert bench.told("fault") == ["a turn failed: KeyError('step')"]
    assert (faults.is_recent(bench.run), faults.is_recent(other)) == (True, False)
    clock.sleep(AFTER_FAULT_S)
    assert not faults.is_recent(bench.run)


@pytest.mark.parametrize("error", [RecordError("the disk is full"), BrokenPipeError()])
def test_without_a_record_or_an_output_there_is_no_going_on(bench, error):
    faults = Faults(FakeClock())
    with pytest.raises(type(error)), faults.contained(bench.run, "a turn failed"):
        raise error
    assert not faults.is_recent(bench.run)


def test_what_ends_well_is_no_fault(bench):
    faults = Faults(FakeClock())
    with faults.contained(bench.run, "a turn failed"):
        pass
    assert not faults.is_recent(bench.run)
    assert bench.told("fault") == []
