"""Two torchrun agents on loopback: a node boundary makes no difference, to the work or to a death."""

import os
import signal

import pytest

from tests.cli import LONG_S
from tests.torch import ranklab

pytestmark = pytest.mark.torch
NODES, EACH, TARGETS = 2, 2, 2
KILLED = 3


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Trained across the boundary, then rank 3 is killed, and no rank of either node is left; the folder."""
    out = tmp_path_factory.mktemp("nodes")
    agents = ranklab.torchrun("both", out, targets=TARGETS, nodes=NODES, each=EACH)
    try:
        ranklab.await_ranks(out, "looping", range(NODES * EACH), agents)
        os.kill(ranklab.pids(out)[KILLED], signal.SIGKILL)
        ranklab.await_end(out)
        for agent in agents:
            assert agent.wait(timeout=LONG_S) != 0
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    return out


def test_work_crosses_the_boundary(killed):
    for drafter in range(2):
        told = ranklab.told(killed, drafter, "checked")
        assert told["received"] == list(range(drafter, 12, 2))
        assert told["sum"] == 2
        assert told["wrap"]["replicate torch.float32"] < 1e-6


def test_a_death_on_one_node_ends_both_and_the_first_failure_is_the_killed_rank(killed):
    assert ranklab.error(killed)["rank"] == KILLED
    for node in range(NODES):
        assert f"rank {KILLED} (target) failed first" in (killed / f"log-{node}").read_text()


@pytest.mark.slow
def test_a_rank_alone_on_its_node_is_named_too(tmp_path):
    agents = ranklab.torchrun("loop", tmp_path, targets=1, nodes=2, each=1)
    try:
        ranklab.await_ranks(tmp_path, "looping", range(2), agents)
        os.kill(ranklab.pids(tmp_path)[1], signal.SIGKILL)
        ranklab.await_end(tmp_path)
        assert (ranklab.error(tmp_path)["rank"], "not heard of" in ranklab.logs(tmp_path)) == (1, True)
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()


@pytest.mark.slow
def test_a_stop_asked_of_one_node_ends_both_gracefully(tmp_path):
    agents = ranklab.torchrun("loop", tmp_path, targets=1, nodes=2, each=1)
    try:
        ranklab.await_ranks(tmp_path, "looping", range(2), agents)
        agents[1].send_signal(signal.SIGTERM)  # the node of the target, which decides nothing
        ranklab.await_end(tmp_path)
        assert all((tmp_path / f"told-{rank}.json").exists() for rank in range(2))
        assert not (tmp_path / "error.json").exists()
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
