"""What the trainer's Python printed, read. Pure; an import may print anything beside it."""

from __future__ import annotations

import json
from typing import Any

MARK = b"dflashctl-torch "


def read_lines(output: bytes) -> dict[str, Any]:
    """Return `build` (None: not told) and `tries`, by the GPU's index."""
    told: dict[str, Any] = {"build": None, "tries": {}}
    for line in output.splitlines():
        if not line.startswith(MARK):
            continue
        try:
            body = json.loads(line.removeprefix(MARK))
        except ValueError:
            continue
        if "tries" in body:
            told["tries"] = {int(gpu): str(error) for gpu, error in body["tries"].items()}
        else:
            told["build"] = body
    return told
