"""How the guest starts a part of itself: from its zip, or from the source tree in development."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

_TREE = (
    "import sys; sys.path.insert(0, {root!r}); from orchestrator.guest.__main__ import main; sys.exit(main())"
)


def command(part: str, *arguments: str) -> list[str]:
    """Return the argv that runs `part` of this very guest."""
    archive = Path(sys.argv[0])
    if archive.is_file() and zipfile.is_zipfile(archive):
        return [sys.executable, str(archive.resolve()), part, *arguments]
    root = str(Path(__file__).resolve().parents[2])
    return [sys.executable, "-c", _TREE.format(root=root), part, *arguments]
