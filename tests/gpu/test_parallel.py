"""Two NCCL ranks, each of which sees its own GPU alone, as cuda:0."""

import os
import re
import signal

import pytest

torch = pytest.importorskip("torch")

from tests.torch import ranklab  # noqa: E402 - only where there is torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]
CUDA = {"TEST_DEVICE": "cuda", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,P2P,SHM,NET,GRAPH"}
ROLES = {0: "drafter", 1: "target"}


def run(out, targets):
    process = ranklab.launch("check", out, targets=targets, count=2, **CUDA)
    assert process.wait(timeout=180) == 0, ranklab.logs(out)[-20000:]
    return out


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    return run(tmp_path_factory.mktemp("split"), 1)


@pytest.fixture(scope="module")
def colocated(tmp_path_factory):
    return run(tmp_path_factory.mktemp("colocated"), 0)


def test_observations_come_whole_and_in_order(split):
    assert ranklab.told(split, 0)["received"] == list(range(6))
    assert sorted(ranklab.told(split, 1)["made"]) == list(range(8))


def test_the_leader_gets_its_weights_evaluated(split):
    assert ranklab.told(split, 0)["evaluation"] == {"step": 7, "equal": True, "beats": 2}


@pytest.mark.parametrize("way", ["replicate", "full"])
def test_wrapped_gradients_are_those_of_one_process_that_does_all(colocated, way):
    for rank in range(2):
        differences = ranklab.told(colocated, rank)["wrap"]
        assert differences[f"{way} torch.float32"] < 1e-6
        assert differences[f"{way} torch.bfloat16"] < 2e-2


@pytest.mark.parametrize("name", ["split", "colocated"])
def test_peers_are_reached_directly_though_neither_sees_the_others_gpu(request, name):
    ways = re.findall(r"Channel.* via (\S+)", ranklab.logs(request.getfixturevalue(name)))
    assert ways
    assert all(way.startswith("P2P") for way in ways), set(ways)


@pytest.mark.parametrize("killed", ROLES)
def test_a_killed_rank_ends_the_other_within_seconds(tmp_path, killed):
    process = ranklab.launch("loop", tmp_path, targets=1, count=2, **CUDA)
    ranklab.await_ranks(tmp_path, "looping", ROLES, [process])
    os.kill(ranklab.pids(tmp_path)[killed], signal.SIGKILL)
    assert ranklab.await_end(tmp_path) < 10
    assert process.wait(timeout=10) == 128 + signal.SIGKILL
    assert ranklab.error(tmp_path)["rank"] == killed
