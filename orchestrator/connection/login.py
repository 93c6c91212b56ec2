"""Who we are to a host and whether the host is who it was: keys, never passwords; known_hosts, always.

fabric takes any host key and paramiko's checks are bound to its own reader, so both questions are answered
here.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paramiko
from paramiko.auth_strategy import AuthSource, AuthStrategy, InMemoryPrivateKey, OnDiskPrivateKey
from paramiko.pkey import UnknownKeyType

from orchestrator.connection import knownhosts
from orchestrator.connection.knownhosts import KnownKey, Verdict
from orchestrator.errors import HostKeyRefused
from orchestrator.userfile import read_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DEFAULT_IDENTITIES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
DEFAULT_KNOWN_HOSTS = "~/.ssh/known_hosts"
SYSTEM_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts"


class KeyStrategy(AuthStrategy):
    """Tries the identities, then the agent's keys. `tried` says, for the message, what came of each."""

    def __init__(self, config: Mapping[str, Any], user: str, identity: str | None) -> None:
        super().__init__(ssh_config=paramiko.SSHConfig())
        self._user = user
        named = [identity] if identity else []
        named += [name for name in config.get("identityfile", []) if name not in named]
        self._named = named or list(DEFAULT_IDENTITIES)
        self._is_default = not named
        self._only = str(config.get("identitiesonly", "no")).lower() == "yes"
        self._no_agent = str(config.get("identityagent", "")).lower() == "none"
        self.tried: list[str] = []

    def get_sources(self) -> Iterator[AuthSource]:
        """Yield one source a key."""
        for name in self._named:
            yield from self._from_file(Path(name).expanduser())
        if not self._no_agent:
            yield from self._from_agent()

    def _from_file(self, path: Path) -> Iterator[AuthSource]:
        try:
            key = paramiko.PKey.from_path(str(path))
        except FileNotFoundError:
            if not self._is_default:
                self.tried.append(f"{path} (no such file)")
        except OSError as cause:
            self.tried.append(f"{path} ({cause.strerror})")
        except TypeError:  # what cryptography raises for a key with a passphrase
            self.tried.append(f"{path} (has a passphrase; load it with ssh-add)")
        except (ValueError, paramiko.SSHException, UnknownKeyType):
            self.tried.append(f"{path} (not a readable private key)")
        else:
            self.tried.append(f"{path} (refused)")
            yield OnDiskPrivateKey(self._user, "ssh-config", path, key)

    def _from_agent(self) -> Iterator[AuthSource]:
        try:
            agent = paramiko.Agent()
        except (paramiko.SSHException, OSError):
            return
        with contextlib.closing(agent):
            listed = {blob for name in self._named if (blob := _public_blob(Path(name).expanduser()))}
            keys = sorted(agent.get_keys(), key=lambda key: key.asbytes() not in listed)
            for key in keys:
                if self._only and key.asbytes() not in listed:
                    continue
                self.tried.append(f"agent key {knownhosts.fingerprint(key.asbytes())} (refused)")
                yield InMemoryPrivateKey(self._user, key)


def _public_blob(path: Path) -> bytes | None:
    try:
        found = knownhosts.parse(f"x {path.with_name(path.name + '.pub').read_text()}", "")
    except (OSError, UnicodeDecodeError):
        return None
    return found[0].key if found else None


