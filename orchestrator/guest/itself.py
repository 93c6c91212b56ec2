"""How the guest starts a part of itself: from its zip, or from the source tree in development."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

_TREE = (
    "import sys; sys.path.insert(0, {root!r}); from orchestrator.guest.__main__ import main; sys.exit(main())"
)
# Asked at the start: later the file may be gone, and this process goes on.
_FILE = Path(sys.argv[0]).resolve() if zipfile.is_zipfile(sys.argv[0]) else None


def command(part: str, *arguments: str) -> list[str]:
    """Return the argv that runs `part` of this very guest."""
    if _FILE is not None:
        return [sys.executable, str(_FILE), part, *arguments]
    root = str(Path(__file__).resolve().parents[2])
    return [sys.executable, "-c", _TREE.format(root=root), part, *arguments]


def is_gone() -> bool:
    """Whether the file was deleted from which a part could be started."""
    return _FILE is not None and not _FILE.exists()
