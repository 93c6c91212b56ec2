"""The one broad `except` of the program: what fails alone must not take the others with it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def contained(tell: Callable[[Exception], None], *, lets: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Hand whatever is raised to `tell`, and go on; `lets` are the errors that pass."""
    try:
        yield
    except lets:
        raise
    except Exception as error:  # noqa: BLE001 - whoever contains it tells whose it is
        tell(error)