class HostKeyPolicy(paramiko.MissingHostKeyPolicy):
    """Judges every key that a host shows; the client itself knows none.

    A changed or revoked key is refused whatever the options say. An unknown one is taken if it is the
    inventory's `host_key`, or if `accept` says so, and is then written to the first known_hosts file.
    """

    def __init__(
        self,
        where: str,
        name: str,
        files: list[Path],
        *,
        pinned: str | None,
        accept: bool,
        command: str | None,
    ) -> None:
        self._where = where
        self._name = name
        self._files = files
        self._pinned = pinned
        self._accept = accept
        self._command = command
        self._keys = [key for file in files for key in _known_keys(file)]
        self.taken: str | None = None  # the key that was found to be the host's, as a line of known_hosts

    def prefer(self, offered: tuple[str, ...]) -> list[str]:
        """Return the host key algorithms to ask for, those that known_hosts lists for this host first."""
        listed = set(knownhosts.key_types(self._keys, self._name))
        if "ssh-rsa" in listed:
            listed |= {"rsa-sha2-512", "rsa-sha2-256"}
        return sorted(offered, key=lambda algorithm: algorithm not in listed)

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:  # noqa: ARG002
        """Return if the key is the host's.

        Raises:
            HostKeyRefused: It is not, or nobody knows.
        """
        blob, kind = key.asbytes(), key.get_name()
        shown = f"{knownhosts.fingerprint(blob)} ({kind})"
        verdict, line = knownhosts.judge(self._keys, self._name, kind, blob)
        if line is not None and verdict is not Verdict.KNOWN:
            raise self._refuse(verdict, line, shown)
        if self._pinned is not None and self._pinned != knownhosts.fingerprint(blob):
            raise HostKeyRefused(
                f"{self._where}: the host showed {shown}, and the inventory says {self._pinned}",
                hint="somebody may be in between; change host_key only after comparing it on the host itself",
            )
        line_taken = knownhosts.entry(self._name, kind, blob)
        if verdict is Verdict.KNOWN or self._pinned is not None:
            self.taken = line_taken
            return
        if not self._accept:
            again = self._command or "repeat the command with --accept-new-host-key"
            raise HostKeyRefused(
                f"{self._where}: unknown host key {shown}",
                hint=f"compare it with `ssh-keygen -lf {_key_file(kind)}` on the host itself, then {again}",
            )
        self._remember(line_taken)
        self.taken = line_taken

    def _refuse(self, verdict: Verdict, line: KnownKey, shown: str) -> HostKeyRefused:
        place = f"{line.path}:{line.line}"
        if verdict is Verdict.REVOKED:
            return HostKeyRefused(f"{self._where}: the host showed {shown}, which {place} has revoked")
        known = f"{knownhosts.fingerprint(line.key)} ({line.key_type})"
        return HostKeyRefused(
            f"{self._where}: the host key has changed: it showed {shown}, and {place} has {known}",
            hint="somebody may be in between; if the host was installed anew, remove the old key: "
            f"ssh-keygen -f {line.path} -R '{self._name}'",
        )

    def _remember(self, line: str) -> None:
        path = self._files[0]
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            with path.open("a+b") as file:
                file.seek(0, 2)
                if file.tell() > 0:
                    file.seek(-1, 2)
                    line = line if file.read(1) == b"\n" else f"\n{line}"
                file.write(line.encode("ascii"))
        except OSError as cause:
            raise HostKeyRefused(
                f"{self._where}: the accepted host key cannot be written to {path}: {cause.strerror}"
            ) from cause


def _known_keys(path: Path) -> tuple[KnownKey, ...]:
    try:
        return knownhosts.parse(read_text(path, errors="replace"), str(path))
    except OSError:
        return ()


def _key_file(kind: str) -> str:
    name = "rsa" if "rsa" in kind else "ecdsa" if "ecdsa" in kind else "ed25519"
    return f"/etc/ssh/ssh_host_{name}_key.pub"


def known_hosts_files(explicit: str | None, config: Mapping[str, Any]) -> list[Path]:
    """Return the files to look in, the one to add to first."""
    if explicit is not None:
        return [Path(explicit).expanduser()]
    named = str(config.get("userknownhostsfile", DEFAULT_KNOWN_HOSTS)).split()
    system = str(config.get("globalknownhostsfile", SYSTEM_KNOWN_HOSTS)).split()
    names = [name for name in named if name.lower() != "none"] or [DEFAULT_KNOWN_HOSTS]
    return [Path(name).expanduser() for name in names + system]
