"""What is seen: one stream per container, folded into one snapshot per run. Never changes anything."""

from orchestrator.observe.attempt import Sighting
from orchestrator.observe.holders import Holder, gpu_holders
from orchestrator.observe.host import container_state
from orchestrator.observe.hoststream import HostMute, HostReady, HostSaid, KernelSource, KernelStream
from orchestrator.observe.look import is_alive, look
from orchestrator.observe.onlookers import Onlooker
from orchestrator.observe.standstill import standstill
from orchestrator.observe.stream import (
    ContainerSeen,
    ContainerStream,
    Cursor,
    Lost,
    Observation,
    Received,
    Source,
)
from orchestrator.observe.tracker import NOT_LOOKED, RunTracker

__all__ = [
    "NOT_LOOKED",
    "ContainerSeen",
    "ContainerStream",
    "Cursor",
    "Holder",
    "HostMute",
    "HostReady",
    "HostSaid",
    "KernelSource",
    "KernelStream",
    "Lost",
    "Observation",
    "Onlooker",
    "Received",
    "RunTracker",
    "Sighting",
    "Source",
    "container_state",
    "gpu_holders",
    "is_alive",
    "look",
    "standstill",
]
