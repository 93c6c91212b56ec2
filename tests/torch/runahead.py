"""The trainer on the CPU with its host a step ahead, as on a GPU: `python -m tests.torch.runahead ARGS`.

AHEAD=0 leaves it as it is. POISON names micro-batches that hold a hidden state that is not a number.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any

from trainer import attempt, cli
from trainer.parallel.spawn import launch
from trainer.signals import StopSignals

if TYPE_CHECKING:
    from collections.abc import Callable


def launch_likewise(command: list[str], *args: Any, **more: Any) -> int:
    """Ranks that are as their launcher."""
    return launch(["tests.torch.runahead" if word == "trainer" else word for word in command], *args, **more)


def change_training() -> StopSignals:
    """Called where the trainer takes its signals: torch may be imported from here on."""
    from trainer import sources, train

    for source in (sources.LocalSource, sources.RemoteSource):
        setattr(source, "fetch", poisoned(source.fetch))  # noqa: B010 - mypy lets nobody assign it
    loop, ahead = vars(train)["Loop"], os.environ.get("AHEAD") != "0"
    vars(train)["Loop"] = lambda **parts: loop(**{**parts, "runs_ahead": ahead})
    return StopSignals()


def poisoned(fetch: Callable[..., Any]) -> Callable[..., Any]:
    bad = [int(index) for index in os.environ.get("POISON", "").split()]

    @functools.wraps(fetch)
    def call(source: Any, index: int, *args: Any) -> Any:
        sys.stdout.write(f"fetch {index}\n")
        batch, observation = fetch(source, index, *args)
        if index in bad:
            observation.taps[0, 0] = float("nan")
        return batch, observation

    return call


if __name__ == "__main__":
    vars(attempt)["launch"] = launch_likewise
    vars(attempt)["StopSignals"] = change_training
    sys.exit(cli.main())
