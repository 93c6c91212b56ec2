"""A bare container: Python and tmux taken away again, and an apt repository on its own disk that has them."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.host import LabError, codename, run
from tests.lab.rootfs import cache_dir

if TYPE_CHECKING:
    from tests.lab.lab import Lab

WANTED = ("python3", "tmux")
REPOSITORY = "opt/debs"
OWN_SOURCE = f"deb [trusted=yes] file:/{REPOSITORY} ./"
# What the lab's root has beyond minbase, as far as it is theirs alone.
_THEIRS = re.compile(r"python3.*|libpython3.*|tmux|libevent-core-.*|libutempter0|media-types")


def strip(lab: Lab) -> None:
    """Take Python and tmux from container 200; leave it a repository of its own as apt's only source."""
    listed = lab.exec(["dpkg-query", "-W", "-f", "${Package}\n"]).stdout.split()
    theirs = [name for name in listed if _THEIRS.fullmatch(name)]
    gone = lab.exec(["dpkg", "--purge", "--force-depends", *theirs], timeout=120)
    left = [name for name in WANTED if lab.exec(["sh", "-c", f"command -v {name}"]).returncode == 0]
    if left:
        raise LabError(f"{', '.join(left)} could not be taken away: {gone.stderr[-1000:]}")
    shutil.copytree(debs(theirs), lab.rootfs / REPOSITORY)
    use_source(lab, OWN_SOURCE)


def use_source(lab: Lab, line: str) -> None:
    """Make this the only source of apt, with no list of it fetched yet."""
    for path in (lab.rootfs / "etc/apt/sources.list.d").glob("*"):
        path.unlink()
    (lab.rootfs / "etc/apt/sources.list").write_text(f"{line}\n")
    shutil.rmtree(lab.rootfs / "var/lib/apt/lists", ignore_errors=True)


def debs(names: list[str]) -> Path:
    """Return a folder of these packages with an index; fetched once, by this machine's own apt."""
    key = hashlib.sha256(" ".join(sorted(names)).encode()).hexdigest()[:8]
    target = cache_dir() / f"debs-{codename()}-{platform.machine()}-{key}"
    if target.is_dir():
        return target
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=target.parent))
    try:
        _download(names, partial)
        (partial / "Packages").write_text("".join(_entry(path) for path in sorted(partial.glob("*.deb"))))
        partial.chmod(0o755)
        try:
            partial.rename(target)
        except OSError:  # another process was quicker
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _download(names: list[str], folder: Path) -> None:
    here = os.getcwd()  # noqa: PTH109
    os.chdir(folder)  # apt-get download knows no other place
    try:
        for last in (False, True):
            done = run(["apt-get", "download", "-q", *names], check=last, timeout=300)
            if done.returncode == 0:
                return
            run(["apt-get", "update", "-q"], timeout=300)
    finally:
        os.chdir(here)


def _entry(path: Path) -> str:
    """Return a package's paragraph of the index."""
    data = path.read_bytes()
    told = run(["dpkg-deb", "-f", path]).stdout.strip()
    return (
        f"{told}\nFilename: ./{path.name}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n\n"
    )
