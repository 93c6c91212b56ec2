"""The fleet page with many live runs: `python -m benchmarks.dashboard [--runs 200] [--seconds 30]`.

The page is served by `dflashctl serve` as a person starts it, over the simulated runs of
`benchmarks.watchscale`; each steps once a second. CPU is Chromium's own count of the tab's renderer process,
and of its main thread alone. The time to interact is the browser's Event Timing: from the key or click to the
next frame painted; a loaded machine adds to that what others take.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playwright.sync_api import sync_playwright

from benchmarks.detection import quantile
from benchmarks.watchscale import ROOT, simulated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

CPU_TARGET = 0.10  # of one core
INTERACT_TARGET_MS = 60.0
SETTLE_S = 5.0
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
OBSERVE = """() => {
  window.timings = [];
  new PerformanceObserver((list) => {
    const acts = list.getEntries().filter((each) => each.interactionId);
    window.timings.push(...acts.map((each) => [each.name, each.duration]));
  }).observe({ type: "event", durationThreshold: 16, buffered: false });
}"""
LIVE = "(count) => document.querySelectorAll('.rows > [data-level=good]').length >= count"


@contextmanager
def served(record: Path) -> Iterator[str]:
    """Serve the record's runs; yields the URL."""
    begin, end = os.pipe()
    argv = [
        sys.executable,
        "-m",
        "orchestrator",
        "--record",
        str(record),
        "serve",
        "--observe-only",
        "--no-notify",
    ]
    argv += [
        "--listen",
        "127.0.0.1:0",
        "--ready-fd",
        str(end),
        "--token-file",
        str(record.with_name("token")),
    ]
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL, pass_fds=(end,))
    os.close(end)
    with os.fdopen(begin) as ready:
        url = ready.readline().strip()
    try:
        yield url
    finally:
        process.terminate()
        process.wait(30)


def cpu_s(browser: Browser) -> dict[str, float]:
    """Seconds of CPU so far by the browser's processes of each kind."""
    session = browser.new_browser_cdp_session()
    found: dict[str, float] = {}
    for each in session.send("SystemInfo.getProcessInfo")["processInfo"]:
        found[each["type"]] = found.get(each["type"], 0.0) + each["cpuTime"]
    session.detach()
    return found


def interact(page: Page) -> list[float]:
    """Type into the filter, click on heads of columns; return the ms to the next frame of each."""
    page.evaluate(OBSERVE)
    heads = page.get_by_role("columnheader").get_by_role("button")
    for word in ("run-1", "healthy", "05"):
        page.locator("#filter").click()
        for key in word:
            page.keyboard.press(key)
            page.wait_for_timeout(150)
        page.keyboard.press("Escape")
        page.wait_for_timeout(300)
    for place in (4, 4, 1, 5, 2, 0):
        heads.nth(place).click()
        page.wait_for_timeout(400)
    return [duration for _, duration in page.evaluate("window.timings")] or [0.0]  # all quicker than 16 ms


def measure(url: str, count: int, seconds: float) -> dict[str, Any]:
    """Open the page, leave it alone, then use it."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        begin = time.monotonic()
        page.goto(url)
        page.wait_for_function(LIVE, arg=count, timeout=180_000)
        all_live_s = time.monotonic() - begin
        page.wait_for_timeout(SETTLE_S * 1000)
        before, at = cpu_s(browser), time.monotonic()
        tasks = page.context.new_cdp_session(page)
        tasks.send("Performance.enable", {"timeDomain": "threadTicks"})  # what it took, not what it waited
        task = _task_s(tasks)
        page.wait_for_timeout(seconds * 1000)
        spent, took = cpu_s(browser), time.monotonic() - at
        main_thread = (_task_s(tasks) - task) / took
        timings = interact(page)
        version = browser.version
        browser.close()
    shares = {kind: (spent[kind] - before.get(kind, 0.0)) / took for kind in spent}
    return {
        "runs": count, "all_live_after_s": all_live_s, "renderer_cores": shares["renderer"],
        "main_thread_cores": main_thread, "browser_cores": sum(shares.values()),
        "interactions": len(timings), "median_ms": quantile(timings, 0.5), "p98_ms": quantile(timings, 0.98),
        "max_ms": max(timings), "chromium": version, "load_average": os.getloadavg()[0],
    }  # fmt: skip


def _task_s(session: Any) -> float:  # noqa: ANN401 - a CDP session
    metrics = session.send("Performance.getMetrics")["metrics"]
    return next(float(each["value"]) for each in metrics if each["name"] == "TaskDuration")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--step-s", type=float, default=1.0, help="seconds a step of every run")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with simulated(options.runs, options.step_s) as place, served(place.record) as url:
        found = measure(url, options.runs, options.seconds)
    print(
        f"{found['runs']} live runs in Chromium {found['chromium']}, load average {found['load_average']:.1f}"
    )
    print(
        f"renderer: {100 * found['renderer_cores']:.1f} % of a core (target {100 * CPU_TARGET:.0f} %)", end=""
    )
    print(f", its main thread {100 * found['main_thread_cores']:.1f} %", end="")
    print(f", all of Chromium {100 * found['browser_cores']:.1f} %")
    print(f"to interact: median {found['median_ms']:.0f} ms, p98 {found['p98_ms']:.0f} ms", end="")
    print(f", max {found['max_ms']:.0f} ms of {found['interactions']} (target {INTERACT_TARGET_MS:.0f} ms)")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
