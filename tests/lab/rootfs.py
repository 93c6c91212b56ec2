"""The containers' root file system: debootstrapped once for a release, cached, never written to again."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.host import INSTALL, SYSTEM_PATH, LabError, apt_mirror, codename, run, tool

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = ("ca-certificates", "procps", "python3", "tmux")
DEBOOTSTRAP_LIMIT_S = 900


def cache_dir() -> Path:
    """Where root file systems are kept: `$XDG_CACHE_HOME/dflashctl-lab`, by default under ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "dflashctl-lab"


def cached() -> Path:
    """The path of this release's root file system, whether it exists or not."""
    release = codename() or "unknown"
    key = hashlib.sha256(" ".join(PACKAGES).encode()).hexdigest()[:8]
    return cache_dir() / f"rootfs-{release}-{platform.machine()}-{key}"


def ensure() -> Path:
    """Return the cached root file system; make it first if there is none (about half a minute)."""
    target = cached()
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _locked(target.parent / "lock"):
        if not target.is_dir():  # another process may have made it meanwhile
            _make(target)
    return target


def _make(target: Path) -> None:
    release = codename()
    if release is None:
        raise LabError("/etc/os-release: no VERSION_CODENAME; the lab needs Debian or Ubuntu")
    mirror, components = apt_mirror(release)
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=target.parent))
    partial.chmod(0o755)
    include = f"--include={','.join(PACKAGES)}"
    script = Path("/usr/share/debootstrap/scripts") / release
    argv = ["debootstrap", "--variant=minbase", include, f"--components={','.join(components)}", release]
    argv += [str(partial), mirror]
    if not script.exists():  # a release newer than debootstrap: all of a distribution's scripts are one
        argv.append("gutsy" if "universe" in components else "sid")
    try:
        _debootstrap(argv)
        for archive in (partial / "var/cache/apt/archives").glob("*.deb"):
            archive.unlink()
        partial.rename(target)
    except BaseException:
        _unmount_under(partial)
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _debootstrap(argv: list[str]) -> None:
    """Run it in a process group of its own, which ends as a whole: it must not write on while we clean up."""
    program = tool(argv[0])
    if program is None:
        raise LabError(f"debootstrap: not found; install it: {INSTALL}")
    child = subprocess.Popen(
        [program, *argv[1:]],
        env={**os.environ, "PATH": f"{SYSTEM_PATH}:{os.environ.get('PATH', '')}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    try:
        output, _ = child.communicate(timeout=DEBOOTSTRAP_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise LabError(f"debootstrap: no end within {DEBOOTSTRAP_LIMIT_S} s: {' '.join(argv)}") from error
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    if child.returncode != 0:
        raise LabError(f"debootstrap: exit code {child.returncode}: {output.strip()[-2000:]}")


def _unmount_under(path: Path) -> None:
    """Undo the /proc and /sys that an interrupted debootstrap leaves mounted, before the removal."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted((m for m in mounts if m.startswith(f"{path}/")), reverse=True):
        run(["umount", mount])


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
