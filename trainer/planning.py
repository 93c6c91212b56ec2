"""`python -m trainer plan`: what the worst step will take, told without a GPU."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING

from trainer.console import say
from trainer.parallel.topology import place
from trainer.plan import forecast, require_fit, useful_flops
from trainer.target.load import read_shape

if TYPE_CHECKING:
    from trainer.config import Config


def plan(config: Config, *, as_json: bool) -> int:
    """Print the forecast.

    Raises:
        ConfigInvalid: it does not fit in compute.memory_limit_bytes, if that is given.
    """
    shape = read_shape(dataclasses.replace(config.target, weights="random"))  # none are needed
    processes = config.parallel.processes or config.parallel.targets + 1
    topology = place(config.parallel, world_size=processes)
    found = forecast(config, shape, topology.num_drafters)
    flops = useful_flops(config, shape)
    if as_json:
        told = {
            "total_bytes": found.total,
            "ranks": [
                {
                    "role": rank.role,
                    "moment": rank.moment,
                    "bytes": rank.total,
                    "items": {item.name: item.bytes for item in rank.items},
                }
                for rank in found.ranks
            ],
            "elsewhere": {item.name: item.bytes for item in found.elsewhere},
            "flops_per_micro_batch": {"drafter": flops.drafter, "target": flops.target},
        }
        sys.stdout.write(json.dumps(told) + "\n")
    else:
        for line in found.lines():
            say(line)
        say(
            f"useful work of a micro-batch: drafter {flops.drafter / 1e12:.1f} TFLOP, target "
            f"{flops.target / 1e12:.1f} TFLOP"
        )
    if config.compute.memory_limit_bytes:
        require_fit(found, config.compute.memory_limit_bytes)
    return 0
