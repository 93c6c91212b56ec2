"""An upload of wheels whose sender fell silent gives the environment's lock back."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time

import pytest

from orchestrator.guest import venvhold, venvs, wheels
from orchestrator.guest.link import Lines, Link
from orchestrator.guest.refusal import Refusal

KEY = "0123456789abcdef"
NAME = "alpha-1.0-py3-none-any.whl"
BODY = bytes(range(256)) * 100
SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def pipe():
    ends = list(os.pipe())
    yield ends
    for fd in ends:
        os.close(fd)


def upload(state, fd):
    request = {
        "state_dir": str(state), "key": KEY,
        "files": [{"name": NAME, "size": len(BODY), "sha256": SHA256, "offset": 0}],
    }  # fmt: skip
    out = os.open(state / "out", os.O_WRONLY | os.O_CREAT)
    try:
        wheels.run("wheels", request, Link(Lines(fd), out))
    finally:
        os.close(out)


def test_a_sender_that_fell_silent_is_given_up_and_what_came_stays(tmp_path, pipe, monkeypatch):
    monkeypatch.setattr(wheels, "SILENT_S", 0.2)
    os.write(pipe[1], BODY[:10_000])
    refused = []

    def run() -> None:
        try:
            upload(tmp_path, pipe[0])
        except Refusal as refusal:
            refused.append(refusal)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive(), "it reads, and holds the lock, for as long as nobody sends"
    assert refused[0].code == "checksum"
    assert "nothing came for 0.2 s" in refused[0].message
    assert NAME in refused[0].message
    part = venvs.wheelhouse(tmp_path, KEY) / f".{NAME}.{SHA256[:16]}.part"
    assert part.read_bytes() == BODY[:10_000]
    with venvhold.hold(tmp_path, {}):
        """Another upload is not refused as busy."""


def test_one_that_is_slow_and_goes_on_is_taken_whole(tmp_path, pipe, monkeypatch):
    monkeypatch.setattr(wheels, "SILENT_S", 2.0)

    def send() -> None:
        for at in range(0, len(BODY), 3200):
            time.sleep(0.3)
            os.write(pipe[1], BODY[at : at + 3200])

    sender = threading.Thread(target=send)
    sender.start()
    upload(tmp_path, pipe[0])
    sender.join()
    assert (venvs.wheelhouse(tmp_path, KEY) / NAME).read_bytes() == BODY
    assert json.loads((tmp_path / "out").read_text())["have"] == {NAME: len(BODY)}
