import pytest

from orchestrator.gates import Gates, closed_gates
from orchestrator.types.seen import Absent, Blind, Liveness, Present
from tests.builders import GONE, make_gpu, make_snapshot

GATES = Gates(gpu_floor_bytes=1 << 30, min_free_bytes=1 << 30)
DEAD = {"liveness": Present(GONE)}


def test_all_gates_are_open_when_the_old_attempt_is_gone():
    assert closed_gates(make_snapshot(**DEAD), (0,), GATES) == ()


def test_a_machine_without_a_driver_closes_no_gate_for_a_run_on_cpus():
    assert closed_gates(make_snapshot(**DEAD, gpus=Absent()), None, GATES) == ()


def test_gpus_that_were_not_read_yet_close_the_gate_even_for_a_run_that_names_none():
    (reason,) = closed_gates(make_snapshot(**DEAD, gpus=Blind("not looked yet")), None, GATES)
    assert "not looked yet" in reason.why


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"liveness": Blind("connection reset")}, "blind"),
        ({"liveness": Absent()}, "no proof"),
        ({"liveness": Present(Liveness(lock_held=True, pids=(), supervisor=False, session=False))}, "lock"),
        ({"liveness": Present(Liveness(lock_held=False, pids=(7,), supervisor=False, session=False))}, "7"),
        ({**DEAD, "container": "stopped"}, "stopped"),
        ({**DEAD, "container": "frozen"}, "frozen"),
        ({**DEAD, "container": "locked:backup"}, "locked:backup"),
        ({**DEAD, "stop_by": "user"}, "user"),
        ({**DEAD, "result": Present({"step": 1})}, "finished"),
        ({**DEAD, "disk_free_bytes": 1 << 20}, "1 MiB free"),
        ({**DEAD, "gpus": Blind("driver stuck")}, "cannot be read"),
        ({**DEAD, "gpus": Absent()}, "no driver"),
        ({**DEAD, "gpus": Present(())}, "missing"),
        ({**DEAD, "gpus": Present((make_gpu(0, problem="GPU is lost"),))}, "GPU is lost"),
        (
            {**DEAD, "gpus": Present((make_gpu(0, memory_used_bytes=5 << 30, pids=(42,)),))},
            "5.0 GiB by pid 42",
        ),
    ],
)
def test_each_gate_closes_and_says_why(changes, says):
    (reason,) = closed_gates(make_snapshot(**changes), (0,), GATES)
    assert says in reason.why


def test_a_gpu_that_is_not_the_runs_does_not_close_its_gate():
    busy = make_gpu(1, memory_used_bytes=90 << 30)
    assert closed_gates(make_snapshot(**DEAD, gpus=Present((make_gpu(0), busy))), (0,), GATES) == ()


def test_a_gate_keeps_its_name_while_its_numbers_move():
    floors = [make_gpu(0, memory_used_bytes=size << 30) for size in (5, 6)]
    one, two = (closed_gates(make_snapshot(**DEAD, gpus=Present((gpu,))), (0,), GATES)[0] for gpu in floors)
    assert one.gate == two.gate
    assert one.why != two.why
