"""The kernels of the mask where they need no GPU: by Triton's interpreter, if there is Triton."""

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.torch.maskcases import random_case
from trainer import tiling

pytestmark = pytest.mark.torch


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_kernels_are_the_closed_form():
    done = subprocess.run(
        [sys.executable, "-m", "tests.torch.interpreted"],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "5 masks\n"


def test_a_cpu_takes_pytorchs_operators():
    assert not tiling.takes(random_case(1)[0])


@pytest.mark.parametrize(
    ("slots", "size", "most"),
    [(1024, 32, 4), (512, 16, 8), (40, 10, 14), (9, 128, 1), (9, 200, 2), (3, 8, 3)],
)
def test_a_tile_cuts_so_many_slots_at_most(slots, size, most):
    first = range(0, min(slots * size, 128 * size), 128)
    found = max(min(slots - 1, (begin + 127) // size) - begin // size + 1 for begin in first)
    assert tiling.most_cut(slots, size, 128) == found == most
