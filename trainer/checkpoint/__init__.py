"""Checkpoints that are complete or absent, hold all that resuming needs, and are written beside training."""

from trainer.checkpoint.layout import MARKER, complete_steps
from trainer.checkpoint.store import Checkpoints

__all__ = ["MARKER", "Checkpoints", "complete_steps"]
