"""What this machine has: tools, release, apt's mirror, the Python to lend to the container."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

REPO = Path(__file__).resolve().parents[2]
INSTALL = "tests/lab/install.sh"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CAP_SYS_ADMIN = 21

# Tool -> the Debian package that has it.
TOOLS = {
    "lxc-start": "lxc",
    "lxc-attach": "lxc",
    "lxc-stop": "lxc",
    "lxc-info": "lxc",
    "lxc-freeze": "lxc",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "debootstrap": "debootstrap",
    "gcc": "gcc",
}


class LabError(RuntimeError):
    """The lab could not do what was asked; the message says where, what and what to do."""


def tool(name: str) -> str | None:
    """The path of a tool. The system's directories go first: a PATH may name the wrappers of a lab."""
    return shutil.which(name, path=f"{SYSTEM_PATH}:{os.environ.get('PATH', '')}")


def run(
    argv: Sequence[str | Path], *, timeout: float = 60, check: bool = True, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a tool by name or path; its output is text. LabError carries its stderr when it fails."""
    path = tool(str(argv[0]))
    if path is None:
        raise LabError(f"{argv[0]}: not found; install it: {INSTALL}")
    env = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"}
    try:
        done = subprocess.run(
            [path, *map(str, argv[1:])],
            env=env,
            timeout=timeout,
            capture_output=True,
            text=True,
            check=False,
            **({"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}),
        )
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{argv[0]}: no end within {timeout:g} s: {' '.join(map(str, argv))}") from error
    if check and done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise LabError(f"{argv[0]}: exit code {done.returncode}: {said or ' '.join(map(str, argv))}")
    return done


def missing(*, have_rootfs: bool) -> list[str]:
    """What the lab lacks on this machine, one sentence each; empty when it can start."""
    if platform.system() != "Linux":
        return [f"a Linux kernel (this is {platform.system()})"]
    lacks = []
    if os.geteuid() != 0:
        lacks.append("root (LXC containers and overlay mounts need it): run it with sudo")
    elif not _has_capability(CAP_SYS_ADMIN):
        lacks.append("the capability to mount and to make cgroups (an unprivileged container lacks it)")
    if Path("/etc/pve").exists():
        lacks.append("a machine that is no Proxmox host (/etc/pve exists; the lab would stand in its way)")
    for name, package in TOOLS.items():
        if name == "debootstrap" and have_rootfs:
            continue
        if tool(name) is None:
            lacks.append(f"{name} (package {package}): {INSTALL}")
    if not have_rootfs and codename() is None:
        lacks.append("Debian or Ubuntu (no VERSION_CODENAME in /etc/os-release)")
    return lacks


def _has_capability(bit: int) -> bool:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> bit & 1)
    return False


def codename() -> str | None:
    """The release's code name, such as "bookworm", or None."""
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    return fields.get("VERSION_CODENAME", "").strip('"') or None


def apt_mirror(release: str) -> tuple[str, list[str]]:
    """The mirror and components that this machine's own apt uses for a release, as apt tells them."""
    wanted = "$(REPO_URI) $(RELEASE) $(COMPONENT)"
    listed = run(["apt-get", "indextargets", "--no-release-info", "--format", wanted, "Identifier: Packages"])
    found: dict[str, list[str]] = {}
    for line in listed.stdout.splitlines():
        parts = line.split()
        if len(parts) == 3 and parts[1] == release and parts[0].split(":")[0] in {"http", "https", "file"}:
            found.setdefault(parts[0], []).append(parts[2])
    # Other repositories may use the same release name, but only the distribution's own has `main`.
    for mirror, components in found.items():
        if "main" in components:
            return mirror, sorted(set(components) & {"main", "universe"})
    raise LabError(f"/etc/apt: no source has the release {release!r}, so debootstrap has no mirror; add one")


@dataclass(frozen=True)
class LentPython:
    """This machine's Python environment, mounted read-only into the container at the same paths."""

    python: Path
    mounts: tuple[Path, ...]
    site_packages: tuple[Path, ...]


def lent_python() -> LentPython | None:
    """The virtual environment that runs this (or the project's .venv), or None when neither exists."""
    candidates = [Path(sys.prefix)] if sys.prefix != sys.base_prefix else []
    candidates.append(REPO / ".venv")
    for prefix in candidates:
        python = prefix / "bin" / "python"
        if not (prefix / "pyvenv.cfg").exists() or not python.exists():
            continue
        code = "import json, site, sys; print(json.dumps([sys.base_prefix, site.getsitepackages()]))"
        base, packages = json.loads(run([python, "-I", "-c", code]).stdout)
        home = python.resolve().parent.parent  # where the interpreter itself lives
        wanted = {prefix.absolute(), prefix.resolve(), Path(base), Path(base).resolve(), home}
        wanted.discard(Path("/usr"))  # the same release is in the container: its own Python serves
        mounts = sorted(path for path in wanted if not wanted.intersection(path.parents))
        return LentPython(prefix.absolute() / "bin" / "python", tuple(mounts), tuple(map(Path, packages)))
    return None


def base_python() -> Path:
    """The interpreter itself, without a virtual environment or a version manager's wrapper before it."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()
