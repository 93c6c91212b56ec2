"""Which hosts and containers there are: data in, `Target` out. Opens no connection."""

from orchestrator.inventory.load import Inventory
from orchestrator.inventory.models import CONTAINER_STATE_DIR, LOCAL_STATE_DIR, Container, Host
from orchestrator.inventory.target import LOCAL, Target, resolve
from orchestrator.places import inventory_paths as find

__all__ = [
    "CONTAINER_STATE_DIR",
    "LOCAL",
    "LOCAL_STATE_DIR",
    "Container",
    "Host",
    "Inventory",
    "Target",
    "find",
    "resolve",
]
