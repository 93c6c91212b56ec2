"""The lab: sshd on loopback, a stand-in for pct, LXC container 200 with stub GPUs; containers 200 and 201 exist.

All state is on disk below one directory and in the kernel, so `Lab(directory).stop()` in any process ends a lab
that another process started.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab import host, rootfs
from tests.lab.container import INIT, Container, is_mounted
from tests.lab.gpus import STATE_IN_CONTAINER, GpuState
from tests.lab.host import LabError, run
from tests.lab.sshd import Sshd

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HERE = Path(__file__).resolve().parent
PREFIX = "dflashctl-lab"
DETACHED = "detached"
LXC_TOOLS = ("lxc-attach", "lxc-freeze", "lxc-info", "lxc-ls", "lxc-start", "lxc-stop", "lxc-unfreeze")
SAFE_PATH = re.compile(r"/[A-Za-z0-9/._-]+")


def default_state() -> Path:
    """The directory of the lab that a person starts by hand."""
    return Path(tempfile.gettempdir()) / PREFIX


class Lab:
    """A lab below `state` (mode 0700). `start` and `stop` may each be called twice."""

    host = "127.0.0.1"
    ct = 200

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
    def rootfs(self) -> Path:
        """The root of container 200 as seen from the host (/tmp, /run and /dev are mounted inside only)."""
        return self.containers[self.ct].root

    @property
    def gpu_state(self) -> Path:
        """The file that drives the stub NVML of container 200; `GpuState(...).write(path)` writes it."""
        return self.rootfs / STATE_IN_CONTAINER

    @property
    def torch_python(self) -> Path | None:
        """A python inside the container that has this environment's packages; None when there is none to lend."""
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
        return host.missing(have_rootfs=rootfs.cached().is_dir())

    def is_up(self) -> bool:
        """Whether the sshd listens and container 200 is there."""
        return self.state.is_dir() and self.sshd.pid() is not None and self.rootfs.is_dir()

    # -- life

    def start(self, *, owner: int | None = None) -> None:
        """Bring everything up, or what is missing of it. `owner` is the pid without which the lab is stale."""
        lacks = self.missing()
        if lacks:
            raise LabError("the lab cannot start here; missing: " + "; ".join(lacks))
        lower = rootfs.ensure()
        for path in (self.state, lower):
            if not SAFE_PATH.fullmatch(str(path)):
                raise LabError(f"{path}: the path has characters that mount options cannot carry; set TMPDIR")
        self._make_state_dir()
        with self._locked():
            fresh = not (self.state / "owner").exists()
            if fresh:
                (self.state / "owner").write_text(_owner_line(owner))
            try:
                self._bring_up(lower)
            except BaseException:
                if fresh:
                    self.stop()
                raise

    def _bring_up(self, lower: Path) -> None:
        lent = host.lent_python()
        (self.state / "run").mkdir(exist_ok=True)
        self._build()
        self._write_bin()
        for container in self.containers.values():
            container.prepare(lower, self.cgroup, lent)
            self._furnish(container)
        self.containers[self.ct].start()
        self.sshd.start()

    def stop(self) -> None:
        """End everything and remove every trace; quiet when there is none."""
        if not self.state.is_dir():
            return
        self._check_ours()
        for container in self.containers.values():
            container.discard()
        self.sshd.stop()
        _kill_marked(f"DFLASHCTL_LAB={self.state}")
        _remove_cgroups(self.cgroup)
        if any(is_mounted(container.root) for container in self.containers.values()):
            raise LabError(f"{self.state}: something is still mounted there; not removed")
        shutil.rmtree(self.state)

    def reset(self) -> None:
        """Put back the lab as it was after `start`: new roots, default GPUs, no lock, no delay, no connection."""
        self.sshd.kill_connections()
        self.set_pct_delay(0)
        for container in self.containers.values():
            container.discard()
            container.pve_config.unlink(missing_ok=True)
        self.sshd.trust_current_key()
        with self._locked():
            self._bring_up(rootfs.ensure())

    # -- what a bad day brings

    def start_container(self, ct: int = 200) -> None:
        """Start a container; a running one is left alone."""
        self.containers[ct].start()

    def stop_container(self, ct: int = 200) -> None:
        """Kill a container at once."""
        self.containers[ct].stop()

    def freeze(self, ct: int = 200) -> None:
        """Freeze a container, as a backup in suspend mode does."""
        self.containers[ct].freeze()

    def unfreeze(self, ct: int = 200) -> None:
        """Thaw it."""
        self.containers[ct].unfreeze()

    def lock(self, ct: int = 200, reason: str = "backup") -> None:
        """Set the container's lock, as vzdump does."""
        self.unlock(ct)
        with self.containers[ct].pve_config.open("a") as file:
            file.write(f"lock: {reason}\n")

    def unlock(self, ct: int = 200) -> None:
        """Drop the lock."""
        path = self.containers[ct].pve_config
        lines = [line for line in path.read_text().splitlines() if not line.startswith("lock:")]
        path.write_text("\n".join(lines) + "\n")

    @contextmanager
    def config_locked(self, ct: int = 200) -> Iterator[None]:
        """Hold the lock of the container's configuration, which push, pull and start wait 10 s for."""
        with (self.state / "run" / f"pve-config-{ct}.lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def set_pct_delay(self, seconds: float) -> None:
        """Make every `pct` take that long to start; the real one is Perl."""
        (self.state / "pct-delay").write_text(f"{seconds:g}\n")

    def set_nvml(self, which: str) -> None:
        """Put in place the "new" stub, the "old" one without newer symbols, or "none" (no library at all)."""
        installed = self.rootfs / _library_dir() / "libnvidia-ml.so.1"
        built = {"new": "nvml-new.so", "old": "nvml-old.so", "none": None}[which]
        installed.unlink(missing_ok=True)
        if built is not None:
            shutil.copy2(self.state / "build" / built, installed)

    def set_gpus(self, gpus: GpuState) -> None:
        """What the stub NVML and nvidia-smi answer from now on."""
        gpus.write(self.gpu_state)

    def restart_sshd(self, *, new_host_key: bool = False) -> None:
        """Restart the listener; live connections stay. A new host key is not put into `known_hosts`."""
        self.sshd.restart(new_host_key=new_host_key)

    def stop_sshd(self) -> None:
        """Make the host unreachable: connections drop and the port refuses."""
        self.sshd.stop()

    def start_sshd(self) -> None:
        """Make it reachable again, on the same port with the same key."""
        self.sshd.start()

    def kill_ssh_connections(self) -> int:
        """Drop every live connection; return how many processes served them."""
        return self.sshd.kill_connections()

    # -- doing things in it

    def exec(
        self, argv: Sequence[str | Path], *, stdin: str | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run argv in container 200 by lxc-attach, with a clean environment."""
        attach = ["lxc-attach", "-P", self.state / "lxc", "-n", str(self.ct), "--clear-env", "--", *argv]
        return run(attach, check=False, stdin=stdin, timeout=timeout)

    def pct(
        self, *argv: str, stdin: str | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run the lab's pct on this machine, without ssh."""
        return run([self.pct_bin_dir / "pct", *argv], check=False, stdin=stdin, timeout=timeout)

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

    def _build(self) -> None:
        build = self.state / "build"
        if (build / "init").exists():
            return
        build.mkdir(exist_ok=True)
        common = ["gcc", "-Wall", "-O1", "-D_GNU_SOURCE"]
        shared = [*common, "-shared", "-fPIC", HERE / "nvml_stub.c"]
        run([*shared, "-o", build / "nvml-new.so"])
        run([*shared, "-DNVML_OLD", "-o", build / "nvml-old.so"])
        run([*common, HERE / "init.c", "-o", build / "init.partial"])
        (build / "init.partial").rename(build / "init")

    def _write_bin(self) -> None:
        """`pct`, and LXC's tools with the lab's path: on a real host `lxc-info -n 200` needs no path."""
        self.pct_bin_dir.mkdir(exist_ok=True)
        python = host.base_python()
        scripts = {"pct": [str(python), "-I", "-S", str(HERE / "pct.py"), str(self.state)]}
        for name in LXC_TOOLS:
            scripts[name] = [host.tool(name) or name, "-P", str(self.state / "lxc")]
        for name, argv in scripts.items():
            path = self.pct_bin_dir / name
            path.write_text(f'#!/bin/sh\nexec {shlex.join(argv)} "$@"\n')
            path.chmod(0o755)

    def _furnish(self, container: Container) -> None:
        """Put init, the stub NVML, nvidia-smi and the GPUs into a container's root."""
        if (container.root / STATE_IN_CONTAINER).exists():
            return
        build = self.state / "build"
        shutil.copy2(build / "init", container.root / INIT)
        library = container.root / _library_dir() / "libnvidia-ml.so.1"
        library.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(build / "nvml-new.so", library)
        smi = container.root / "usr/bin/nvidia-smi"
        shutil.copyfile(HERE / "nvidia_smi.py", smi)
        smi.chmod(0o755)
        (container.root / "etc/hosts").write_text(f"127.0.0.1 localhost {container.name}\n")
        GpuState(gpus=GpuState().gpus[: container.num_gpus]).write(container.root / STATE_IN_CONTAINER)


def sweep() -> list[Path]:
    """End labs whose owner died without ending them (a test run killed outright); return their directories."""
    ended = []
    for state in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}-*")):
        owner = state / "owner"
        if state.is_symlink() or not owner.is_file() or owner.stat().st_uid != os.geteuid():
            continue
        line = owner.read_text().strip()
        if line != DETACHED and line != _owner_line(int(line.split()[0])).strip():
            Lab(state).stop()
            ended.append(state)
    return ended


def _owner_line(pid: int | None) -> str:
    """A pid with its start time, since pids come round again."""
    if pid is None:
        return f"{DETACHED}\n"
    try:
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        ticks = "gone"
    return f"{pid} {ticks}\n"


def _library_dir() -> str:
    triple = run(["gcc", "-print-multiarch"]).stdout.strip()
    return f"usr/lib/{triple}" if triple else "usr/lib"


def _kill_marked(mark: str) -> None:
    """Kill what logins of this lab left running; their environment carries the mark that sshd set."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:  # it ended meanwhile
            continue


def _remove_cgroups(name: str) -> None:
    """Remove the lab's directory from every cgroup hierarchy; LXC leaves the outer ones."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind = line.split()[:3]
        top = Path(mount) / name
        if not kind.startswith("cgroup") or not top.is_dir():
            continue
        for directory, _, _ in os.walk(top, topdown=False):
            Path(directory).rmdir()
