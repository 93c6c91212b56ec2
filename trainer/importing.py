"""Imports that take seconds, without a look for garbage in what they make: all of it stays. No torch here."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection within, which is a fifth of the time that torch takes to import."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def keep_for_good() -> None:
    """Leave all that there is out of later collections; to be called before anything is made that may go."""
    gc.freeze()
