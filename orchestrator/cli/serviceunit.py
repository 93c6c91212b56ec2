"""serve --install-unit: a systemd unit for the command as it was typed here."""

from __future__ import annotations

import getpass
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.cli.context import SETTINGS, opened_record, target_of
from orchestrator.places import record_path
from orchestrator.serve.unit import unit

NOTIFY_URLS = "DFLASHCTL_NOTIFY_URLS"
_KEPT = ("DFLASHCTL_INVENTORY", "DFLASHCTL_RECORD", "XDG_CONFIG_HOME", "XDG_STATE_HOME")


def unit_of(argv: Sequence[str]) -> str:
    """Return a unit that starts what was typed, where it was typed."""
    program = shutil.which(argv[0]) or shutil.which("dflashctl")
    is_module = Path(argv[0]).name == "__main__.py" or program is None
    start = [sys.executable, "-m", "orchestrator"] if is_module else [str(Path(program or "").absolute())]
    if os.environ.get(NOTIFY_URLS):
        remark = f"dflashctl: {NOTIFY_URLS} is a secret and not copied into the unit; notify.yaml may hold it"
        SETTINGS.err.print(remark)
    return unit(
        [*start, *(word for word in argv[1:] if word != "--install-unit")],
        getpass.getuser(),
        folder=str(Path.cwd()),
        env={name: value for name in _KEPT if (value := os.environ.get(name))},
        is_far=_is_far(),
    )


def _is_far() -> bool:
    """Whether there are runs on record, and all of them are reached by ssh."""
    if not (SETTINGS.record or record_path()).is_file():
        return False
    with opened_record() as record:
        targets = [target_of(row) for row in record.runs()]
    return bool(targets) and all(target.host is not None for target in targets)
