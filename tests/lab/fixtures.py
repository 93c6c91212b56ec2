"""Pytest fixtures: one lab a session, and the same put back as new before a test that breaks things."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab.lab import PREFIX, Lab, sweep

if TYPE_CHECKING:
    from collections.abc import Iterator

TRUE = {"1", "true", "yes"}


def lab_is_required() -> bool:
    """In CI a missing part is a failure: a skipped suite would look green."""
    return any(os.environ.get(name, "").lower() in TRUE for name in ("CI", "DFLASHCTL_REQUIRE_LAB"))


def require_lab() -> None:
    """Skip with the reason where the lab cannot run; fail instead where it must."""
    lacks = Lab().missing()
    if not lacks:
        return
    message = "the lab cannot run here; missing: " + "; ".join(lacks)
    if lab_is_required():
        pytest.fail(f"{message} (required by CI or DFLASHCTL_REQUIRE_LAB)", pytrace=False)
    pytest.skip(message)


def new_state() -> Path:
    """A directory for a lab of its own, of the form that `sweep` knows."""
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}-"))


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """The session's lab, up. A test that breaks it for others takes `clean_lab`."""
    require_lab()
    sweep()
    made = Lab(new_state())
    made.start(owner=os.getpid())
    yield made
    made.stop()


@pytest.fixture
def clean_lab(lab: Lab) -> Iterator[Lab]:
    """The session's lab, as new before the test and after it."""
    lab.reset()
    yield lab
    lab.reset()
