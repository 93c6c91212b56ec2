"""Every way out of the container: what the guest says of a run holds none of its secrets, at its offsets."""

from __future__ import annotations

import json
import sys

import pytest

from orchestrator import wire
from tests.integration import guest_driver as driver

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not driver.HAS_TMUX, reason="no tmux")]

VALUE = "s3cret-value-of-mine"
TOKEN = "hf_" + "aB3dE6gH9" * 4
# It prints its secrets whole and in two writes, writes them into every file of the contract, and dies.
TELLS_ALL = """
import json, os, sys, time
folder = os.environ["DFLASHCTL_ATTEMPT_DIR"]
value, token = os.environ["MY_TOKEN"], "hf_" + "aB3dE6gH9" * 4
def put(name, fields):
    with open(f"{folder}/.{name}", "w") as file:
        json.dump({"schema": 1, **fields}, file)
    os.replace(f"{folder}/.{name}", f"{folder}/{name}")
print(f"login with {value} and {token}", flush=True)
sys.stdout.write(f"in two: {value[:7]}"); sys.stdout.flush(); time.sleep(0.3)
sys.stdout.write(f"{value[7:]} {token[:9]}"); sys.stdout.flush(); time.sleep(0.3)
print(token[9:], "done", flush=True)
put("environment.json", {"argv": ["train.py", "--token", value], "python": "3.11"})
put("error.json", {"exception": "ValueError", "message": f"bad {value}", "traceback": repr(token)})
put("result.json", {"step": 1, "note": value})
with open(f"{folder}/metrics.jsonl", "w") as file:
    file.write(json.dumps({"kind": "train", "step": 1, "note": f"x {token}"}) + "\\n")
sys.stdout.write(f"at the end: {value}"); sys.stdout.flush()
time.sleep(float(sys.argv[1]))
sys.exit(1)
"""


@pytest.fixture
def guest(tmp_path):
    yield from driver.lend(tmp_path)


def start(guest: driver.Guest, seconds: float, attempt: int = 1, value: str = VALUE) -> None:
    argv = [sys.executable, "-c", TELLS_ALL, str(seconds)]
    started = guest.start(argv=argv, attempt=attempt, env={"MY_TOKEN": value})
    assert started["type"] == "started", started


def logged(lines: list[driver.Message]) -> bytes:
    out = b""
    for line in lines:
        if line["type"] == "log":
            assert line["offset"] == len(out)
            out += wire.unpack_bytes(line["data"])
    return out


def assert_hidden(*answers: object) -> None:
    """Neither in plain sight nor in the bytes of the log."""
    for answer in answers:
        text = answer.decode() if isinstance(answer, bytes) else json.dumps(answer)
        for secret in (VALUE, TOKEN[3:], TOKEN[12:]):
            assert secret not in text


def test_no_secret_leaves_by_any_verb(guest):
    watch = guest.watch()
    start(guest, 0.5)
    watch.until("exit")
    watch.until(lambda m: m["type"] == "run" and m["alive"] and not m["alive"]["lock_held"])
    whole = (guest.dir("r", 1) / "log").read_bytes()
    assert whole.count(VALUE.encode()) == 3
    assert whole.count(TOKEN.encode()) == 2
    shown = whole.replace(VALUE.encode(), b"*" * 20).replace(TOKEN[3:].encode(), b"*" * 36)
    assert watch.log() == shown
    assert_hidden(watch.lines)
    told = {m["type"]: m for m in watch.lines}
    assert told["environment"]["value"]["argv"] == ["train.py", "--token", "*" * 20]
    assert told["last_words"]["value"]["message"] == f"bad {'*' * 20}"
    assert told["metrics"]["lines"][0]["step"] == 1

    tail, look = guest.ask("tail", run="r", offset=0), guest.ask("look", run="r", log_bytes=1 << 20)
    assert logged(tail) == logged(look) == shown
    assert_hidden(tail, look)

    pulled = guest.ask("pull", run="r", path="attempts")
    for name in ("log", "error.json", "environment.json", "result.json", "metrics.jsonl"):
        data = [m for m in pulled if m["type"] == "data" and m["path"] == f"attempts/1/{name}"]
        assert_hidden(b"".join(wire.unpack_bytes(m["data"]) for m in data))
        assert data, name
    assert watch.close() == 0


def test_a_tail_from_the_middle_of_a_secret_shows_none_of_it(guest):
    start(guest, 0)
    guest.exit()
    whole = (guest.dir("r", 1) / "log").read_bytes()
    at = whole.index(TOKEN.encode()) + 12
    (log, _) = guest.ask("tail", run="r", offset=at)
    assert (log["offset"], wire.unpack_bytes(log["data"])[:24]) == (at, b"*" * 24)


def test_the_pane_shows_no_secret(guest):
    start(guest, 30)
    driver.wait_until(lambda: "at the end" in guest.tmux("capture-pane", "-p", "-J", "-t", "=r:"))
    shown = guest.tmux("capture-pane", "-p", "-J", "-t", "=r:")
    assert f"login with {'*' * 20} and hf_" in shown
    assert_hidden(shown.encode())


def test_a_foreign_pane_shows_no_secret(guest):
    code = f"echo $MY_TOKEN {TOKEN}; sleep 60"
    guest.tmux("new-session", "-d", "-s", "other", "-e", f"MY_TOKEN={VALUE}", "sh", "-c", code)
    guest.env["MY_TOKEN"] = VALUE  # as the container's own environment has it
    seen: list[list[str]] = []

    def is_there() -> bool:
        lines = guest.ask("capture", session="other", socket="dflashctl", lines=10)[0]["lines"]
        seen.append(lines)
        return bool(lines)

    driver.wait_until(is_there)
    assert seen[-1] == [f"{'*' * 20} hf_{'*' * 36}"]


def test_a_log_of_an_earlier_attempt_stays_masked_when_the_secret_was_changed(guest):
    start(guest, 0)
    guest.exit()
    start(guest, 0, attempt=2, value="another-s3cret")
    guest.exit(2)
    for attempt in (1, 2):
        text = logged(guest.ask("tail", run="r", attempt=attempt, offset=0))
        assert_hidden(text)
        assert b"another-s3cret" not in text


def test_the_last_words_of_a_line_without_an_end_come_though_nothing_follows(guest):
    watch = guest.watch()
    start(guest, 30)
    watch.until(lambda m: m["type"] == "log" and b"at the end" in wire.unpack_bytes(m["data"]))
    assert watch.log().endswith(b"at the end: " + b"*" * 20)
    watch.close()
