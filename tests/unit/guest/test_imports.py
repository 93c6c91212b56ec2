"""What a verb pays for before it begins: out of the zip every import is compiled anew."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["hello", "watch", "look", "tail", "pull", "stop", "supervise"])
def test_what_is_done_often_does_not_pay_for_libtmux(module):
    code = f"import sys, orchestrator.guest.{module}; sys.exit('libtmux' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
