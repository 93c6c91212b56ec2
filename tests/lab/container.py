"""One LXC container of the lab: its root (an overlay over the cached one), its configuration, its life."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.host import LabError, run

if TYPE_CHECKING:
    from tests.lab.host import LentPython

INIT = "sbin/dflashctl-lab-init"
STOP_LIMIT_S = 20.0

LXC_CONFIG = """\
lxc.uts.name = {name}
lxc.rootfs.path = dir:{root}
lxc.init.cmd = /{init}
lxc.net.0.type = none
lxc.apparmor.profile = unconfined
lxc.mount.auto = proc:rw sys:ro cgroup:mixed
lxc.autodev = 1
lxc.tty.max = 0
# Without it tmux says `fork failed`.
lxc.pty.max = 1024
lxc.log.file = {log}
lxc.log.level = WARN
# As on Proxmox, where a process of container 200 is in the cgroup lxc/200; below one directory of this lab's.
lxc.cgroup.dir.container = {cgroup}/lxc/{ct}
lxc.cgroup.dir.container.inner = ns
lxc.cgroup.dir.monitor = {cgroup}/lxc.monitor/{ct}
lxc.mount.entry = tmpfs run tmpfs rw,nosuid,nodev,mode=755 0 0
lxc.mount.entry = tmpfs tmp tmpfs rw,nosuid,nodev,mode=1777 0 0
lxc.mount.entry = tmpfs dev/shm tmpfs rw,nosuid,nodev,create=dir 0 0
"""

PVE_CONFIG = """\
arch: amd64
cores: 8
{devices}hostname: {name}
memory: 65536
ostype: debian
rootfs: local-lvm:vm-{ct}-disk-0,size=512G
swap: 0
"""


@dataclass(frozen=True)
class Container:
    """A container by number. All state is on disk or in the kernel, so any process may drive it."""

    lab: Path
    ct: int
    name: str
    num_gpus: int

    @property
    def root(self) -> Path:
        """The container's root directory as seen from the host."""
        return self.lab / "rootfs" / str(self.ct)

    @property
    def pve_config(self) -> Path:
        """What pct reads."""
        return self.lab / "pve" / "lxc" / f"{self.ct}.conf"

    def prepare(self, lower: Path, cgroup: str, lent: LentPython | None) -> None:
        """Mount the root over `lower` and write both configurations; quiet when that is done already."""
        lxc = self.lab / "lxc" / str(self.ct)
        self._mount_root(lower)
        for directory in (lxc, self.pve_config.parent):
            directory.mkdir(parents=True, exist_ok=True)
        text = LXC_CONFIG.format(
            name=self.name, root=self.root, init=INIT, log=lxc / "log", cgroup=cgroup, ct=self.ct
        )
        (lxc / "config").write_text(text + self._lent_mounts(lent))
        if not self.pve_config.exists():
            devices = [f"/dev/nvidia{n}" for n in range(self.num_gpus)]
            devices += ["/dev/nvidiactl", "/dev/nvidia-uvm"] if devices else []
            told = "".join(f"dev{n}: {device},mode=0666\n" for n, device in enumerate(devices))
            self.pve_config.write_text(PVE_CONFIG.format(devices=told, name=self.name, ct=self.ct))

    def _mount_root(self, lower: Path) -> None:
        if self.root.is_dir() and any(self.root.iterdir()):
            return
        upper, work = (self.lab / "overlay" / str(self.ct) / part for part in ("upper", "work"))
        for directory in (self.root, upper, work):
            directory.mkdir(parents=True, exist_ok=True)
        self.lab.joinpath("rootfs").chmod(0o755)
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        try:
            run(["mount", "-t", "overlay", "dflashctl-lab", "-o", options, self.root])
        except LabError:  # no overlay in this kernel, or the state directory is on an overlay itself
            run(["cp", "-a", "--reflink=auto", f"{lower}/.", self.root], timeout=300)

    def _lent_mounts(self, lent: LentPython | None) -> str:
        """The lent Python, read-only; an installed copy of the project in it is hidden."""
        if lent is None:
            return ""
        lines = [f"{path} {str(path)[1:]} none bind,ro,create=dir 0 0" for path in lent.mounts]
        for packages in lent.site_packages:
            for name in ("orchestrator", "trainer"):
                if (packages / name).is_dir():
                    lines.append(f"{self._hiding(name)} {str(packages / name)[1:]} none bind,ro 0 0")
        return "".join(f"lxc.mount.entry = {line}\n" for line in lines)

    def _hiding(self, name: str) -> Path:
        hiding = self.lab / "hidden" / name
        hiding.mkdir(parents=True, exist_ok=True)
        message = f"{name}: the lab hides the project's installed copy from the container"
        (hiding / "__init__.py").write_text(f"raise ModuleNotFoundError({message!r}, name={name!r})\n")
        return hiding

    def lxc(self, tool: str, *argv: str, check: bool = True) -> str:
        """Run one of LXC's tools on this container and return what it printed."""
        return run([tool, "-P", self.lab / "lxc", "-n", str(self.ct), *argv], check=check).stdout.strip()

    def state(self) -> str:
        """LXC's word for it: RUNNING, STOPPED, FROZEN ..."""
        if not (self.lab / "lxc" / str(self.ct) / "config").exists():
            return "STOPPED"
        return self.lxc("lxc-info", "-s", "-H")

    def init_pid(self) -> int:
        """The host's pid of the container's process 1, 0 when it does not run."""
        return int(self.lxc("lxc-info", "-p", "-H") or 0)

    def start(self) -> None:
        """Start it; a running one is left alone."""
        if self.state() == "STOPPED":
            self.lxc("lxc-start", "-d")

    def stop(self) -> None:
        """Kill it at once, frozen or not."""
        if self.state() == "STOPPED":
            return
        if self.state() in {"FROZEN", "FREEZING"}:
            self.unfreeze()
        self.lxc("lxc-stop", "-k")
        give_up_at = time.monotonic() + STOP_LIMIT_S
        while self.state() != "STOPPED":
            if time.monotonic() > give_up_at:
                raise LabError(f"container {self.ct}: did not stop within {STOP_LIMIT_S:g} s")
            time.sleep(0.02)

    def freeze(self) -> None:
        """Freeze every process in it, as a backup does."""
        self.lxc("lxc-freeze")

    def unfreeze(self) -> None:
        """Let it go on."""
        self.lxc("lxc-unfreeze")

    def discard(self) -> None:
        """Stop it and remove its root with everything that was written there."""
        self.stop()
        unmount(self.root)
        for path in (self.root, self.lab / "overlay" / str(self.ct)):
            shutil.rmtree(path, ignore_errors=True)


def is_mounted(path: Path) -> bool:
    """Whether something is mounted exactly there."""
    return any(line.split()[4] == str(path) for line in Path("/proc/self/mountinfo").read_text().splitlines())


def unmount(path: Path) -> None:
    """Unmount; a process that is just ending may hold it for a moment."""
    give_up_at = time.monotonic() + STOP_LIMIT_S
    while is_mounted(path):
        done = run(["umount", path], check=False)
        if done.returncode == 0:
            continue
        if time.monotonic() > give_up_at:
            raise LabError(
                f"{path}: still mounted: {done.stderr.strip()}; end what uses it (fuser -vm {path})"
            )
        time.sleep(0.05)
