"""Parse `--inject CLASS@WHEN[:RANK][!]`: which failure, when, on which rank, and in later attempts too?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from trainer.errors import ConfigInvalid
from trainer.heartbeat import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping


class Failure(str, Enum):
    """The ways in which the trainer can be told to fail, each by really doing it."""

    FX_TRACE = "fx-trace"
    """A second thread is inside torch.fx.symbolic_trace while the compiled layer is called."""
    OOM_DENSE = "oom-dense"
    """flex_attention is called uncompiled at a size whose scores cannot be allocated."""
    HANG = "hang"
    """Two threads each wait for the other's lock."""
    NAN = "nan"
    """A weight becomes NaN."""
    SIGKILL = "sigkill"
    """The process kills itself with SIGKILL."""
    SEGV = "segv"
    """The process reads address 0."""
    DISK_FULL = "disk-full"
    """A checkpoint is written to a full device."""
    EXIT = "exit"
    """sys.exit(3), without a word."""
    PYTHON = "python"
    """An ordinary exception."""
    IMPORT = "import"
    """A module that is not installed is imported."""
    SLOW = "slow"
    """From here on each step takes a second longer."""


_PHASES = tuple(phase.value for phase in Phase)
_SPEC = re.compile(
    rf"(?P<name>[a-z-]+)@(?:(?P<step>[1-9][0-9]*)|(?P<phase>{'|'.join(_PHASES)}))(?::(?P<rank>[0-9]+))?(?P<always>!?)"
)


@dataclass(frozen=True, slots=True)
class Injection:
    """Fail this way while step `step` (1 is the first) is computed, or as soon as a phase is entered."""

    failure: Failure
    step: int | None
    phase: Phase | None
    rank: int
    always: bool


def parse(spec: str) -> Injection:
    """Read `CLASS@STEP` or `CLASS@PHASE`, then perhaps `:RANK`, then perhaps `!`.

    Raises:
        ConfigInvalid: not of that form, or an unknown class.
    """
    match = _SPEC.fullmatch(spec)
    names = ", ".join(failure.value for failure in Failure)
    if match is None:
        raise ConfigInvalid(
            f"--inject {spec}: not CLASS@STEP, CLASS@PHASE or either with :RANK or !; CLASS is one of "
            f"{names}; PHASE one of {', '.join(_PHASES)}"
        )
    if match["name"] not in {failure.value for failure in Failure}:
        raise ConfigInvalid(f"--inject {spec}: {match['name']!r} is not a class; allowed: {names}")
    return Injection(
        Failure(match["name"]),
        None if match["step"] is None else int(match["step"]),
        None if match["phase"] is None else Phase(match["phase"]),
        int(match["rank"] or 0),
        bool(match["always"]),
    )


def due(injections: list[Injection], environ: Mapping[str, str]) -> list[Injection]:
    """Those that fire in this attempt: all in the first or in one started by hand, else the `!` ones."""
    first = environ.get("DFLASHCTL_ATTEMPT", "1") == "1"
    return [injection for injection in injections if first or injection.always]
