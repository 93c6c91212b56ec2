"""`stacks`: every rank says where it is, and nobody else of the run is touched."""

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.integration import guest_driver as driver

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not driver.HAS_TMUX, reason="no tmux")]

# py-spy is looked for beside the Python of a rank, and a developer's environment may have it.
PYTHON = os.path.realpath(sys.executable)
SPY = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))

# Ranks as the trainer's launcher starts them, each stuck in its own way, beside what would die of the signal.
JOB = """
import os, subprocess, sys, time
from pathlib import Path
RANK = '''
import os, sys, threading
from pathlib import Path
from trainer.signals import print_stacks_on_request, write_stacks_on_request
print_stacks_on_request()
write_stacks_on_request(Path(os.environ["DFLASHCTL_ATTEMPT_DIR"]), int(sys.argv[1]))
lock = threading.Lock()
lock.acquire()
def waits_for_a_peer(): lock.acquire()
def waits_for_data(): lock.acquire()
(waits_for_data if sys.argv[1] == "2" else waits_for_a_peer)()
'''
ranks = [
    subprocess.Popen([sys.executable, "-c", RANK, str(rank)], start_new_session=True,
                     env={**os.environ, "RANK": str(rank)})
    for rank in range(3)
]
subprocess.Popen(["sleep", "600"], start_new_session=True)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
ranks[0].wait()
"""


@pytest.fixture
def guest(tmp_path):
    for one in driver.lend(tmp_path):
        one.env["PATH"] = os.pathsep.join(
            part for part in one.env["PATH"].split(os.pathsep) if not Path(part, "py-spy").exists()
        )
        yield one


def start(guest: driver.Guest) -> list[int]:
    env = {"PYTHONPATH": str(driver.ROOT)}
    guest.start(argv=[PYTHON, "-c", JOB], env=env)
    folder = guest.dir("r", 1) / "stacks"
    driver.wait_until(lambda: len(list(folder.glob(".rank-*"))) == 3)
    driver.wait_until(lambda: len(guest.alive()["pids"]) == 6)
    return list(guest.alive()["pids"])


def test_each_rank_tells_where_it_is_and_all_go_on(guest):
    before = start(guest)
    *stacks, end = guest.ask("stacks", run="r")
    assert [(one["type"], one["rank"], one["how"]) for one in stacks] == [
        ("stack", rank, "faulthandler") for rank in range(3)
    ]
    waits = ["waits_for_data" if one["rank"] == 2 else "waits_for_a_peer" for one in stacks]
    assert all(word in one["text"] for word, one in zip(waits, stacks, strict=True))
    assert (end["type"], end["attempt"], end["problems"]) == ("stacks", 1, [])
    folder = guest.dir("r") / end["path"]
    assert sorted(end["files"]) == sorted(path.name for path in folder.iterdir())
    assert "waits_for_data" in (folder / "rank-2.txt").read_text()
    assert guest.alive()["pids"] == before, "whoever does not know the signal must not get it"


def test_a_second_look_tells_the_present_only_and_keeps_the_first(guest):
    start(guest)
    first, second = guest.ask("stacks", run="r")[-1], guest.ask("stacks", run="r")
    assert second[-1]["path"] != first["path"]
    assert second[0]["text"].count("waits_for_a_peer") == 1
    assert (guest.dir("r") / first["path"]).is_dir()


def test_what_is_kept_can_be_pulled(guest):
    start(guest)
    end = guest.ask("stacks", run="r")[-1]
    lines = guest.ask("pull", run="r", path=end["path"], want="names")
    assert [Path(one["path"]).name for one in lines if one["type"] == "file"] == [
        "rank-0.txt", "rank-1.txt", "rank-2.txt",
    ]  # fmt: skip


def test_a_stopped_rank_is_named_and_the_others_tell(guest):
    start(guest)
    files = {int(p.name.split(".")[1][5:]): int(p.name.split(".")[2])
             for p in (guest.dir("r", 1) / "stacks").glob(".rank-*")}  # fmt: skip
    os.kill(files[1], signal.SIGSTOP)
    *stacks, end = guest.ask("stacks", run="r")
    os.kill(files[1], signal.SIGCONT)
    assert [one["how"] for one in stacks] == ["faulthandler", "none", "faulthandler"]
    assert stacks[1]["state"] == "T"
    assert end["problems"] == [f"rank 1 (process {files[1]}) gave no stack; it was stopped by a signal"]


def test_a_file_of_somebody_else_s_process_moves_nobody(guest):
    pids = start(guest)
    folder = guest.dir("r", 1) / "stacks"
    bystander = next(pid for pid in pids if Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
    for path in folder.glob(".rank-*"):
        path.unlink()
    (folder / f".rank-0.{bystander}.40").write_text("")
    *stacks, _ = guest.ask("stacks", run="r")
    assert {one["how"] for one in stacks} == {"none"}
    assert guest.alive()["pids"] == pids


def test_a_run_that_is_gone_has_no_stacks(guest):
    guest.start("--steps", 1)
    guest.exit()
    (refused,) = guest.ask("stacks", run="r")
    assert (refused["code"], "nothing of run" in refused["message"]) == ("not_found", True)


def test_an_older_attempt_is_not_asked(guest):
    start(guest)
    (refused,) = guest.ask("stacks", run="r", attempt=7)
    assert refused["code"] == "not_found"


@pytest.mark.skipif(SPY is None, reason="no py-spy here")
def test_py_spy_is_asked_first_and_sees_what_registered_nothing(guest):
    guest.env["PATH"] = f"{Path(SPY or '').parent}{os.pathsep}{guest.env['PATH']}"
    code = "import time\ndef naps():\n print('it naps', flush=True)\n time.sleep(600)\nnaps()"
    guest.start(argv=[sys.executable, "-c", code, "--token", "hidden"])
    driver.wait_until(lambda: b"it naps" in (guest.dir("r", 1) / "log").read_bytes())
    (stack, end) = guest.ask("stacks", run="r")
    assert (stack["how"], stack["rank"], "naps" in stack["text"]) == ("py-spy", None, True), (stack, end)
    assert "hidden" not in stack["text"], "an argument may be a secret"


def test_a_rank_s_flight_recorder_is_asked_by_its_pipe_and_copied(guest, tmp_path):
    (tmp_path / "fr").mkdir()
    code = """
import os, sys, time
from pathlib import Path
from trainer.signals import write_stacks_on_request
stem = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"]
os.mkfifo(stem + "5.pipe")
pipe = os.open(stem + "5.pipe", os.O_RDONLY | os.O_NONBLOCK)
write_stacks_on_request(Path(os.environ["DFLASHCTL_ATTEMPT_DIR"]), 5)
while True:
    time.sleep(0.2)
    if os.read(pipe, 128):
        Path(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + "5").write_bytes(b"collectives")
"""
    env = {
        "PYTHONPATH": str(driver.ROOT),
        "RANK": "5",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "fr" / "pipe_"),
        "TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "fr" / "trace_rank_"),
    }
    guest.start(argv=[PYTHON, "-c", code], env=env)
    driver.wait_until(lambda: bool(list((guest.dir("r", 1) / "stacks").glob(".rank-5.*"))))
    end = guest.ask("stacks", run="r")[-1]
    assert end["files"] == ["rank-5.txt", "nccl-5"], end
    assert (guest.dir("r") / end["path"] / "nccl-5").read_bytes() == b"collectives"
