"""The store through which ranks find each other: a file on one node, the agent's TCP store on several."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

from torch._C._distributed_c10d import FileStore, PrefixStore, TCPStore

from trainer.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch._C._distributed_c10d import Store

    from trainer.parallel.topology import Topology

STORE_FILE = "TRAINER_STORE"
"""Path of the store's file, set by our own launcher: no port, so none can be taken."""
CONNECT_S = 300.0


def connect(topology: Topology, environ: Mapping[str, str] | None = None, *, serve: bool = False) -> Store:
    """Open another connection to the job's store; each thread needs its own.

    `serve` lets rank 0 be the server where no launcher is one (MASTER_ADDR and MASTER_PORT set by hand).

    Raises:
        ConfigInvalid: nothing says where the store is.
    """
    environ = os.environ if environ is None else environ
    timeout = timedelta(seconds=CONNECT_S)
    if STORE_FILE in environ:
        store: Store = FileStore(environ[STORE_FILE], -1)  # -1: the file is its maker's to delete
    else:
        address, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT", "")
        if not address or not port.isdecimal():
            raise ConfigInvalid(
                f"RANK={topology.rank} but no MASTER_ADDR and MASTER_PORT; start the ranks with torchrun, or "
                "unset RANK and set parallel.processes"
            )
        by_agent = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        is_server = serve and topology.is_leader and not by_agent
        store = TCPStore(
            address, int(port), None, is_server, timeout, wait_for_workers=False, multi_tenant=is_server
        )
    store.set_timeout(timeout)
    return PrefixStore(f"trainer/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
