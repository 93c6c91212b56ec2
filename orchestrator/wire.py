"""JSON lines between the near side and the guest: framing, sequence numbers, and nothing else.

Pure and stdlib only, because the same file travels inside the guest.
"""

from __future__ import annotations

import base64
import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = 1
MAX_LINE_BYTES = 1 << 20
# A log chunk in base64 with its envelope must stay below MAX_LINE_BYTES.
MAX_CHUNK_BYTES = 512 * 1024
# `error` of an exit.json that a stop wrote in the place of a supervisor that could not.
SUPERVISOR_GONE = "supervisor gone"

Message = dict[str, Any]


class WireError(ValueError):
    """A line is not our protocol."""


class Encoder:
    """Numbers the lines of one direction from 0."""

    def __init__(self) -> None:
        self._seq = 0

    def encode(self, kind: str, fields: Mapping[str, Any] | None = None) -> bytes:
        """Return one line, ended by a newline.

        Raises:
            WireError: The line would be longer than MAX_LINE_BYTES.
        """
        body: Message = {"schema": SCHEMA, "seq": self._seq, "type": kind}
        body.update(fields or {})
        line = json.dumps(body, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"
        if len(line) > MAX_LINE_BYTES:
            raise WireError(f'a "{kind}" line of {len(line)} bytes is over {MAX_LINE_BYTES}')
        self._seq += 1
        return line


class Decoder:
    """Checks schema and sequence of the lines of one direction."""

    def __init__(self) -> None:
        self._seq = 0

    def decode(self, line: bytes) -> Message:
        """Return the message of one line.

        Raises:
            WireError: No JSON object, another schema, no type, or a gap in the sequence.
        """
        if len(line) > MAX_LINE_BYTES:
            raise WireError(f"a line of {len(line)} bytes is over {MAX_LINE_BYTES}")
        try:
            body = json.loads(line)
        except ValueError as error:
            raise WireError(f"not JSON: {line[:200]!r}") from error
        if not isinstance(body, dict) or not isinstance(body.get("type"), str):
            raise WireError(f'no object with a "type": {line[:200]!r}')
        if body.get("schema") != SCHEMA:
            raise WireError(f"schema {body.get('schema')!r}, this side speaks {SCHEMA}")
        if body.get("seq") != self._seq:
            raise WireError(f"line {body.get('seq')!r} where {self._seq} was due: something was lost")
        self._seq += 1
        return body


def finite_number(value: object) -> float | None:
    """Return a number of a trainer's file; None if it is something else, infinite, none or too large."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def pack_bytes(data: bytes) -> str:
    """Return log bytes as they travel."""
    return base64.b64encode(data).decode("ascii")


def unpack_bytes(text: str) -> bytes:
    """Return the bytes of `pack_bytes`.

    Raises:
        WireError: Not base64.
    """
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise WireError(f"not base64: {text[:60]!r}") from error
