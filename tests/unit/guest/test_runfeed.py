"""The line of a run fits the wire, whatever its stop says is to follow."""

from __future__ import annotations

import json
import os

import pytest

from orchestrator import wire
from orchestrator.guest.link import Lines, Link
from orchestrator.guest.paths import RunDir
from orchestrator.guest.runfeed import RunFeed
from orchestrator.handover import then_document
from orchestrator.launch import RELAUNCH_REASON, RunSpec


def told_stop(tmp_path, config):
    """Write a stop for a relaunch with that configuration; return it, and what the run's line says of it."""
    spec = RunSpec(run="r", config=None, config_toml=config)
    then = then_document(spec, state_dir="/s", attempt=2, reason="so", changes={}, actor={"pid": 1})
    stop = {"schema": 1, "by": "user", "reason": RELAUNCH_REASON, "attempt": 1, "at": "t", "then": then}
    place = RunDir(tmp_path, "r")
    place.attempt(1).mkdir(parents=True)
    place.stop.write_text(json.dumps(stop))
    feed = RunFeed(place)
    feed.follow(None, 0, 0)
    fd = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    try:
        for kind, fields in feed.turn({}, set()):
            Link(Lines(), fd).send(kind, fields)
    finally:
        os.close(fd)
    line = wire.Decoder().decode((tmp_path / "out").read_bytes().splitlines()[0])
    return stop, line["stop"]


@pytest.mark.parametrize("lines", [40_000, 80_000])
def test_what_follows_a_stop_is_left_out_where_it_is_far_too_long(tmp_path, lines):
    config = "".join(f"key_{number} = {number}\n" for number in range(lines))
    stop, told = told_stop(tmp_path, config)
    assert len(json.dumps(stop)) > 600_000
    assert told == {key: value for key, value in stop.items() if key != "then"}


def test_what_follows_a_stop_is_whole_where_it_fits(tmp_path):
    stop, told = told_stop(tmp_path, "".join(f"key_{number} = {number}\n" for number in range(10_000)))
    assert told == stop
