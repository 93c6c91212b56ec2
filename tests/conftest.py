"""What cannot be read on a machine without the trainer's packages is left out, and said to be."""

from __future__ import annotations

import os
from importlib.util import find_spec

NEEDED = {
    "torch": ["torch", "gpu", "contract/test_artifacts.py"],
    "numpy": ["unit/trainer/test_data_packing.py", "unit/trainer/test_data_store.py"],
}
# In CI a missing package is a failure, since a skipped suite would look green.
MISSING = [] if os.environ.get("CI") == "true" else [name for name in NEEDED if find_spec(name) is None]
collect_ignore = [path for name in MISSING for path in NEEDED[name]]


def pytest_report_header() -> list[str]:
    """Name what is left out, so that nobody takes it for tested."""
    return [f"not collected, since {name} is missing: {', '.join(NEEDED[name])}" for name in MISSING]
