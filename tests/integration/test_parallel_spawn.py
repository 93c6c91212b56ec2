"""The parent of the ranks, with small ranks that need no torch: codes, signals, output, silent deaths."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli import LONG_S

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
PARENT = """
import sys
from pathlib import Path
from trainer.parallel.spawn import launch
code = launch([sys.executable, "-c", sys.argv[1]], int(sys.argv[2]), attempt=Path(sys.argv[3]),
              role_of=lambda rank: "target" if rank else "drafter")
sys.exit(code)
"""
RANK = "import os, signal, sys, time, pathlib; rank = int(os.environ['RANK'])\n"
WAIT_FOR_STOP = """
def stop(number, frame):
    pathlib.Path(f'{out}/got-{rank}').open('a').write(f'{number} ')
    if number == signal.SIGTERM:
        time.sleep(0.2 * rank)
        sys.exit(75)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, stop)
pathlib.Path(f'{out}/ready-{rank}').touch()
while True:
    time.sleep(0.05)
"""


def start(tmp_path, body, count, **options):
    code = RANK + f"out = {str(tmp_path)!r}\n" + body
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, code, str(count), str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


def finish(parent, timeout=LONG_S):
    output, _ = parent.communicate(timeout=timeout)
    return parent.returncode, output


def await_files(tmp_path, names):
    deadline = time.monotonic() + LONG_S
    while not all((tmp_path / name).exists() for name in names):
        assert time.monotonic() < deadline, names
        time.sleep(0.02)


def await_words(tmp_path, count, word):
    """Wait until each of so many ranks has written that it got the signal."""
    got = [tmp_path / f"got-{rank}" for rank in range(count)]
    deadline = time.monotonic() + LONG_S
    while not all(path.exists() and word in path.read_text().split() for path in got):
        assert time.monotonic() < deadline, [path.read_text() for path in got if path.exists()]
        time.sleep(0.02)


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_ranks_get_their_place_and_all_done_is_zero(tmp_path):
    names = "'RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'GROUP_RANK'"
    code, output = finish(start(tmp_path, f"print(*(os.environ[n] for n in ({names})))", 3))
    assert code == 0
    assert sorted(output.splitlines()) == ["0 0 3 3 0", "[rank1]: 1 1 3 3 0", "[rank2]: 2 2 3 3 0"]
    assert not (tmp_path / "error.json").exists()


def test_a_lock_that_the_parent_was_given_is_held_while_any_rank_lives(tmp_path):
    body = "pathlib.Path(f'{out}/ready-{rank}').touch(); time.sleep(3600)"
    path = tmp_path / "lock"
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        parent = start(tmp_path, body, 2, stdin=held)
    await_files(tmp_path, ["ready-0", "ready-1"])
    ranks = [int(pid) for pid in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()]
    assert len(ranks) == 2
    parent.kill()
    parent.communicate()
    with path.open() as mine:
        for pid in ranks:
            assert not gone(pid)
            with pytest.raises(BlockingIOError):
                fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + LONG_S
        while not all(gone(pid) for pid in ranks):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_line_is_whole_marked_once_and_the_last_one_needs_no_end(tmp_path):
    body = "[print(f'{rank} ' + 'x' * 3000) for _ in range(200)]; print('[rank1]: a', end='\\nb')"
    code, output = finish(start(tmp_path, body, 2))
    assert code == 0
    lines = output.splitlines()
    assert lines.count("[rank1]: 1 " + "x" * 3000) == 200
    assert lines.count("0 " + "x" * 3000) == 200
    assert "[rank1]: [rank1]: a" not in lines
    assert lines.count("[rank1]: b") == lines.count("b") == 1


@pytest.mark.parametrize("code", [1, 65, 70, 78])
def test_the_first_failing_ranks_code_is_the_parents(tmp_path, code):
    body = f"if rank == 1: sys.exit({code})\ntime.sleep(0.5); sys.exit(71)"
    assert finish(start(tmp_path, body, 3))[0] == code


def test_one_killed_by_a_signal_is_told_and_the_others_are_ended(tmp_path):
    body = (
        "print(os.getpid(), flush=True)\npathlib.Path(f'{out}/ready-{rank}').touch()\n"
        "while rank == 1 and len(list(pathlib.Path(out).glob('ready-*'))) < 3: time.sleep(0.01)\n"
        "if rank == 1: os.kill(os.getpid(), signal.SIGSEGV)\ntime.sleep(3600)"
    )
    code, output = finish(start(tmp_path, body, 3))
    assert code == 128 + signal.SIGSEGV
    error = json.loads((tmp_path / "error.json").read_text())
    assert error["rank"] == 1
    assert error["exception"] == "trainer.errors.RankDied"
    assert "rank 1 (target) failed first" in error["message"]
    assert "SIGSEGV" in error["message"]
    assert "SIGSEGV" in output
    pids = [int(line.split()[-1]) for line in output.splitlines() if line.split()[-1].isdecimal()]
    assert len(pids) == 3
    assert all(gone(pid) for pid in pids)


def test_a_ranks_own_words_are_not_overwritten(tmp_path):
    (tmp_path / "error.json").write_text("its own")
    assert finish(start(tmp_path, "if rank == 0: sys.exit(70)\ntime.sleep(0.3); sys.exit(71)", 2))[0] == 70
    assert (tmp_path / "error.json").read_text() == "its own"


def test_who_leaves_for_a_peer_is_never_the_first_failure(tmp_path):
    body = "if rank == 0: sys.exit(71)\ntime.sleep(1); os.kill(os.getpid(), signal.SIGKILL)"
    assert finish(start(tmp_path, body, 2))[0] == 137
    assert json.loads((tmp_path / "error.json").read_text())["rank"] == 1


def test_signals_reach_every_rank_and_a_stop_ends_with_75(tmp_path):
    parent = start(tmp_path, WAIT_FOR_STOP, 3)
    await_files(tmp_path, [f"ready-{rank}" for rank in range(3)])
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        parent.send_signal(number)
        await_words(tmp_path, 3, str(int(number)))
    assert finish(parent)[0] == 75
    for rank in range(3):
        assert sorted(map(int, (tmp_path / f"got-{rank}").read_text().split())) == [10, 12, 15]
    assert not (tmp_path / "error.json").exists()


def test_ctrl_c_in_a_terminal_comes_to_a_rank_once(tmp_path):
    body = WAIT_FOR_STOP.replace("signal.SIGUSR1", "signal.SIGINT")
    parent = start(tmp_path, body, 2, start_new_session=True)
    await_files(tmp_path, ["ready-0", "ready-1"])
    os.killpg(parent.pid, signal.SIGINT)
    await_words(tmp_path, 2, "2")
    time.sleep(0.3)
    parent.terminate()
    assert finish(parent)[0] == 75
    assert sorted((tmp_path / "got-1").read_text().split()) == ["15", "2"]


def test_a_stop_before_a_rank_can_hear_it_is_no_failure_of_its_own(tmp_path):
    parent = start(tmp_path, "pathlib.Path(f'{out}/ready-{rank}').touch(); time.sleep(3600)", 2)
    await_files(tmp_path, ["ready-0", "ready-1"])
    parent.terminate()
    assert finish(parent)[0] == 143
    assert not (tmp_path / "error.json").exists()


@pytest.mark.slow
def test_what_a_rank_left_running_ends_with_it(tmp_path):
    body = """
import subprocess
child = subprocess.Popen(['sleep', '60'])
pathlib.Path(f'{out}/child-{rank}').write_text(str(child.pid))
"""
    code, _ = finish(start(tmp_path, body, 2))
    assert code == 0
    assert all(gone(int((tmp_path / f"child-{rank}").read_text())) for rank in range(2))
