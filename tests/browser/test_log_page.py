"""The log's page: by range through a log of gigabytes, following, searching, and whatever bytes are in it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.browser.serving import Serving, check_page
from tests.integration.local import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

GIB = 1 << 30
WRITES = """\
import os, sys, time
number = 0
for _ in range(20000):
    number += 1
    print(f"line {number}: " + "x" * 80)
print("needle in the hay")
for _ in range(10000):
    number += 1
    print(f"line {number}: " + "y" * 80)
print("\\x1b[31mred\\x1b[0m and plain <b>bold</b><script>window.hit = 1</script>")
sys.stdout.buffer.write(b"\\x00\\xff\\xfe binary \\x1b]0;title\\x07 \\xe2\\x80\\xae end\\n")
print("w" * 50_000)
sys.stdout.flush()
while True:
    number += 1
    print(f"line {number}: live", flush=True)
    time.sleep(0.2)
"""

SCROLLS = """(wanted) => new Promise((found, failed) => {
  const view = document.querySelector(".view"), until = performance.now() + 240_000;
  const step = () => {
    const last = [...view.querySelectorAll(".l")].at(-1).textContent;
    if (Number(last.match(/line (\\d+)/)?.[1]) >= wanted) return found();
    if (performance.now() > until) return failed(new Error(`only to ${last.slice(0, 20)}`));
    view.scrollTop = view.scrollHeight;
    setTimeout(step, 50);
  };
  step();
})"""


@pytest.fixture(scope="module")
def served(local) -> Iterator[Serving]:
    local.begin("talker", "python3", "-c", WRITES)
    local.begin("big", "python3", "-uc", "print('the first line')\nwhile True: pass")
    log = local.state / "runs" / "big" / "attempts" / "1" / "log"
    wait_until(log.is_file, what="its log")
    wait_until(lambda: b"first" in log.read_bytes(), what="its first line")
    local.run("stop", "big", "--grace", "0s")
    os.truncate(log, 5 * GIB)  # sparse: one line of nothing, gigabytes long
    with log.open("ab") as file:
        file.write(b"\n" + b"".join(b"near the end %d\n" % n for n in range(5_000)) + b"the last line\n")
    with Serving(local) as served:
        yield served


def test_it_follows_scrolls_jumps_and_searches(served, visit):
    page = visit.open(f"{served.url}/runs/1/log")
    view = page.get_by_role("region", name="The log's text")
    live = view.locator(".l").filter(has_text=re.compile("line 3\\d{4}: live"))
    expect(live.first).to_be_visible()
    newest = int(re.findall(r"line (\d+): live", view.text_content() or "")[-1])
    expect(view).to_contain_text(f"line {newest + 5}: live")  # it follows
    assert page.evaluate("window.hit") is None, "markup in a log was run"
    expect(view.locator(".f1")).to_have_text("red")
    expect(view).to_contain_text("and plain <b>bold</b><script>")
    expect(view).to_contain_text("binary")
    assert "\u202e" not in view.inner_text(), "what turns the direction of text must not get through"
    page.get_by_role("button", name=re.compile("show whole")).click()
    assert len(view.locator(".l", has_text=re.compile("^w{3000}")).inner_text()) == 50_000

    page.get_by_role("button", name="Start").click()
    expect(view.locator(".l").first).to_have_text(re.compile("^line 1: "))
    page.evaluate(SCROLLS, 9_000)  # on and on, through chunks that are fetched on the way
    assert view.locator(".l").count() < 9_000, "what is far is let go of"
    _is_in_order(page)

    page.get_by_label("Go to byte or percent").fill("50%")
    page.keyboard.press("Enter")
    expect(view).to_contain_text(re.compile(r"line 15\d\d\d: "))
    page.get_by_label("Search the log").fill("Needle")
    page.get_by_role("button", name="Next").click()
    expect(view.locator(".hit")).to_have_text("needle in the hay")
    expect(page.locator(".status")).to_contain_text("found at byte")
    page.get_by_role("button", name="Next").click()
    expect(page.locator(".status")).to_contain_text("no further match")
    page.get_by_role("button", name="End").click()
    expect(live.first).to_be_visible()
    page.get_by_role("button", name="Previous").click()
    expect(view.locator(".hit")).to_have_text("needle in the hay")


def test_a_log_of_five_gigabytes_is_read_by_range(served, visit):
    page = visit.open(f"{served.url}/runs/2/log")
    view = page.get_by_role("region", name="The log's text")
    expect(view.get_by_text("the last line")).to_be_visible()
    expect(page.locator(".status")).to_contain_text("5.0 GiB")
    page.get_by_role("button", name="Start").click()
    expect(view.get_by_text("the first line")).to_be_visible()
    page.get_by_label("Go to byte or percent").fill(f"{3 * GIB:,}")
    page.keyboard.press("Enter")
    expect(page.locator(".status")).to_contain_text("60.0 %")
    expect(view).to_contain_text("␀\u00d72000")
    check_page(page)


def _is_in_order(page) -> None:
    numbers = [int(n) for n in re.findall(r"line (\d+): ", page.locator(".view").text_content())]
    assert len(numbers) > 500
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "a line is missing or twice there"
