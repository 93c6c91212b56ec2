"""Ranks of a numbered attempt keep NCCL's last collectives where a watcher looks for them."""

from pathlib import Path

from trainer.parallel.child import rank_environ

STORE = Path("/tmp/ranks/store")


def test_a_rank_dumps_into_its_attempt_when_its_pipe_is_written():
    environ = rank_environ({"DFLASHCTL_ATTEMPT_DIR": "/r/attempts/2"}, 1, 2, STORE)
    assert environ["TORCH_FR_DUMP_TEMP_FILE"] == "/r/attempts/2/stacks/nccl-rank-"
    assert environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] == "/tmp/ranks/nccl-"
    assert (environ["TORCH_FR_BUFFER_SIZE"], environ["TORCH_NCCL_DUMP_ON_TIMEOUT"]) == ("2000", "1")


def test_what_the_user_set_is_kept_and_without_an_attempt_nothing_is_set():
    given = {"DFLASHCTL_ATTEMPT_DIR": "/r/attempts/2", "TORCH_FR_BUFFER_SIZE": "0"}
    assert rank_environ(given, 0, 2, STORE)["TORCH_FR_BUFFER_SIZE"] == "0"
    assert not [name for name in rank_environ({}, 0, 2, STORE) if name.startswith("TORCH_")]
