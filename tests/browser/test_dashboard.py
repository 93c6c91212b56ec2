"""The dashboard as a person uses it: a run that really crashes, by real clicks in a real browser."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.browser.serving import PHONE, WIDE, Serving, check_page
from tests.integration.local import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.record import Record

pytestmark = pytest.mark.integration

ONE_CRASH = ("--crash-at", "30", "--crash-attempts", "1", "--fx-text")
LONG = "a-run-whose-name-is-as-long-as-a-name-may-be-60-characters-x"
# What the death meets, and what the test gives once it has looked: no state that it looks at ends by itself.
WAITS, GOES_ON = (f"extends: default\nbackoff: [{wait}]\njitter: 0\n" for wait in ("2h", "0s"))


@pytest.fixture(scope="module")
def served(local) -> Iterator[Serving]:
    with Serving(local) as served:
        yield served


def test_a_death_is_seen_explained_and_mended(local, served, visit):
    local.playbook.write_text(WAITS)
    page = visit.open(served.url, token=served.token)
    expect(page.get_by_role("heading", name="No runs yet")).to_be_visible()
    check_page(page)
    local.begin_standin(LONG, "--steps", "9000", "--step-s", "0.1", "--checkpoint-every", "2", *ONE_CRASH)
    row = page.get_by_role("row").filter(has_text=LONG)
    expect(row).to_be_visible()
    expect(row).to_contain_text("dead")  # as it happens: nobody reloads the page
    expect(row).to_contain_text(re.compile(r"fx_trace_race; relaunch in \d+ \w+.*, the last one"))
    expect(page.locator("#said")).to_contain_text(f"{LONG} is dead")
    expect(page).to_have_title(re.compile("1 dead"))
    check_page(page)

    row.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1, name=LONG)).to_be_visible()
    hit = page.locator(".around .hit")
    expect(hit).to_contain_text("RuntimeError: Detected that you are using FX")
    expect(page.locator(".around")).to_contain_text("step 30/9000")  # what came before the death
    expect(page.locator("#now")).to_contain_text("dead")
    check_page(page)

    assert local.attempts(LONG) == [1]
    local.playbook.write_text(GOES_ON)
    served.process.send_signal(signal.SIGHUP)  # the playbooks are read anew
    expect(page.locator("#now")).to_contain_text("healthy")  # relaunched, and nobody reloaded the page
    expect(page.locator("#now")).to_contain_text(re.compile(r"attempt\s*2"))
    expect(page.locator("#curves .key li")).to_have_count(2)
    expect(page.locator("#attempts tbody tr")).to_have_count(2)
    expect(hit).to_be_hidden()  # what an earlier attempt died of is folded
    page.get_by_text("Attempt 1, before the newest").click()
    expect(hit).to_be_visible()
    page.get_by_text("The newest values as a table").click()
    expect(page.locator("#curves tbody")).to_contain_text("fx_trace_race")
    local.run("stop", LONG, "--grace", "0s")


def test_a_run_is_stopped_and_relaunched_by_buttons(local, served, visit):
    local.begin_standin("steady", "--steps", "90000", "--step-s", "0.1")
    page = visit.open(served.url, token=served.token)
    expect(page.locator(".rows > .row").filter(has_text="steady")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("steady")
    expect(page.get_by_role("row")).to_have_count(2)
    page.keyboard.press("Enter")  # to the first that is left
    page.keyboard.press("Enter")
    expect(page.locator("#now")).to_contain_text("healthy")

    page.get_by_role("button", name="Stop").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Stop steady?")
    check_page(page)
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    page.wait_for_timeout(500)
    assert local.trainers("steady"), "it was stopped though its user said no"

    page.get_by_role("button", name="Stop").click()
    dialog.get_by_role("button", name="Stop it").click()
    expect(page.locator("#outcome")).to_contain_text("stopped by its user")
    expect(page.locator("#now")).to_contain_text("stopped")
    wait_until(lambda: not local.trainers("steady"), what="the trainer ends")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()

    page.get_by_role("button", name="Relaunch").click()
    expect(dialog).to_contain_text("attempt 2 starts, unchanged, from the checkpoint of step")
    dialog.get_by_role("button", name="Relaunch it").click()
    expect(page.locator("#outcome")).to_contain_text("attempt 2 started")
    expect(page.locator("#now")).to_contain_text("healthy")
    assert local.attempts("steady") == [1, 2]


def test_who_is_not_logged_in_may_look_only(served, visit):
    page = visit.open(served.url + "/runs/1")
    expect(page.locator("#now")).to_contain_text("step")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    page.get_by_role("link", name="Log in to stop or relaunch").click()
    visit.expected = ("401",)
    page.get_by_label("Token").fill("not-the-token-at-all")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("not the token")
    check_page(page)
    page.get_by_label("Token").fill(served.token)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(served.url + "/runs/1")
    expect(page.get_by_role("button", name="Relaunch")).to_be_visible()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()


@pytest.mark.parametrize(
    ("scheme", "size"), [("light", PHONE), ("dark", WIDE)], ids=["light phone", "dark and wide"]
)
def test_every_page_is_for_everyone(local, served, visit, scheme, size):
    with local.record() as record:
        _add_blind(record, local)
    visit.expected = ("404",)
    page = visit.open(served.url, token=served.token, size=size, scheme=scheme)
    blind = page.locator(".rows > .row").filter(has_text="out-of-reach")
    expect(blind).to_contain_text("blind")
    expect(blind).to_contain_text("not seen:")
    expect(blind).to_contain_text("last known: step 32, attempt 2")
    expect(blind.locator(".step")).to_have_text("32")
    expect(page.get_by_role("status").filter(has_text="The watch does not see everything")).to_be_visible()
    ready = {
        "/": ".rows > .row",
        "/runs/1": "#why .past summary",
        "/runs/1/log": ".view .l",
        "/login": "#token",
        "/nowhere": "h1",
    }
    for path, sign in ready.items():
        page.goto(served.url + path)
        expect(page.locator(sign).first).to_be_visible()
        check_page(page)


def test_a_lost_server_is_said_loudly_and_found_again(local, served, visit):
    visit.expected = (
        "ERR_CONNECTION_REFUSED",
        "ERR_INCOMPLETE_CHUNKED_ENCODING",
        "ERR_EMPTY_RESPONSE",
        "ERR_CONNECTION_RESET",
    )
    page = visit.open(served.url)
    expect(page.locator("#live")).to_have_text("live")
    row = page.locator(".rows > .row").filter(has_text="steady")
    expect(row.locator(".seen")).to_have_text("now")
    listen = served.listen
    served.end()
    banner = page.locator("#banner")
    expect(banner).to_contain_text("No connection to the server. What is shown is")
    expect(page.locator("#live")).to_have_text("not live")
    expect(row.locator(".seen")).to_have_text(
        re.compile(r"\d+ s")
    )  # it grows old, and is not said to be of now
    served.start(listen)
    expect(page.locator("#live")).to_have_text("live")
    expect(banner).to_contain_text("The watch does not see everything")  # of the host that is out of reach


def _add_blind(record: Record, local) -> None:
    """Put a run on record whose host nobody answers for."""
    from orchestrator.clock import SystemClock
    from orchestrator.inventory import Target
    from orchestrator.inventory.models import Host
    from orchestrator.launch import RunSpec, spec_document

    target = Target(
        host=Host(name="gone", address="127.0.0.1", user="nobody", port=1), ct=200, state_dir="/nowhere"
    )
    spec = spec_document(
        RunSpec(run="out-of-reach", config="tiny"), state_dir="/nowhere", attempt=1, created_at="t"
    )
    now = SystemClock().now()
    row = record.save_run("out-of-reach", target.to_json(), target.key, spec, now)
    record.save_attempt(row.id, 2, started_at=now, last_step=32)
