"""The guest's one error: it understood the request and says no."""

from __future__ import annotations

import errno
from typing import Any

TMUX_HINT = "`dflashctl provision` installs it, or in the container: apt-get install -y tmux"


class Refusal(Exception):  # noqa: N818  it is an answer
    """Becomes the line `{"type": "error", "code", "message", "hint", ...}` and exit code 3."""

    def __init__(self, code: str, message: str, hint: str | None = None, **details: Any) -> None:  # noqa: ANN401
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.details = details


def from_os_error(error: OSError, what: str) -> Refusal:
    """Translate an OSError met while doing `what`."""
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Refusal(
            "no_space", f"{what}: no space left{where}", "free space in the container, then try again"
        )
    return Refusal("start_failed" if what == "start" else "bad_request", f"{what}: {error.strerror}{where}")
