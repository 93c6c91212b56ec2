"""What apt and pip say: how far they are, and, when they fail, why and what to do. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_APT = re.compile(r"(?P<kind>dlstatus|pmstatus):[^:]*:(?P<percent>[\d.]+):(?P<text>.*)")
_FETCH = re.compile(r"(?:Downloading|Using cached|Processing) (?P<name>\S+)(?: \((?P<size>[^)]*)\))?")
_PROGRESS = re.compile(r"Progress (?P<done>\d+) of (?P<total>\d+)")
_WAITING = re.compile(r"Waiting for cache lock.*?held by (?P<who>process \d+ \([^)]*\))")
_ERROR = re.compile(r"(?i)^(E: |ERROR: |error: |dpkg: error|W: Failed|.*\bNo space left)")


@dataclass(frozen=True)
class Moment:
    """What is being done right now; `total` None: nobody knows how much it is."""

    text: str
    done: int = 0
    total: int | None = None
    is_bytes: bool = False


class Reader:
    """Makes moments of lines; keeps the last ones for the case that it fails."""

    KEEP = 200

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._name = ""

    def read(self, line: str) -> Moment | None:
        """Return what a line says of the progress; None if nothing."""
        if (found := _PROGRESS.fullmatch(line)) is not None:
            return Moment(self._name, int(found["done"]), int(found["total"]), is_bytes=True)
        if (found := _APT.fullmatch(line)) is not None:
            # Unpacking follows the download, each from 0 on.
            what = "downloading: " if found["kind"] == "dlstatus" else ""
            return Moment(f"{what}{found['text']}", int(float(found["percent"])), 100)
        if not line or line.startswith(("pmerror:", "media-change:")):
            return None
        self.lines = [*self.lines, line][-self.KEEP :]
        if (found := _WAITING.search(line)) is not None:
            return Moment(f"waiting for the apt of {found['who']}")
        if (found := _FETCH.match(line.strip())) is not None:
            self._name = found["name"].rpartition("/")[2]
            return None if self._name.endswith(".metadata") else Moment(self._name)
        if line.startswith(("Installing collected packages:", "making ", "importing ")):
            return Moment(
                line if len(line) < 70 else f"{line.partition(':')[0]}, {line.count(',') + 1} of them"
            )
        return None

    def tail(self, count: int = 12) -> tuple[str, ...]:
        """Return the last lines for a person."""
        return tuple(self.lines[-count:])


@dataclass(frozen=True)
class _Known:
    """A reason, by a word of it: what it means, and what to do."""

    pattern: re.Pattern[str]
    what: str
    fix: str


def _known(pattern: str, what: str, fix: str) -> _Known:
    return _Known(re.compile(pattern), what, fix)


_SPACE = _known(
    r"No space left|not enough free space|don't have enough free space",
    "the disk is full",
    "free some space in the container; what was begun is taken up again",
)
_APT_KNOWN = (
    _SPACE,
    _known(
        r"Could not get lock|Unable to (lock|acquire the dpkg)|is locked by another process",
        "another apt or dpkg is at work there",
        "wait for its end, then call again; `apt_wait` in the provision file says how long we wait",
    ),
    _known(
        r"Temporary failure resolving|Could not (resolve|connect)|Network is unreachable|Unable to connect"
        r"|Connection (failed|timed out|refused)|No route to host",
        "apt reaches no mirror from there",
        "give the container a network for a while; or `apt-get download` them and what they need on "
        "a machine of the same release, `pct push` each, and there `apt-get install -y ./*.deb`",
    ),
    _known(
        r"Unable to locate package|has no installation candidate",
        "its sources of apt do not have a package",
        "name a mirror in /etc/apt/sources.list there",
    ),
    _known(
        r"(?i)NO_PUBKEY|is not signed|InRelease.*(expired|not valid yet)",
        "a source of apt is not trusted there",
        "is the container's clock right? `dflashctl doctor` says so",
    ),
    _known(r"Failed to fetch|404 +Not Found", "a mirror did not have what its list says", "call again later"),
)
_PIP_KNOWN = (
    _SPACE,
    _known(
        r"Name or service not known|Temporary failure in name resolution|NewConnectionError|ConnectTimeout"
        r"|Network is unreachable|Connection refused|Failed to establish a new connection",
        "the container reaches no package index",
        "`dflashctl provision --offline` downloads here and carries them there",
    ),
    _known(
        r"(?i)\b(401|403)\b.*(unauthorized|forbidden|error)|credentials",
        "the index refused the login",
        "are name and password of the index's URL right?",
    ),
    _known(
        r"(?i)CERTIFICATE_VERIFY_FAILED|SSLError",
        "the index's certificate is not trusted there",
        "install ca-certificates there, or set PIP_CERT",
    ),
    _known(
        r"THESE PACKAGES DO NOT MATCH THE HASHES",
        "a package arrived damaged, or is not the locked one",
        "call again",
    ),
    _known(
        r"No matching distribution found|Could not find a version",
        "the index or wheelhouse does not have a locked version for its Python",
        "take another --torch-index, make the wheelhouse anew, or give --file with a lock of your own",
    ),
    _known(
        r"(?i)\bKilled\b|MemoryError",
        "it ran out of memory",
        "`pct set CT --memory MIB` on the host gives it more",
    ),
)


def why_apt(lines: tuple[str, ...]) -> tuple[str, str | None]:
    """Return what kept apt from it, and what to do."""
    return _why(_APT_KNOWN, lines)


def why_pip(lines: tuple[str, ...]) -> tuple[str, str | None]:
    """Return what kept pip from it, and what to do."""
    return _why(_PIP_KNOWN, lines)


def _why(known: tuple[_Known, ...], lines: tuple[str, ...]) -> tuple[str, str | None]:
    text = "\n".join(lines)
    for each in known:
        if each.pattern.search(text):
            return each.what, each.fix
    said = [line for line in lines if _ERROR.match(line)] or list(lines[-1:])
    return (said[-1] if said else "it said nothing"), None
