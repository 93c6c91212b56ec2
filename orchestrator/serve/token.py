"""The token that opens the service: kept in a file of mode 0600, never sent back, compared in equal time."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.errors import ConfigError

NAME = "serve.token"
MIN_CHARACTERS = 16
SESSION_S = 14 * 86400.0
_OTHERS = 0o077
_MAX_BYTES = 4096


@dataclass(frozen=True)
class Token:
    """The secret. `is_new`: this call made it."""

    secret: str = field(repr=False)
    path: Path | None = None
    is_new: bool = False

    def fits(self, word: str) -> bool:
        """Whether that is the token."""
        return hmac.compare_digest(word.encode("utf-8", "replace"), self.secret.encode())

    def session(self, now_s: float) -> str:
        """Return a cookie's value for a login now: it ends by itself, or with another token."""
        body = f"{now_s + SESSION_S:.0f}.{secrets.token_urlsafe(9)}"
        return f"{body}.{self._sum('session', body)}"

    def is_session(self, value: str, now_s: float) -> bool:
        """Whether that is the value of a login that still holds."""
        body, _, sealed = value.rpartition(".")
        until = body.partition(".")[0]
        if not hmac.compare_digest(sealed.encode("utf-8", "replace"), self._sum("session", body).encode()):
            return False
        return until.isascii() and until.isdigit() and float(until) > now_s

    def csrf(self, session: str) -> str:
        """Return what the acts of one session must send."""
        return self._sum("csrf", session)

    def is_csrf(self, word: str, session: str) -> bool:
        """Whether that is it."""
        return hmac.compare_digest(word.encode("utf-8", "replace"), self.csrf(session).encode())

    def _sum(self, purpose: str, body: str) -> str:
        key = hashlib.sha256(b"dflashctl serve " + self.secret.encode()).digest()
        return hmac.new(key, f"{purpose} {body}".encode("utf-8", "replace"), "sha256").hexdigest()


def default_path() -> Path:
    """Return where the token is kept."""
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "dflashctl" / NAME


def load(path: Path | None = None, *, may_make: bool = True) -> Token:
    """Return the token of the file; one is made if there is no file, and `may_make`.

    Raises:
        ConfigError: The file can neither be read nor made, others may read it, or it holds no token.
    """
    place = path or default_path()
    try:
        fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe is not waited for
    except FileNotFoundError:
        if not may_make:
            why = "cannot be made: something is in its place that leads nowhere"
            raise ConfigError(f"{place}: {why}", hint="name another one: --token-file") from None
        return _made(place)
    except OSError as cause:
        raise _unreadable(place, cause) from cause
    try:
        mode = os.fstat(fd).st_mode
        data = os.read(fd, _MAX_BYTES)
    except OSError as cause:
        raise _unreadable(place, cause) from cause
    finally:
        os.close(fd)
    if mode & _OTHERS:
        why = f"others may read it (mode {mode & 0o777:04o}), and it holds the token"
        raise ConfigError(f"{place}: {why}", hint=f"`chmod 600 {place}`")
    word = data.decode("utf-8", "replace").strip()
    if not re.fullmatch(r"[!-~]+", word) or len(word) < MIN_CHARACTERS:
        raise ConfigError(
            f"{place}: no token: one word of at least {MIN_CHARACTERS} printable characters is meant",
            hint=f"`rm {place}` has a new one made",
        )
    return Token(word, place)


def _unreadable(place: Path, cause: OSError) -> ConfigError:
    return ConfigError(f"{place}: cannot be read: {cause.strerror}", hint="name another one: --token-file")


def _made(place: Path) -> Token:
    word = secrets.token_urlsafe(32)
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:  # another one was quicker
        return load(place, may_make=False)
    except OSError as cause:
        why = cause.strerror
        raise ConfigError(f"{place}: cannot be made: {why}", hint="name another one: --token-file") from cause
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(word + "\n")
    return Token(word, place, is_new=True)
