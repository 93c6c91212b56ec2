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

__all__ = ["PANE_TRIGGERS", "SIGNATURES", "TRIGGERS", "Signature", "Where"]

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

# One cheap look at a block of lines before any pattern. Lower case. Names of exceptions that hold none of
# these words come at the end of a traceback, whose lines are all read.
TRIGGERS: tuple[bytes, ...] = (
    *(b"error", b"exception", b"traceback", b"interrupt", b'file "', b"terminate", b"cancelled"),
    *(b"nan", b"kill", b"fault", b"abort", b"signal", b"exitcode", b"fatal", b"hangup", b"core dumped"),
    *(b"watchdog", b"warn", b"dynamo", b"assert", b"nvrm", b"the bus", b"device handle"),
    *(b"fail", b"memory", b"no space", b"not found", b"open file", b"in use", b"denied", b"is restricted"),
    *(b"args[", b"resolve", b"retr", b"c10_cuda", b"unexpected", b"devices were", b"timed out", b"no such"),
)
# A pane is small, and shows the words of the way there as well.
PANE_TRIGGERS: tuple[bytes, ...] = (
    *TRIGGERS,
    *(b"ssh", b"connection", b"disconnect", b"lxc", b"pct", b" running", b"locked", b"tmux", b"server"),
    *(
        b"session",
        b"can't",
        b"run as root",
        b"400 ",
        b"acquire",
        b"quorum",
        b"lost ",
        b"terminal",
        b"no current",
    ),
    *(b"responding", b"negotiate", b"key", b"rsync", b"channel", b"client_", b"identification", b"version"),
)
