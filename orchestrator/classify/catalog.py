"""The catalogue: what a failure looks like in a log. Facts, typed and tested; what to do is a playbook's.

The first match wins, so names that lie come before the names they lie about: transport before the network,
the card before the program, a compiler's "out of memory" before memory's own.
"""

from __future__ import annotations

from orchestrator.classify.catalog_ends import ENDS, FIRST
from orchestrator.classify.catalog_hardware import CUDA, CUDA_OTHER, HARDWARE
from orchestrator.classify.catalog_memory import FILES, MEMORY
from orchestrator.classify.catalog_network import NETWORK
from orchestrator.classify.catalog_program import COMPILING, PROGRAM
from orchestrator.classify.catalog_transport import TRANSPORT
from orchestrator.classify.signature import Signature, Where

__all__ = ["SIGNATURES", "Signature", "Where"]

SIGNATURES: tuple[Signature, ...] = (
    *FIRST,
    *TRANSPORT,
    *HARDWARE,
    *COMPILING,
    *CUDA,
    *MEMORY,
    *NETWORK,
    *FILES,
    *PROGRAM,
    *CUDA_OTHER,
    *ENDS,
)
