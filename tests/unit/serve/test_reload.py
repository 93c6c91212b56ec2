"""Reloads: however often they are asked, one at a time."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from orchestrator.serve.running import Running
from orchestrator.serve.sdnotify import Notifier
from tests.unit.serve.stage import staged

if TYPE_CHECKING:
    from orchestrator.serve.relay import Relay


class Slow:
    """Stands for what opens the messages anew."""

    def __init__(self) -> None:
        self.num_now = self.most = self.count = 0

    def reload(self, _fleet: object) -> None:
        self.num_now += 1
        self.count += 1
        self.most = max(self.most, self.num_now)
        time.sleep(0.05)
        self.num_now -= 1


def test_a_storm_of_reloads_is_a_few_of_them_one_after_the_other(tmp_path):
    async def work(running: Running) -> None:
        asked = asyncio.Event()
        task = asyncio.ensure_future(running.reload_as(asked))
        for _ in range(200):
            asked.set()
            await asyncio.sleep(0.0001)
        await asyncio.sleep(0.2)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    slow = Slow()
    with staged(tmp_path) as stage:
        running = Running(
            app=stage.app,
            parts=stage.parts,
            relay=cast("Relay", slow),
            notifier=Notifier({}),
            ready=lambda: None,
        )
        began = time.monotonic()
        asyncio.run(work(running))
        most = 2 + (time.monotonic() - began) / 0.05
        assert slow.most == 1
        assert 1 <= slow.count <= most
        assert len([each for each in stage.board.told() if each.event.kind == "reload"]) == slow.count
