"""The lab: sshd on loopback, a stand-in for pct, LXC container 200 with stub GPUs, and a stopped 201.

All state is on disk below one directory and in the kernel, so `Lab(directory).stop()` in any process ends a
lab that another process started.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab import host, rootfs
from tests.lab.container import Container, is_mounted
from tests.lab.faults import Faults
from tests.lab.furnish import build, furnish, write_bin
from tests.lab.host import LabError, run
from tests.lab.leftovers import is_stale, kill_marked, owner_line, remove_cgroups, remove_lxc_locks
from tests.lab.sshd import Sshd

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence

PREFIX = "dflashctl-lab"
SAFE_PATH = re.compile(r"/[A-Za-z0-9/._-]+")


def default_state() -> Path:
    """The directory of the lab that a person starts by hand."""
    return Path(tempfile.gettempdir()) / PREFIX


class Lab(Faults):
    """A lab below `state` (mode 0700). `start` and `stop` may each be called twice."""

    host = "127.0.0.1"

    def __init__(self, state: Path | None = None) -> None:
        self.state = (state or default_state()).absolute()
        self.sshd = Sshd(self.state / "ssh", self.pct_bin_dir)
        self.containers = {
            200: Container(self.state, 200, "trainer", num_gpus=8),
            201: Container(self.state, 201, "spare", num_gpus=0),
        }

    # -- what a test needs to know

    @property
    def port(self) -> int:
        """The port of the lab's sshd on 127.0.0.1."""
        return self.sshd.port

    @property
    def identity(self) -> Path:
        """The private key that logs in as root."""
        return self.sshd.identity

    @property
    def known_hosts(self) -> Path:
        """A known_hosts file that has the sshd's first host key."""
        return self.sshd.known_hosts

    @property
    def pct_bin_dir(self) -> Path:
        """The directory of `pct`, first on the PATH of a login."""
        return self.state / "bin"

    @property
    def torch_python(self) -> Path | None:
        """A python inside the container with this environment's packages; None when there is none to lend."""
        lent = host.lent_python()
        return lent.python if lent else None

    @property
    def env(self) -> dict[str, str]:
        """This process's environment with the lab's `pct` first on the PATH, for `--host local`."""
        return {**os.environ, "PATH": f"{self.pct_bin_dir}:{os.environ.get('PATH', host.SYSTEM_PATH)}"}

    @property
    def cgroup(self) -> str:
        """The directory of this lab's containers in every cgroup hierarchy; unlike any other lab's."""
        return f"{PREFIX}-{hashlib.sha256(str(self.state).encode()).hexdigest()[:8]}"

    def missing(self) -> list[str]:
        """What this machine lacks for a lab, a sentence each."""
        return host.missing(have_rootfs=os.access(rootfs.cached(), os.R_OK))

    def is_up(self) -> bool:
        """Whether the sshd listens and container 200 is there."""
        return self.state.is_dir() and self.sshd.pid() is not None and self.rootfs.is_dir()

    # -- life

    def start(self, *, owner: int | None = None) -> None:
        """Bring everything up, or what is missing of it. Without its `owner` (a pid) the lab is stale."""
        lacks = self.missing()
        if lacks:
            raise LabError("the lab cannot start here; missing: " + "; ".join(lacks))
        lower = rootfs.ensure()
        for path in (self.state, lower):
            if not SAFE_PATH.fullmatch(str(path)):
                raise LabError(f"{path}: the path has characters that mount options cannot carry; set TMPDIR")
        if self.state in lower.parents:
            raise LabError(
                f"{self.state}: the cache is there too ({lower}); set TMPDIR or XDG_CACHE_HOME apart"
            )
        self._make_state_dir()
        with self._locked():
            fresh = not (self.state / "owner").exists()
            if fresh:
                (self.state / "owner").write_text(owner_line(owner))
            try:
                self._bring_up(lower)
            except BaseException:
                if fresh:
                    self._end()
                raise

    def _bring_up(self, lower: Path) -> None:
        lent = host.lent_python()
        (self.state / "run").mkdir(exist_ok=True)
        build(self.state)
        write_bin(self.state, self.pct_bin_dir)
        for container in self.containers.values():
            container.prepare(lower, self.cgroup, lent)
            furnish(self.state, container)
        self.containers[self.ct].start()
        self.sshd.start()

    def stop(self) -> None:
        """End everything and remove every trace; quiet when there is none."""
        if not self.state.is_dir():
            return
        self._check_ours()
        with self._locked():
            if self.state.is_dir():  # another process may have ended it meanwhile
                self._end()

    def _end(self) -> None:
        for container in self.containers.values():
            container.discard()
        self.sshd.stop()
        kill_marked(f"DFLASHCTL_LAB={self.state}")
        remove_cgroups(self.cgroup)
        remove_lxc_locks(self.state)
        if any(is_mounted(container.root) for container in self.containers.values()):
            raise LabError(f"{self.state}: something is still mounted there; not removed")
        shutil.rmtree(self.state)

    def reset(self) -> None:
        """Put the lab back as `start` made it: new roots, default GPUs, no lock, delay or connection."""
        self.sshd.kill_connections()
        self.set_pct_delay(0)
        self.show_kernel_log()
        for container in self.containers.values():
            container.discard()
            container.pve_config.unlink(missing_ok=True)
        self.sshd.trust_current_key()
        with self._locked():
            self._bring_up(rootfs.ensure())

    # -- doing things in it

    def exec(
        self, argv: Sequence[str | Path], *, stdin: str | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run argv in container 200 by lxc-attach, with a clean environment."""
        lxc_path = str(self.state / "lxc")
        attach = ["lxc-attach", "-P", lxc_path, "-n", str(self.ct), "--clear-env", "--", *argv]
        return run(attach, check=False, stdin=stdin, timeout=timeout)

    def pct(
        self, *argv: str, stdin: str | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run the lab's pct on this machine, without ssh."""
        return run([str(self.pct_bin_dir / "pct"), *argv], check=False, stdin=stdin, timeout=timeout)

    def ssh_argv(self) -> list[str]:
        """OpenSSH's client with everything that it needs to log in; append a command."""
        options = [f"UserKnownHostsFile={self.known_hosts}", "StrictHostKeyChecking=yes", "BatchMode=yes"]
        options += ["IdentitiesOnly=yes", "ConnectTimeout=10"]
        flags = [word for option in options for word in ("-o", option)]
        return [
            "ssh",
            "-F",
            "none",
            *flags,
            "-i",
            str(self.identity),
            "-p",
            str(self.port),
            f"root@{self.host}",
        ]

    def ssh(
        self, *argv: str, stdin: str | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run argv on the host through sshd."""
        return run([*self.ssh_argv(), shlex.join(argv)], check=False, stdin=stdin, timeout=timeout)

    # -- how it is made

    def _make_state_dir(self) -> None:
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._check_ours()
        self.state.chmod(0o700)

    def _check_ours(self) -> None:
        """Anybody may have made that name in /tmp."""
        if self.state.is_symlink() or self.state.stat().st_uid != os.geteuid():
            raise LabError(f"{self.state}: a link or another user's directory; remove it or set TMPDIR")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        handle = os.open(self.state, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def sweep() -> list[Path]:
    """End labs whose owner died without ending them (a test run killed outright); tell which."""
    ended = []
    for state in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}-*")):
        owner = state / "owner"
        if state.is_symlink() or not owner.is_file() or owner.stat().st_uid != os.geteuid():
            continue
        if is_stale(owner.read_text()):
            Lab(state).stop()
            ended.append(state)
    return ended
