import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.errors import ConfigInvalid
from trainer.rundir import only_trainer, open_run_dir


def supervised(tmp_path: Path, **more: str) -> dict[str, str]:
    return {
        "DFLASHCTL_RUN_DIR": str(tmp_path / "run"),
        "DFLASHCTL_ATTEMPT": "3",
        "DFLASHCTL_ATTEMPT_DIR": str(tmp_path / "run/attempts/3"),
        "DFLASHCTL_CHECKPOINT_DIR": str(tmp_path / "elsewhere"),
        **more,
    }


def test_the_supervisor_says_where(tmp_path):
    where = open_run_dir(supervised(tmp_path), tmp_path / "ignored")
    assert where.attempt == tmp_path / "run/attempts/3"
    assert where.checkpoints == tmp_path / "elsewhere"
    assert where.export == tmp_path / "run/export"
    assert where.attempt_number == 3
    assert not (tmp_path / "ignored").exists()


def test_by_hand_each_attempt_is_the_next_and_checkpoints_are_shared(tmp_path):
    first, second = open_run_dir({}, tmp_path / "r"), open_run_dir({}, tmp_path / "r")
    assert (first.attempt.name, second.attempt.name) == ("1", "2")
    assert first.checkpoints == second.checkpoints
    assert first.attempt_number is None


def test_an_attempt_that_is_no_number_is_refused(tmp_path):
    with pytest.raises(ConfigInvalid, match="DFLASHCTL_ATTEMPT: 'x'"):
        open_run_dir(supervised(tmp_path, DFLASHCTL_ATTEMPT="x"), tmp_path)


def test_a_place_that_cannot_be_written_is_told_with_its_name(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigInvalid, match=r"run directory: .*file.*--run-dir"):
        open_run_dir({}, tmp_path / "file")


@pytest.mark.parametrize("name", ["export", "skips.jsonl"])
def test_what_cannot_be_written_at_the_end_is_told_at_the_start(tmp_path, name):
    if name == "export":
        (tmp_path / name).write_text("")
    else:
        (tmp_path / name).mkdir()
    with pytest.raises(ConfigInvalid, match=rf"run directory: .*{name}: .*--run-dir"):
        open_run_dir({}, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_export_and_skips_of_before_are_no_hindrance(tmp_path):
    (tmp_path / "export").mkdir()
    (tmp_path / "skips.jsonl").write_text("")
    assert open_run_dir({}, tmp_path).attempt.name == "1"


def test_a_second_trainer_by_hand_is_kept_out_until_the_first_ends(tmp_path):
    with only_trainer({}, tmp_path):
        with (
            pytest.raises(ConfigInvalid, match="another trainer is at work in it; wait"),
            only_trainer({}, tmp_path),
        ):
            pass
        with (
            only_trainer({"DFLASHCTL_RUN_DIR": str(tmp_path)}, tmp_path),
            only_trainer({"RANK": "1"}, tmp_path),
        ):
            pass  # a rank of the first, or of a supervisor that holds the lock itself
    with only_trainer({}, tmp_path):
        pass


def test_a_run_directory_that_cannot_be_made_is_told_before_it_is_locked(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigInvalid, match=r"run directory: .*file.*--run-dir"),
        only_trainer({}, tmp_path / "file"),
    ):
        pass


COME = """
import os, sys
from pathlib import Path
from trainer.rundir import open_run_dir
print(open_run_dir(os.environ, Path(sys.argv[1])).attempt.name, flush=True)
sys.stdin.read()
"""


class Rank:
    """A rank that torchrun started: it opens its run directory and lives on until it is told to end."""

    def __init__(self, run: Path, rank: int, **launch: str) -> None:
        told = {"MASTER_ADDR": "node0", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "a", **launch}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DFLASHCTL_")}
        self._process = subprocess.Popen(
            [sys.executable, "-c", COME, str(run)],
            env={**kept, **told, "RANK": str(rank), "WORLD_SIZE": "3"},
            cwd=Path(__file__).parents[3],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def attempt(self) -> str:
        assert self._process.stdout
        return self._process.stdout.readline().strip()

    def refused(self) -> str:
        said = self._process.communicate()[1]
        assert self._process.returncode != 0
        return said

    def end(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0


def test_the_ranks_of_one_launch_share_an_attempt_whoever_comes_first(tmp_path):
    ranks = [Rank(tmp_path, rank) for rank in (2, 0, 1)]
    assert [rank.attempt() for rank in ranks] == ["1", "1", "1"]
    assert sorted(json.loads((tmp_path / "attempts/1/launch.json").read_text())["ranks"]) == ["0", "1", "2"]
    for rank in ranks:
        rank.end()


def test_ranks_by_hand_and_a_trainer_that_is_at_work_keep_each_other_out(tmp_path):
    with only_trainer({}, tmp_path):
        late = Rank(tmp_path, 0)
        assert late.attempt() == ""
        assert "another trainer is at work in it" in late.refused()
    ranks = [Rank(tmp_path, rank) for rank in (0, 1)]
    assert {rank.attempt() for rank in ranks} == {"1"}
    with pytest.raises(ConfigInvalid, match="another trainer is at work"), only_trainer({}, tmp_path):
        pass
    for rank in ranks:
        rank.end()
    with only_trainer({}, tmp_path):
        pass


def test_a_later_launch_of_the_same_name_and_port_is_the_next_attempt(tmp_path):
    first = Rank(tmp_path, 0)
    assert first.attempt() == "1"
    first.end()
    ranks = [Rank(tmp_path, rank) for rank in (1, 0)]
    assert [rank.attempt() for rank in ranks] == ["2", "2"]
    for rank in ranks:
        rank.end()


def test_a_rank_that_comes_twice_is_of_another_launch(tmp_path):
    lingering, again = Rank(tmp_path, 1), Rank(tmp_path, 1)
    assert {lingering.attempt(), again.attempt()} == {"1", "2"}
    lingering.end()
    again.end()


@pytest.mark.parametrize("name", ["TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"])
def test_a_launch_that_differs_does_not_join(tmp_path, name):
    first, other = Rank(tmp_path, 0), Rank(tmp_path, 1, **{name: "7"})
    assert {first.attempt(), other.attempt()} == {"1", "2"}
    first.end()
    other.end()


def test_an_attempt_without_ranks_is_never_joined(tmp_path):
    open_run_dir({}, tmp_path)
    rank = Rank(tmp_path, 0)
    assert rank.attempt() == "2"
    rank.end()
