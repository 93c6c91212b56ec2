"""What cannot be read on a machine without the trainer's packages is left out, and said to be."""

from __future__ import annotations

import os
import signal
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

NEEDED = {
    "torch": ["torch", "gpu", "contract/test_artifacts.py"],
    "numpy": ["unit/trainer/test_data_packing.py", "unit/trainer/test_data_store.py"],
}
# In CI a missing package is a failure, since a skipped suite would look green.
MISSING = [] if os.environ.get("CI") == "true" else [name for name in NEEDED if find_spec(name) is None]
collect_ignore = [path for name in MISSING for path in NEEDED[name]]

# A shell's background job is born deaf to Ctrl-C, and so would be all that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A pool of compiling processes costs more than it saves here, and outlives the test that began it.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# Whole files go to one worker, so the longest begin first: at the end none is waited for alone.
LONGEST_FIRST = (
    "test_main_job", "test_jobs", "test_killgrid", "test_compile_processes", "test_take",
    "test_attempts", "test_endings", "test_sampling",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; within a file and among the rest the order stays."""
    place = {name: index for index, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


def pytest_report_header() -> list[str]:
    """Name what is left out, so that nobody takes it for tested."""
    return [f"not collected, since {name} is missing: {', '.join(NEEDED[name])}" for name in MISSING]
