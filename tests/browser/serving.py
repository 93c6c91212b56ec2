"""`dflashctl serve` as a process, and who looks at its pages."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, ConsoleMessage, Page, ViewportSize
    from typing_extensions import Self

    from tests.cli import Cli

END_S = 120
WAIT_MS = 120_000  # a machine that tests other things as well; what must be quick is measured by a benchmark
WIDE: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 390, "height": 844}
# Every reader's clock is three minutes off: ages are told by the server's.
WRONG_CLOCK = "{ const now = Date.now; Date.now = () => now() + 180_000; }"


class Serving:
    """The service over the runs of one place, on a port of its own."""

    def __init__(self, cli: Cli, *options: str) -> None:
        self._cli = cli
        self._options = options
        self.err: Path = cli.home / "serve.err"
        self.url = ""

    def __enter__(self) -> Self:
        self.start("127.0.0.1:0")
        return self

    def start(self, listen: str) -> None:
        """Begin to serve."""
        begin, end = os.pipe()
        words = ("serve", "--listen", listen, "--ready-fd", str(end), "--no-notify", *self._options)
        with self.err.open("ab") as err:
            self.process = subprocess.Popen(
                self._cli.argv(*words), env=self._cli.env, cwd=self._cli.home, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=err, pass_fds=(end,),
            )  # fmt: skip
        os.close(end)
        with os.fdopen(begin) as ready:  # its other end closes with the process, if that dies
            self.url = ready.readline().strip().rstrip("/")
        assert self.url, f"it did not serve: {self.err.read_text()[-3000:]}"

    def __exit__(self, *_: object) -> None:
        self.end()
        assert "Traceback" not in self.err.read_text(), self.err.read_text()[-4000:]

    def end(self) -> None:
        """End it as a service manager does."""
        if self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    @property
    def listen(self) -> str:
        """Where it listens."""
        return urlsplit(self.url).netloc

    @property
    def token(self) -> str:
        return (self._cli.home / "config" / "dflashctl" / "serve.token").read_text().strip()


class Visit:
    """Pages of one test, and whatever went wrong in them."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[Any] = []
        self.wrong: list[str] = []
        self.origins: set[str] = set()
        self.expected: tuple[str, ...] = ()  # what may be logged: words of it

    def open(
        self, url: str, *, token: str | None = None, size: ViewportSize | None = None, scheme: Any = "light"
    ) -> Page:
        """Open a page in a browser of its own; with a token it logs in on the way."""
        context = self._browser.new_context(
            viewport=size or WIDE, color_scheme=scheme, reduced_motion="reduce"
        )
        self._contexts.append(context)
        context.add_init_script(WRONG_CLOCK)
        page = context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("console", self._logged)
        page.on("pageerror", lambda error: self.wrong.append(f"{error} {error.stack}"))
        page.on("request", lambda request: self.origins.add(urlsplit(request.url).netloc))
        if token is not None:
            base = f"{urlsplit(url).scheme}://{urlsplit(url).netloc}"
            page.goto(f"{base}/login#{token}")
            page.wait_for_url(f"{base}/")
        page.goto(url)
        return page

    def _logged(self, message: ConsoleMessage) -> None:
        is_hint = message.type in ("verbose", "debug", "info")
        if not is_hint and not any(words in message.text for words in self.expected):
            self.wrong.append(f"{message.type}: {message.text}")

    def end(self) -> None:
        """Close the pages and say what went wrong."""
        for context in self._contexts:
            context.close()
        assert self.wrong == []
        assert len(self.origins) <= 1, f"another server was asked: {self.origins}"


def check_page(page: Page) -> None:
    """See that a page has no violation that axe knows, and nothing sticks out of it."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response
    told = [
        (each["id"], each["help"], [node["html"][:160] for node in each["nodes"][:3]])
        for each in found["violations"]
    ]
    assert told == [], f"{page.url}: {told}"
    assert len(found["passes"]) > 5, "axe looked at nothing"
    width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1], f"{page.url} scrolls sideways: {width}"
