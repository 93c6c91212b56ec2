"""`make lab` ends what it began, also when nobody reads what it says any more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENDS = """
import os, pathlib, signal, sys
from types import SimpleNamespace
from tests.lab.__main__ import up

def start():
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 1)  # the terminal, or the `tee` behind it, is gone
    if sys.argv[2] == "closed":
        os.kill(os.getpid(), signal.SIGHUP)

a_lab = dict.fromkeys("host ct port identity known_hosts torch_python gpu_state".split(), "x")
stop = pathlib.Path(sys.argv[1]).touch
up(
    SimpleNamespace(
        **a_lab, state=pathlib.Path("s"), ssh_argv=list, is_up=lambda: False, start=start, stop=stop
    ),
    detach=False,
)
"""


@pytest.mark.parametrize("how", ["closed", "a reader that left"])
def test_a_lab_that_nobody_reads_any_more_is_ended_all_the_same(tmp_path: Path, how: str):
    ended = tmp_path / "ended"
    words = [sys.executable, "-c", ENDS, str(ended), how]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert ended.exists(), done.stderr
