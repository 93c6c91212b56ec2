from pathlib import Path

import pytest

from trainer.errors import ConfigInvalid
from trainer.rundir import open_run_dir


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
