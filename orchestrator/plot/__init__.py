"""A picture of a run: loss, speed and GPU memory over its steps, with every death and every resume."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError
from orchestrator.plot.curves import Curves, make_curves, read_curves
from orchestrator.plot.picture import png
from orchestrator.plot.text import chart
from orchestrator.plot.vector import STYLE, svg, svg_file

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.record import Record

__all__ = [
    "STYLE",
    "Curves",
    "chart",
    "make_curves",
    "plot_run",
    "png",
    "read_curves",
    "save_file",
    "svg",
    "svg_file",
]


def plot_run(record: Record, run_id: int, out: Path) -> Path:
    """Write the run's curves to `out`, an SVG if its name ends so, else a PNG; return its path.

    Raises:
        ConfigError: matplotlib is not installed, or `out` cannot be written.
        NotFound: No such run, or nothing to draw yet.
        RecordError: The record cannot be read.
    """
    curves = read_curves(record, run_id)
    is_svg = out.suffix.lower() == ".svg"
    return save_file(out, svg_file(curves).encode() if is_svg else png(curves), "plot")


def save_file(out: Path, data: bytes, what: str) -> Path:
    """Write the whole file or none; `what` names it in messages.

    Raises:
        ConfigError: It cannot be written.
    """
    partial = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        partial.write_bytes(data)
        partial.replace(out)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise ConfigError(
            f"{out}: the {what} cannot be written: {error.strerror}",
            hint="name another file, in a folder that exists",
        ) from error
    return out
