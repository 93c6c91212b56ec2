"""The sink between the watch and who is told: another one after a reload, and never none."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest

from orchestrator.errors import ConfigError
from orchestrator.serve.relay import Relay
from tests.unit.serve.stage import begin, staged, told


class Sink:
    """Says what went through it, to a view."""

    def __init__(self, name: str, view) -> None:
        self.name, self.view = name, view
        self.texts: list[str] = []
        self.threads: set[str] = set()
        self.attached = None
        self.closed = threading.Event()

    def attach(self, fleet) -> None:
        self.attached = fleet

    def emit(self, event) -> None:
        self.texts.append(event.text)
        self.view.emit(event)

    def refresh(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.view.refresh()


class Settings:
    """What notify.yaml would say: a sink's name, nobody, or something wrong."""

    def __init__(self) -> None:
        self.name: str | None = "first"
        self.is_wrong = False
        self.sinks: list[Sink] = []

    @contextmanager
    def open(self, view):
        if self.is_wrong:
            raise ConfigError("notify.yaml:1: not a mapping")
        if self.name is None:
            yield None
            return
        sink = Sink(self.name, view)
        self.sinks.append(sink)
        yield sink
        sink.closed.set()


@pytest.fixture
def scene(tmp_path):
    with staged(tmp_path) as stage:
        settings = Settings()
        relay = Relay(stage.board, settings.open)
        stage.fleet._sink = relay
        relay.begin(stage.fleet)
        begin(stage)
        yield stage, settings, relay


def test_events_go_to_the_board_by_way_of_who_is_told(scene):
    stage, settings, relay = scene
    relay.emit(told("a death"))
    assert settings.sinks[0].texts == ["a death"]
    assert settings.sinks[0].attached is stage.fleet
    assert [each.event.text for each in stage.board.told()] == ["a death"]


def test_after_a_reload_another_one_is_told_and_the_old_one_sends_what_it_holds(scene):
    stage, settings, relay = scene
    settings.name = "second"
    relay.reload(stage.fleet)
    relay.emit(told("later"))
    first, second = settings.sinks
    assert (first.texts, second.texts) == ([], ["later"])
    assert first.closed.wait(60)
    settings.name = None
    relay.reload(stage.fleet)
    relay.emit(told("nobody"))
    assert second.texts == ["later"]
    assert second.closed.wait(60)
    assert [each.event.text for each in stage.board.told()] == ["later", "nobody"]
    assert {name for sink in settings.sinks for name in sink.threads} == {"fleet"}


def test_wrong_settings_leave_the_old_ones_in_force(scene):
    stage, settings, relay = scene
    settings.is_wrong = True
    with pytest.raises(ConfigError, match="not a mapping"):
        relay.reload(stage.fleet)
    relay.emit(told("still"))
    assert settings.sinks[0].texts == ["still"]
    assert not settings.sinks[0].closed.is_set()


def test_at_the_end_what_waits_is_sent(scene):
    stage, settings, relay = scene
    stage.fleet.stop()
    relay.close()
    assert settings.sinks[0].closed.is_set()
    relay.emit(told("after"))
    assert settings.sinks[0].texts == []
    assert [each.event.text for each in stage.board.told()] == ["after"]
