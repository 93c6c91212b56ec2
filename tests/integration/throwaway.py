"""A throw-away sshd on loopback: its own keys, port, known_hosts and ssh config, and no container."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.connection import ShellOptions
from orchestrator.inventory import Host, Target

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {home}/host_key
PidFile none
AuthorizedKeysFile {home}/identity.pub
StrictModes no
UsePAM {use_pam}
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UseDNS no
PrintMotd no
"""


def sshd_path() -> str | None:
    """Where sshd is, if it is."""
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ThrowawaySshd:
    """A server that lives as long as the test; `extra` are lines of sshd_config."""

    def __init__(self, home: Path, extra: str = "") -> None:
        self.home = home
        self.port = free_port()
        home.mkdir(exist_ok=True)
        for name in ("host_key", "identity"):
            self.make_key(name)
        self.known_hosts = home / "known_hosts"
        self.trust()
        locked = any(line.startswith("root:!") for line in Path("/etc/shadow").read_text().splitlines())
        text = CONFIG.format(port=self.port, home=home, use_pam="yes" if locked else "no")
        (home / "sshd_config").write_text(text + extra)
        (home / "ssh_config").write_text("")
        self.process = self._start()

    def make_key(self, name: str, kind: str = "ed25519", passphrase: str = "") -> Path:
        """Make a key, in place of an old one."""
        path = self.home / name
        path.unlink(missing_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "", "-f", path], check=True)
        return path

    def public(self, name: str = "host_key") -> str:
        """The type and base64 of a key."""
        return " ".join((self.home / f"{name}.pub").read_text().split()[:2])

    def fingerprint(self, name: str = "host_key") -> str:
        """A key's fingerprint, by ssh-keygen."""
        shown = subprocess.run(
            ["ssh-keygen", "-lf", self.home / f"{name}.pub"], capture_output=True, check=True
        )
        return shown.stdout.decode().split()[1]

    def trust(self) -> None:
        """Write the host key into known_hosts."""
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {self.public()}\n")

    def _start(self) -> subprocess.Popen[bytes]:
        Path("/run/sshd").mkdir(exist_ok=True, mode=0o755)
        argv = [str(sshd_path()), "-D", "-f", str(self.home / "sshd_config"), "-E", str(self.home / "log")]
        process = subprocess.Popen(argv)
        for _ in range(5000):
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                    probe.recv(8)
                    return process
            except OSError:
                time.sleep(0.02)
        raise AssertionError((self.home / "log").read_text())

    def restart(self) -> None:
        """Restart the listener, with the keys and the config that are there now."""
        self.process.terminate()
        self.process.wait()
        self.process = self._start()

    def children(self) -> list[int]:
        """The processes that serve connections."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def kill_connections(self) -> None:
        """Drop every live connection."""
        for pid in self.children():
            with suppress(ProcessLookupError):  # it ended by itself meanwhile
                os.kill(pid, signal.SIGKILL)

    def target(self, **changes: object) -> Target:
        """Return the target of this server; `changes` are the host's."""
        values: dict[str, object] = {
            "name": "lo",
            "address": "127.0.0.1",
            "port": self.port,
            "identity": str(self.home / "identity"),
            **changes,
        }
        return Target(host=Host.model_validate(values), known_hosts=str(self.known_hosts))

    def options(self, **changes: object) -> ShellOptions:
        """Return options that leave this machine's own ssh config out."""
        return ShellOptions(ssh_config=self.home / "ssh_config", **changes)  # type: ignore[arg-type]

    def stop(self) -> None:
        """End it and what it serves."""
        self.kill_connections()
        self.process.terminate()
        self.process.wait()


class Pipe:
    """A proxy that can fall silent without a word: what a pulled cable looks like to a connection."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.is_silent = False
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        for data in _received(source):
            if not self.is_silent:
                try:
                    sink.sendall(data)
                except OSError:
                    return

    def close(self) -> None:
        """Close everything."""
        for each in self._sockets:
            each.close()


def _received(source: socket.socket) -> Iterator[bytes]:
    while True:
        try:
            data = source.recv(65536)
        except OSError:
            return
        if not data:
            return
        yield data
