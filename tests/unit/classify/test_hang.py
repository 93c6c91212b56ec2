"""A hang is decided by the phase's limit and by nothing that may be somebody else's doing."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.classify import Limits, diagnose
from orchestrator.types.failure import Role, RunState
from orchestrator.types.seen import Blind, GpuStill, Phase, Present
from orchestrator.types.snapshot import LogReading
from tests.builders import ago, make_gpu, make_heartbeat, make_snapshot

LIMITS = Limits(train_s=60, eval_s=60, checkpoint_s=60, compile_s=60, load_s=60, train_steps=5)
SPINS = GpuStill(index=0, utilization_pct=(100.0, 100.0), power_w=(118.0, 121.0), stepping_w=430.0)
IDLES = GpuStill(index=0, utilization_pct=(0.0, 0.0), power_w=(70.0, 71.0), stepping_w=430.0)
BURSTS = GpuStill(index=0, utilization_pct=(0.0, 97.0), power_w=(80.0, 400.0), stepping_w=430.0)


def still(phase: Phase = Phase.TRAIN, silent_s: float = 100, **changes):
    beat = make_heartbeat(phase=phase, step_s=changes.pop("step_s", None))
    return make_snapshot(heartbeat=Present(beat), heartbeat_seen_at=ago(silent_s), **changes)


def state(snapshot, limits=LIMITS):
    return diagnose(snapshot, limits).state


def test_full_gpus_at_a_frozen_step_are_a_hang_and_its_evidence_says_each_reading():
    found = diagnose(still(gpus_still=(SPINS,), log_grew_at=ago(95)), LIMITS)
    assert (found.state, found.confidence) == (RunState.HUNG, 0.95)
    assert "its GPUs spin at 100 %" in found.summary
    assert [(each.source, each.text) for each in found.evidence] == [
        ("heartbeat", "no progress in train at step 40 for 1m40s"),
        ("gpu", "GPU 0: 100 % at 118 to 121 W since, 430 W while it stepped"),
        ("log", "last printed 1m35s ago"),
        ("host", "the container is running"),
    ]
    assert {each.role for each in found.evidence[1:]} == {Role.CONFIRMATION}


def test_idle_gpus_at_a_frozen_step_are_a_hang_too():
    found = diagnose(still(gpus_still=(IDLES,)), LIMITS)
    assert (found.state, found.confidence) == (RunState.HUNG, 0.95)
    assert "its GPUs do nothing" in found.summary


def test_the_gpu_that_does_nothing_while_the_others_spin_is_named():
    quiet = replace(IDLES, index=1)
    found = diagnose(still(gpus_still=(SPINS, quiet, replace(SPINS, index=2))), LIMITS)
    assert (found.state, found.confidence) == (RunState.HUNG, 0.95)
    assert "GPU 1 does nothing while the others spin" in found.summary


def test_a_gpu_that_works_beside_one_that_does_nothing_is_not_said_to_wait():
    busy = replace(SPINS, index=1, power_w=(420.0, 440.0))
    found = diagnose(still(gpus_still=(IDLES, busy)), LIMITS)
    assert (found.state, found.confidence) == (RunState.HUNG, 0.9)
    assert "nothing while" not in found.summary


def test_a_gpu_that_computes_at_full_power_is_not_said_to_spin():
    busy = replace(SPINS, power_w=(420.0, 440.0))
    found = diagnose(still(gpus_still=(busy,)), LIMITS)
    assert (found.state, found.confidence) == (RunState.HUNG, 0.9)
    assert "spin" not in found.summary


def test_printing_is_no_progress_in_training():
    assert state(still(log_grew_at=ago(1), gpus_still=(BURSTS,))) is RunState.HUNG


@pytest.mark.parametrize("gpus", [(IDLES,), (), (SPINS,)])
def test_idle_gpus_during_a_checkpoint_within_its_limit_are_no_hang(gpus):
    assert state(still(Phase.CHECKPOINT, 55, gpus_still=gpus)) is RunState.HEALTHY


@pytest.mark.parametrize("signs", [{"log_grew_at": ago(5)}, {"gpus_still": (BURSTS,)}])
@pytest.mark.parametrize("phase", [Phase.EVAL, Phase.CHECKPOINT, Phase.COMPILE])
def test_a_run_at_work_beside_its_steps_gets_twice_its_limit_and_no_more(phase, signs):
    assert state(still(phase, 100)) is RunState.HUNG
    assert state(still(phase, 100, **signs)) is RunState.HEALTHY
    assert state(still(phase, 121, **signs)) is RunState.HUNG


def test_steps_that_only_the_log_or_the_metrics_tell_are_progress():
    told = still(step_seen_at=ago(2))
    assert state(told) is RunState.HEALTHY
    assert state(replace(told, step_seen_at=ago(90))) is RunState.HUNG


def test_a_long_step_is_no_hang():
    assert state(still(silent_s=100, step_s=25.0)) is RunState.HEALTHY
    assert state(still(silent_s=130, step_s=25.0)) is RunState.HUNG


def test_a_phase_may_take_three_times_what_it_took_before_and_never_less_than_its_limit():
    slow = replace(LIMITS, median_phase_s={Phase.EVAL: 50.0})
    assert state(still(Phase.EVAL, 140), slow) is RunState.HEALTHY
    assert state(still(Phase.EVAL, 160), slow) is RunState.HUNG
    fast = replace(LIMITS, median_phase_s={Phase.EVAL: 1.0})
    assert state(still(Phase.EVAL, 55), fast) is RunState.HEALTHY


@pytest.mark.parametrize("container", ["locked:backup", "locked:snapshot", "frozen"])
def test_a_container_that_is_locked_or_frozen_holds_no_hung_run(container):
    assert state(still(silent_s=10_000, container=container)) is not RunState.HUNG


def test_what_cannot_be_seen_is_never_hung():
    assert state(still(silent_s=10_000, liveness=Blind("cut"))) is RunState.BLIND


def test_the_gpus_of_the_moment_are_told_if_nothing_was_tracked():
    gpu = make_gpu(0, utilization_pct=100.0, power_w=120.0)
    found = diagnose(still(gpus=Present((gpu,)), log=LogReading()), LIMITS)
    assert found.evidence[1].text == "GPU 0: 100 % at 120 W"
    assert found.evidence[2].text == "nothing printed since it is watched"


spans = st.tuples(st.floats(0, 100), st.floats(0, 100)).map(lambda pair: (min(pair), max(pair)))
stills = st.lists(
    st.builds(
        GpuStill,
        index=st.integers(0, 7),
        utilization_pct=spans,
        power_w=st.none() | spans,
        stepping_w=st.none() | st.floats(0, 700),
    ),
    max_size=8,
).map(tuple)
ages = st.none() | st.floats(-1000, 10_000).map(ago)


@given(
    st.sampled_from(list(Phase)), st.floats(0, 10_000), ages, ages, stills, st.sampled_from([None, "running"])
)
def test_whatever_else_is_read_only_a_limit_that_passed_makes_a_hang_and_twice_it_always_does(
    phase, silent_s, grew, told, gpus, container
):
    snapshot = still(
        phase, silent_s, log_grew_at=grew, step_seen_at=told, gpus_still=gpus, container=container
    )
    limit_s = LIMITS.limit_s(phase)
    signs = [ago(silent_s), told] + ([grew] if phase in (Phase.INIT, Phase.LOAD) else [])
    silence = (snapshot.now - max(each for each in signs if each is not None)).total_seconds()
    found = diagnose(snapshot, LIMITS)
    if found.state is RunState.HUNG:
        assert silence > limit_s
        assert 0.5 < found.confidence < 1
    assert silence <= 2 * limit_s or found.state is RunState.HUNG


def test_a_step_that_takes_forever_by_its_heartbeat_is_no_hang():
    assert state(still(step_s=1.7e13)) is not RunState.HUNG
