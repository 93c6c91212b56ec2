"""An OpenSSH server of the lab's own, on 127.0.0.1 alone; the machine's sshd and keys are never touched."""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from tests.lab.host import SYSTEM_PATH, LabError, run, tool

HOST = "127.0.0.1"
PRIVILEGE_SEPARATION_DIR = Path("/run/sshd")  # compiled into sshd, which refuses to start without it
START_LIMIT_S = 10.0

CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {home}/host_key
PidFile {home}/sshd.pid
AuthorizedKeysFile {home}/identity.pub
# The key file is under a directory that anybody may write to (/tmp), in one that only root may enter.
StrictModes no
UsePAM {use_pam}
AllowUsers root
PermitRootLogin prohibit-password
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxSessions 10
PrintMotd no
PrintLastLog no
UseDNS no
AcceptEnv LANG LC_*
SetEnv PATH={bin}:{path} DFLASHCTL_LAB={lab}
Subsystem sftp internal-sftp
"""


@dataclass(frozen=True)
class Sshd:
    """The server whose files are in `home`; all state is on disk, so any process may stop it."""

    home: Path
    bin_dir: Path

    @property
    def identity(self) -> Path:
        """The private key that may log in as root."""
        return self.home / "identity"

    @property
    def known_hosts(self) -> Path:
        """A known_hosts file with the host key of the first start."""
        return self.home / "known_hosts"

    @property
    def port(self) -> int:
        """The port; the same through restarts."""
        try:
            return int((self.home / "port").read_text())
        except FileNotFoundError as error:
            raise LabError(f"{self.home}: the lab is not up; start it: python -m tests.lab up") from error

    def pid(self) -> int | None:
        """The listening process, or None when it does not run."""
        try:
            pid = int((self.home / "sshd.pid").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return pid if _is_sshd(pid) else None

    def start(self) -> None:
        """Start the server unless it runs; make keys, port and known_hosts on the first start."""
        if self.pid() is not None:
            return
        self.home.mkdir(exist_ok=True, mode=0o700)
        for name in ("host_key", "identity"):
            if not (self.home / name).exists():
                self._make_key(name)
        if not (self.home / "port").exists():
            (self.home / "port").write_text(f"{_free_port()}\n")
        if not self.known_hosts.exists():
            self.trust_current_key()
        self._write_config()
        if not PRIVILEGE_SEPARATION_DIR.exists():
            PRIVILEGE_SEPARATION_DIR.mkdir(mode=0o755)
            (self.home / "made-run-sshd").touch()
        run([tool("sshd") or "sshd", "-f", self.home / "sshd_config", "-E", self.home / "sshd.log"])
        self._wait_until_it_greets()

    def stop(self) -> None:
        """Stop the server and every connection it serves; quiet when it does not run."""
        self.kill_connections()
        self._stop_listening()
        if (self.home / "made-run-sshd").exists() and not _other_sshd_runs():
            try:
                PRIVILEGE_SEPARATION_DIR.rmdir()
            except OSError:  # not empty, or gone already: then it is somebody else's
                return

    def restart(self, *, new_host_key: bool = False) -> None:
        """Restart the listener; established connections live on, as with a real sshd.

        With `new_host_key` the key changes and `known_hosts` keeps the old one.
        """
        self._remember(self._connections())
        self._stop_listening()
        if new_host_key:
            (self.home / "host_key").unlink()
            (self.home / "host_key.pub").unlink()
        self.start()

    def kill_connections(self) -> int:
        """Kill the processes that serve connections, so that live ones drop; return how many there were."""
        pids = self._connections()
        for pid in pids:
            _kill(pid, signal.SIGKILL)
        (self.home / "orphans").unlink(missing_ok=True)
        _wait_until_gone(pids)
        return len(pids)

    def _connections(self) -> list[int]:
        """Processes of sshd that serve a connection: descendants of this listener and of earlier ones."""
        roots = [pid for pid in [self.pid()] if pid is not None]
        found = [pid for pid in _descendants(roots) if _is_sshd(pid)]
        orphans = self.home / "orphans"
        kept = [int(line) for line in orphans.read_text().split()] if orphans.exists() else []
        return found + [pid for pid in kept if _is_sshd(pid) and pid not in found]

    def _remember(self, pids: list[int]) -> None:
        (self.home / "orphans").write_text("".join(f"{pid}\n" for pid in pids))

    def _stop_listening(self) -> None:
        pid = self.pid()
        if pid is not None:
            _kill(pid, signal.SIGTERM)
            _wait_until_gone([pid])
        (self.home / "sshd.pid").unlink(missing_ok=True)

    def _make_key(self, name: str) -> None:
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"dflashctl-lab-{name}", "-f"]
        run([*argv, self.home / name])

    def trust_current_key(self) -> None:
        """Write the present host key into `known_hosts`, alone."""
        kind, key = (self.home / "host_key.pub").read_text().split()[:2]
        self.known_hosts.write_text(f"[{HOST}]:{self.port} {kind} {key}\n")

    def _write_config(self) -> None:
        text = CONFIG.format(
            port=self.port,
            home=self.home,
            bin=self.bin_dir,
            path=SYSTEM_PATH,
            lab=self.home.parent,
            use_pam="yes" if _root_is_locked() else "no",
        )
        (self.home / "sshd_config").write_text(text)

    def _wait_until_it_greets(self) -> None:
        give_up_at = time.monotonic() + START_LIMIT_S
        while time.monotonic() < give_up_at:
            try:
                with socket.create_connection((HOST, self.port), timeout=1) as connection:
                    if connection.recv(8).startswith(b"SSH-2.0"):
                        return
            except OSError:
                time.sleep(0.02)
        log = self.home / "sshd.log"
        raise LabError(
            f"sshd: no greeting on port {self.port} within {START_LIMIT_S:g} s; its log:\n{log.read_text()}"
        )


def _root_is_locked() -> bool:
    """Without PAM, sshd refuses a key for an account whose password field starts with `!`."""
    for line in Path("/etc/shadow").read_text().splitlines():
        if line.startswith("root:"):
            return line.split(":")[1].startswith("!")
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _stat(pid: int) -> tuple[str, str, int] | None:
    """Name, state and parent of a process, or None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
    return name, rest[0], int(rest[1])


def _is_sshd(pid: int) -> bool:
    stat = _stat(pid)
    return stat is not None and stat[0].startswith("sshd") and stat[1] != "Z"


def _all_pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208 - names only


def _other_sshd_runs() -> bool:
    return any(_is_sshd(pid) for pid in _all_pids())


def _descendants(roots: list[int]) -> list[int]:
    parents = {pid: stat[2] for pid in _all_pids() if (stat := _stat(pid)) is not None}
    found: list[int] = []
    level = set(roots)
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found += sorted(level)
    return found


def _kill(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _wait_until_gone(pids: list[int]) -> None:
    give_up_at = time.monotonic() + START_LIMIT_S
    while any(_is_sshd(pid) for pid in pids):
        if time.monotonic() > give_up_at:
            raise LabError(f"sshd: processes {pids} did not end within {START_LIMIT_S:g} s")
        time.sleep(0.01)
