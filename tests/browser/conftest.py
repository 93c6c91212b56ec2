"""A browser for the pages: the system's own Chromium, since no other is downloaded."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.browser.serving import WAIT_MS, Visit
from tests.integration.local import Local, local_runs
from tests.lab.fixtures import lab_is_required

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=WAIT_MS)
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        message = "no Chromium here, for the pages; tests/lab/install.sh installs it"
        if lab_is_required():
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    with sync_playwright() as started:
        # Root is refused Chromium's own sandbox; these are our own pages.
        made = started.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield made
        made.close()


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Iterator[Local]:
    with local_runs(tmp_path_factory.mktemp("runs")) as here:
        yield here


@pytest.fixture
def visit(browser) -> Iterator[Visit]:
    """Opens pages; afterwards nothing was logged as an error, and no other server was asked."""
    visit = Visit(browser)
    yield visit
    visit.end()
