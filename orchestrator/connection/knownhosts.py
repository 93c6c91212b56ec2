"""known_hosts files, as OpenSSH reads them: hashed and [host]:port names, wildcards, revoked keys. Pure.

paramiko's own reader forgets the line numbers that a message needs, and trusts `@revoked` lines.
"""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import hmac
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, kw_only=True)
class KnownKey:
    """One line of a known_hosts file; `line` counts from 1."""

    path: str
    line: int
    names: tuple[str, ...]
    key_type: str
    key: bytes
    is_revoked: bool = False


class Verdict(str, Enum):
    """What the files say of a key."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    REVOKED = "revoked"


def parse(text: str, path: str) -> tuple[KnownKey, ...]:
    """Return the keys of one file; lines that are none, and certificate authorities, are passed over."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#") or marker not in ("", "@revoked"):
            continue
        try:
            key = base64.b64decode(words[2], validate=True)
        except ValueError:
            continue
        found.append(
            KnownKey(
                path=path,
                line=number,
                names=tuple(words[0].split(",")),
                key_type=words[1],
                key=key,
                is_revoked=bool(marker),
            )
        )
    return tuple(found)


def host_name(address: str, port: int) -> str:
    """Return the name under which known_hosts lists a host: `address`, or `[address]:port` off port 22."""
    return address if port == 22 else f"[{address}]:{port}"


def matches(known: KnownKey, name: str) -> bool:
    """Tell whether a line is about the host of that name."""
    is_match = False
    for pattern in known.names:
        if pattern.startswith("|1|"):
            is_match = is_match or _matches_hash(pattern, name)
            continue
        is_negated = pattern.startswith("!")
        if _matches_pattern(pattern.removeprefix("!"), name):
            if is_negated:
                return False
            is_match = True
    return is_match


def _matches_pattern(pattern: str, name: str) -> bool:
    escaped = pattern.replace("[", "[[]")  # only * and ? are wild in known_hosts
    return fnmatch.fnmatchcase(name.lower(), escaped.lower())


def _matches_hash(pattern: str, name: str) -> bool:
    try:
        _, _, salt, digest = pattern.split("|")
        wanted = base64.b64decode(digest, validate=True)
        got = hmac.new(base64.b64decode(salt, validate=True), name.encode(), hashlib.sha1).digest()
    except ValueError:
        return False
    return hmac.compare_digest(got, wanted)


def judge(keys: Iterable[KnownKey], name: str, key_type: str, key: bytes) -> tuple[Verdict, KnownKey | None]:
    """Return the verdict on a host's key, and the line that decided.

    A host that is listed with keys of other types only has changed: we ask for the listed types first, so a
    host that still had one of them would have shown it.
    """
    about = [known for known in keys if matches(known, name)]
    for known in about:
        if known.is_revoked and known.key == key:
            return Verdict.REVOKED, known
    live = [known for known in about if not known.is_revoked]
    for known in live:
        if known.key == key:
            return Verdict.KNOWN, known
    same_type = [known for known in live if known.key_type == key_type]
    if live:
        return Verdict.CHANGED, (same_type or live)[0]
    return Verdict.UNKNOWN, None


def key_types(keys: Iterable[KnownKey], name: str) -> list[str]:
    """Return the key types that the files list for a host, in their order."""
    return list(
        dict.fromkeys(known.key_type for known in keys if matches(known, name) and not known.is_revoked)
    )


def fingerprint(key: bytes) -> str:
    """Return a key's fingerprint as `ssh-keygen -lf` prints it."""
    digest = base64.b64encode(hashlib.sha256(key).digest()).decode("ascii")
    return f"SHA256:{digest.rstrip('=')}"


def entry(name: str, key_type: str, key: bytes) -> str:
    """Return the line to add for a key that was accepted."""
    return f"{name} {key_type} {base64.b64encode(key).decode('ascii')}\n"
