"""Acts of one host wait for each other, and for no other host."""

from __future__ import annotations

import queue
import threading
from types import SimpleNamespace
from typing import Any

from orchestrator.watch.acting import MAX_AT_ONCE, ActEnded, Acts
from orchestrator.watch.patience import Patience
from tests.unit.watch.bench import FakeClock, FakeSite


class Stuck(FakeSite):
    """A host that answers when it is let go."""

    host_key = "stuck"

    def __init__(self, go: threading.Event) -> None:
        super().__init__()
        self.go = go

    def container_state(self) -> str | None:
        self.go.wait(60)
        return self.state


def hanging(name: str, target_key: str) -> Any:
    return SimpleNamespace(
        row=SimpleNamespace(id=1, name=name, target_key=target_key),
        teller=SimpleNamespace(attempt=1),
        patience=Patience(),
        hang_look=SimpleNamespace(begin=lambda: None, taken=None),
    )


def test_a_host_that_does_not_answer_holds_up_no_act_of_another(record):
    ended: queue.SimpleQueue[ActEnded] = queue.SimpleQueue()
    go = threading.Event()
    acts = Acts(record, {"s/1": Stuck(go), "o/1": FakeSite()}, FakeClock(), ended.put)
    for number in range(MAX_AT_ONCE + 1):
        acts.look_into(hanging(f"r{number}", "s/1"))
    acts.look_into(hanging("quick", "o/1"))
    try:
        assert ended.get(timeout=60).run.row.name == "quick"
        assert ended.empty()
    finally:
        go.set()
        acts.join(60)
