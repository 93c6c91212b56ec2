"""Who is what, which micro-batch goes where, which GPU is whose."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import ComputeConfig, Config, OptimConfig, ParallelConfig
from trainer.errors import ConfigInvalid
from trainer.parallel.gpus import hide_other_gpus, num_processes, visible_gpus
from trainer.parallel.schedule import make_schedule
from trainer.parallel.topology import is_rank, place, read_topology

SPLIT = ParallelConfig(placement="split", targets=5)


def ranks(config, world_size):
    return [place(config, world_size=world_size, rank=rank) for rank in range(world_size)]


def test_a_split_of_five_and_three_has_drafters_first():
    all_ranks = ranks(SPLIT, 8)
    assert [each.role for each in all_ranks] == ["drafter"] * 3 + ["target"] * 5
    assert [each.drafter_index for each in all_ranks if each.is_drafter] == [0, 1, 2]
    assert [each.target_index for each in all_ranks if each.is_target] == [0, 1, 2, 3, 4]
    assert [each.rank for each in all_ranks if each.is_leader] == [0]
    assert [all_ranks[0].target_rank(index) for index in range(5)] == [3, 4, 5, 6, 7]
    assert not any(each.is_drafter and each.is_target for each in all_ranks)


@pytest.mark.parametrize("placement", ["colocated", "cached"])
def test_without_a_split_every_rank_is_both(placement):
    for each in ranks(ParallelConfig(placement=placement, targets=5), 4):
        assert each.is_drafter
        assert each.is_target
        assert each.drafter_index == each.target_index == each.rank
        assert (each.num_drafters, each.num_targets) == (4, 4)


@pytest.mark.parametrize(("targets", "world_size"), [(0, 2), (1, 1), (2, 2), (9, 8)])
def test_a_split_without_a_drafter_or_a_target_is_refused_with_its_numbers(targets, world_size):
    with pytest.raises(ConfigInvalid, match=f"targets: {targets} of {world_size} processes"):
        place(ParallelConfig(placement="split", targets=targets), world_size=world_size)


def test_a_process_without_a_launcher_is_alone():
    alone = read_topology({}, ParallelConfig())
    assert alone.is_alone
    assert alone.is_leader
    assert not is_rank({})


def test_torchruns_variables_say_the_place():
    environ = {
        "RANK": "6",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "2",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "1",
    }
    found = read_topology(environ, SPLIT)
    assert (found.rank, found.local_rank, found.local_world_size, found.node) == (6, 2, 4, 1)
    assert found.role == "target"
    assert is_rank(environ)


def test_a_variable_that_is_no_number_is_named():
    with pytest.raises(ConfigInvalid, match="WORLD_SIZE: 'many'"):
        read_topology({"RANK": "0", "WORLD_SIZE": "many"}, ParallelConfig())


worlds = st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 4), st.integers(0, 50))


@given(worlds)
def test_a_step_is_the_same_micro_batches_on_any_number_of_ranks(world):
    targets, drafters, rounds, step = world
    topology = place(
        ParallelConfig(placement="split", targets=targets), world_size=targets + drafters, rank=0
    )
    schedule = make_schedule(topology, OptimConfig(micro_batches=rounds * drafters))
    dealt = [schedule.of_drafter(step, drafter) for drafter in range(drafters)]
    alone = make_schedule(place(ParallelConfig(), world_size=1), OptimConfig(micro_batches=rounds * drafters))
    assert sorted(m for each in dealt for m in each) == list(alone.of_drafter(step, 0))
    assert {len(each) for each in dealt} == {rounds}
    for drafter, each in enumerate(dealt):
        assert list(each) == sorted(each)
        assert all(m % drafters == drafter for m in each)
    assert all(0 <= schedule.target_of(m) < targets for m in schedule.of_step(step))


@given(worlds, st.integers(0, 4))
def test_what_is_ahead_is_what_the_same_drafter_takes_next_and_ends_with_training(world, count):
    targets, drafters, rounds, step = world
    topology = place(ParallelConfig(placement="split", targets=targets), world_size=targets + drafters)
    schedule = make_schedule(topology, OptimConfig(micro_batches=rounds * drafters))
    for drafter in range(drafters):
        coming = [m for later in range(step, step + 3) for m in schedule.of_drafter(later, drafter)]
        for at, m in enumerate(coming):
            assert list(schedule.ahead(m, count, step + 3)) == coming[at + 1 : at + 1 + count]


def test_micro_batches_that_do_not_divide_are_refused_with_what_would():
    topology = place(SPLIT, world_size=8)
    assert make_schedule(topology, OptimConfig()).per_step == 3
    with pytest.raises(ConfigInvalid, match=r"micro_batches: 4 is not a multiple of the 3 .* 3 or 6"):
        make_schedule(topology, OptimConfig(micro_batches=4))
    with pytest.raises(ConfigInvalid, match="allowed: 3, or 0 for 3"):
        make_schedule(topology, OptimConfig(micro_batches=2))


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("0,1,2", ["0", "1", "2"]),
        ("GPU-8f3a, MIG-11", ["GPU-8f3a", "MIG-11"]),
        ("2,-1,3", ["2"]),
        ("", []),
    ],
)
def test_cudas_own_list_names_the_gpus(listed, expected):
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": listed}) == expected


def test_without_a_list_the_device_nodes_are_counted(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert visible_gpus({}, tmp_path) == ["0", "1"]
    assert num_processes(Config(), {}, tmp_path) == 2
    assert num_processes(Config(compute=ComputeConfig(device="cpu")), {}, tmp_path) == 1
    assert num_processes(Config(parallel=ParallelConfig(processes=5)), {}, tmp_path) == 5


def test_each_rank_keeps_one_gpu_and_hiding_twice_changes_nothing():
    environ = {"CUDA_VISIBLE_DEVICES": "4,GPU-8f3a"}
    hide_other_gpus(environ, 1)
    hide_other_gpus(environ, 1)
    assert environ["CUDA_VISIBLE_DEVICES"] == "GPU-8f3a"
    with pytest.raises(ConfigInvalid, match="local rank 2 has no GPU, 2 visible"):
        hide_other_gpus({"CUDA_VISIBLE_DEVICES": "4,5"}, 2)
