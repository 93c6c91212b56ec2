"""Makes text from a container safe to print: it may hold anything, and a terminal obeys much. Pure.

Sequences by ECMA-48 and xterm's ctlseqs: CSI, OSC (8 is a link, 52 the clipboard), DCS, SOS, PM, APC, C1.
"""

from __future__ import annotations

import re

MIN_LIMIT = 40
MARK_ROOM = 20
MAX_COLOURS = 200  # in a line: colours do not count as length, so their number is bounded apart
RESET = "\x1b[0m"

# No body holds what begins another, so that unended ones take linear time.
_SGR = r"\x1b\[[0-9;:]{0,40}m"
_STRINGS = r"(?:\x1b[PX\]^_]|[\x90\x98\x9d-\x9f])[^\x07\x18\x1a\x1b\x80-\x9f\n]*(?:\x07|\x1b\\|\x9c)"
_CSI = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
_ESCAPE = r"\x1b[ -/]*[0-~]?"
# What is left of C0 (all but tab and newline), DEL, C1, the direction marks and overrides of Unicode (they
# make a line read as what it is not), and its two line ends, which some programs take for ours.
_CONTROL = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_TOKEN = re.compile(f"(?P<text>[^{_CONTROL}]+)|(?P<colour>{_SGR})|{_STRINGS}|{_CSI}|{_ESCAPE}|[{_CONTROL}]")
_HARMLESS = re.compile("[\t -~]*")
_SURROGATE = re.compile("[\ud800-\udfff]")


def clean(text: str, limit: int = 4000) -> str:
    """Return `text` without any control sequence but colours (SGR), each line of at most `limit` characters.

    A longer line ends in a mark that says how much was cut. A line that set a colour ends in a reset, so that
    it cannot colour what is printed after it; text meant to be concealed is shown. A carriage return becomes
    a newline. Cleaning twice changes nothing. A `limit` under 40 is taken as 40.
    """
    return _clean(text, max(limit, MIN_LIMIT), colours=True)


def plain(text: str, limit: int = 4000) -> str:
    """Return `clean(text)` without colours."""
    return _clean(text, max(limit, MIN_LIMIT), colours=False)


def one_line(text: str, limit: int = 200) -> str:
    """Return `plain(text)` on one line, white space folded: for a table, a title or a one-line error."""
    return plain(" ".join(plain(text, len(text)).split()), limit)


def _clean(text: str, limit: int, *, colours: bool) -> str:
    text = _SURROGATE.sub("\ufffd", text).replace("\r\n", "\n").replace("\r", "\n")
    return "\n".join(_clean_line(line, limit, colours=colours) for line in text.split("\n"))


def _clean_line(line: str, limit: int, *, colours: bool) -> str:
    if len(line) <= limit and _HARMLESS.fullmatch(line):
        return line
    kept: list[str] = []  # colours and runs of text
    length = num_colours = 0
    for token in _TOKEN.finditer(line):
        if (run := token.group("text")) is not None:
            length += len(run)
            kept.append(run)
        elif (colour := token.group("colour")) is not None and colours and not _conceals(colour):
            num_colours += 1
            if num_colours < MAX_COLOURS:
                kept.append(colour)
    if length > limit:
        return "".join(_cut(kept, length, limit))
    return "".join(_closed(kept))


def _cut(kept: list[str], length: int, limit: int) -> list[str]:
    """Return the line up to `limit` characters, the mark included."""
    room = limit - MARK_ROOM
    mark = f" ...[{length - room} more]"
    short = []
    for token in kept:
        if token.startswith("\x1b"):
            short.append(token)
            continue
        short.append(token[:room])
        room -= len(short[-1])
        if room == 0:
            break
    return [*_closed(short), mark]


def _closed(kept: list[str]) -> list[str]:
    """Return the line with a reset after its last colour, if that is not one itself."""
    colours = [token for token in kept if token.startswith("\x1b")]
    if not colours or colours[-1] in {RESET, "\x1b[m"}:
        return kept
    return [*kept, RESET]


def _conceals(colour: str) -> bool:
    """SGR 8 hides text; an 8 that belongs to 38, 48 or 58 is a colour's number (xterm: 5;n or 2;r;g;b)."""
    parts = colour[2:-1].split(";")
    while parts:
        head, colon, _ = parts.pop(0).lstrip("0").partition(":")
        if head == "8":
            return True
        if head in {"38", "48", "58"} and parts and not colon:
            parts = parts[4:] if parts[0].lstrip("0") == "2" else parts[2:]
    return False
