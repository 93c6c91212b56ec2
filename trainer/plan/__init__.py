"""What a step will take, by arithmetic alone: memory, disk, traffic and useful work. Imports no torch."""

from trainer.plan.fit import require_fit
from trainer.plan.flops import Flops, useful_flops
from trainer.plan.memory import forecast, shards, shares_out
from trainer.plan.result import Forecast, Item, Rank

__all__ = [
    "Flops",
    "Forecast",
    "Item",
    "Rank",
    "forecast",
    "require_fit",
    "shards",
    "shares_out",
    "useful_flops",
]
