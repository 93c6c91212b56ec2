"""The runs of a record as a view sees them: cards, lines, events, and what a person asks of them."""

from orchestrator.fleet.asking import Asking
from orchestrator.fleet.board import Board, Fleet, LogLine, Told
from orchestrator.fleet.card import GpuCard, NextAct, RunCard
from orchestrator.fleet.service import FleetWatch
from orchestrator.fleet.ways import Ways

__all__ = [
    "Asking",
    "Board",
    "Fleet",
    "FleetWatch",
    "GpuCard",
    "LogLine",
    "NextAct",
    "RunCard",
    "Told",
    "Ways",
]
