# pathlib would double the time that a call takes.
# ruff: noqa: PTH110, PTH123
"""Stand-ins for the host's `journalctl -k -f` and `dmesg --follow`, over a file of the lab.

Options, words and exit codes are those of systemd 252 and util-linux 2.38, tried without a journal. The file
has one JSON entry a line; `Faults.kernel_says` writes it. An option that is not here fails.
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOK_S = 0.02
FLAGS = {"-k", "-f", "--no-pager", "--no-tail"}
VALUES = {"-o", "--output-fields", "--grep", "--since", "--after-cursor"}
DENIED = "No journal files were opened due to insufficient permissions."


def die(message: str, code: int = 1) -> NoReturn:
    """End with a word."""
    sys.stderr.write(f"{message}\n")
    sys.exit(code)


def options(argv: list[str]) -> dict[str, str]:
    """Read journalctl's command line."""
    told: dict[str, str] = {}
    words = iter(argv)
    for word in words:
        name, _, value = word.partition("=")
        if name in FLAGS:
            told[name] = ""
        elif name in VALUES:
            told[name] = value or next(words)
        else:
            die(f"journalctl: unrecognized option '{word}'")
    if {"--since", "--after-cursor"} <= set(told):
        die("Please specify only one of --since=, --cursor=, and --after-cursor=.")
    return told


def entries(path: str, *, is_following: bool) -> Iterator[dict[str, Any] | None]:
    """Yield the entries, and None whenever there is no more for now; ends when nobody listens."""
    listener = select.poll()
    listener.register(1, select.POLLHUP | select.POLLERR)
    partial, offset = "", 0
    while not listener.poll(0):
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                file.seek(offset)
                *lines, partial = (partial + file.read()).split("\n")
                offset = file.tell()
            yield from map(json.loads, lines)
        if not is_following:
            return
        yield None
        time.sleep(LOOK_S)


def journalctl(lab: str) -> None:
    """Follow the kernel's lines as JSON."""
    told = options(sys.argv[1:])
    if os.path.exists(f"{lab}/kernel-denied"):
        die(DENIED)
    if os.path.exists(f"{lab}/no-journal") or os.path.exists(f"{lab}/real-kernel"):
        sys.stderr.write("No journal files were found.\n")
        path = f"{lab}/never"
    else:
        path = f"{lab}/kernel.jsonl"
    since = float(told.get("--since", "@0").removeprefix("@")) * 1e6
    after, wanted = told.get("--after-cursor"), told.get("--grep", "")
    is_reached = after is None
    for entry in entries(path, is_following="-f" in told):
        if entry is None:
            continue
        if not is_reached:
            is_reached = entry["__CURSOR"] == after
            continue
        if int(entry["__REALTIME_TIMESTAMP"]) >= since and re.search(wanted, entry["MESSAGE"]):
            sys.stdout.write(json.dumps(entry) + "\n")
            sys.stdout.flush()


def dmesg(lab: str) -> None:
    """Follow the kernel's buffer, from its beginning, with ISO times."""
    if sys.argv[-2:] != ["--time-format", "iso"] or sys.argv[1:-2] not in ([], ["--follow"]):
        die(f"dmesg: unrecognized option '{sys.argv[1]}'")
    if os.path.exists(f"{lab}/real-kernel"):
        os.execv("/usr/bin/dmesg", ["dmesg", *sys.argv[1:]])
    if os.path.exists(f"{lab}/kernel-denied"):
        die("dmesg: read kernel buffer failed: Operation not permitted")
    for entry in entries(f"{lab}/kernel.jsonl", is_following="--follow" in sys.argv):
        if entry is None:
            continue
        micros = int(entry["__REALTIME_TIMESTAMP"])
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(micros // 1_000_000))
        sys.stdout.write(f"{at},{micros % 1_000_000:06d}+00:00 {entry['MESSAGE']}\n")
        sys.stdout.flush()


def main(name: str, lab: str) -> None:
    """Be the program of that name."""
    {"journalctl": journalctl, "dmesg": dmesg}[name](lab)
