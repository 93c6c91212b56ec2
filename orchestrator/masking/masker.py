"""Masks known values and known shapes with as many bytes as they had, so that offsets stay true. Pure."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from orchestrator.masking.shapes import REACH, SHAPES, Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["REACH", "Masker"]

STAR = b"*"
# A line of a longer value is known by its pieces, each of which a window of REACH bytes holds.
MAX_VALUE_BYTES = 4096
MIN_LINE_BYTES = 8
# Of a value that the end of a text cuts, fewer bytes than this give nothing away.
MIN_CUT_BYTES = 3


class Masker:
    """Masks the values given and every shape of `shapes`; made once a run, used for every piece."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        found = dict.fromkeys(form for value in values for form in _forms(value))
        self._values = tuple((value, _period(value)) for value in sorted(found, key=len, reverse=True))

    def mask(self, data: bytes, *, is_cut: bool = False) -> bytes:
        """Return `data` with its secrets starred out, of the same length.

        With `is_cut` the text may go on: a secret that its end cuts is masked as far as it is there.
        """
        spans = [span for span in self._spans(data, is_cut=is_cut) if span[0] < span[1]]
        if not spans:
            return data
        masked = bytearray(data)
        for begin, end in spans:
            masked[begin:end] = STAR * (end - begin)
        return bytes(masked)

    def text(self, text: str) -> str:
        """Return `text` with its secrets starred out, a star for each of their UTF-8 bytes."""
        data = text.encode("utf-8", "surrogatepass")
        masked = self.mask(data)
        return text if masked is data else masked.decode("utf-8", "surrogatepass")

    def json(self, value: Any) -> Any:  # noqa: ANN401 - any JSON
        """Return plain JSON data with the secrets in its texts starred out; keys are left alone."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self._json_of(key, item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            # In an argv the flag that names a secret stands before it.
            names = [None, *(item if str(item).startswith("-") else None for item in value)]
            return [self._json_of(name, item) for name, item in zip(names, value, strict=False)]
        return value

    def _json_of(self, key: object, item: Any) -> Any:  # noqa: ANN401
        """`{"HF_TOKEN": "..."}` is an assignment, though nothing of it is in the text itself."""
        if not isinstance(item, str) or key is None:
            return self.json(item)
        head = f"{key}="
        whole = self.text(head + item)
        return self.text(item) if "\n" in head or not whole.startswith(head) else whole[len(head) :]

    def _spans(self, data: bytes, *, is_cut: bool) -> Iterator[Span]:
        for value, period in self._values:
            at = data.find(value)
            while at >= 0:
                yield at, at + len(value)
                at = data.find(value, at + period)
            if is_cut and (num_there := _cut_length(data, value)):
                yield len(data) - num_there, len(data)
        lower = data.lower()
        for shape in SHAPES:
            yield from shape.spans(data, lower, is_cut=is_cut)


def _forms(value: str) -> Iterator[bytes]:
    """The ways in which a value is printed: as it is, a line at a time, escaped, as part of a URL."""
    for line in re.split(r"[\r\n]+", value):
        told = line.strip()
        if len(told.encode("utf-8", "surrogatepass")) < min(MIN_LINE_BYTES, len(value.strip())):
            continue
        for form in (told, json.dumps(told)[1:-1], repr(told)[1:-1], _quoted(told)):
            data = form.encode("utf-8", "surrogatepass")
            yield from (data[at : at + MAX_VALUE_BYTES] for at in range(0, len(data), MAX_VALUE_BYTES))


def _quoted(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


def _period(value: bytes) -> int:
    """The least distance at which `value` can overlap itself (Knuth, Morris and Pratt's failure function)."""
    fails = [0] * len(value)
    length = 0
    for index in range(1, len(value)):
        while length and value[index] != value[length]:
            length = fails[length - 1]
        length += value[index] == value[length]
        fails[index] = length
    return len(value) - (fails[-1] if fails else 0)


def _cut_length(data: bytes, value: bytes) -> int:
    """How many bytes of the beginning of `value` the end of `data` is, 0 if too few to tell."""
    for length in range(min(len(value) - 1, len(data)), MIN_CUT_BYTES - 1, -1):
        if data.endswith(value[:length]):
            return length
    return 0
