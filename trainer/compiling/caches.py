"""Where compiled code is kept: in the run directory, so that a clean-up of /tmp or ~ does not lose it.

    <run dir>/compile-cache/node-<host>/inductor   TORCHINDUCTOR_CACHE_DIR: graphs and their code
                                      /triton     TRITON_CACHE_DIR: the GPU's kernels
                                      /flash      FLASH_ATTENTION_CUTE_DSL_CACHE_DIR: FlashAttention's
                                      /turn.lock  whose turn it is to compile (`trainer.compiling.serial`)
                           /artifacts              the cache as a file that travels

The ranks of a node share one cache: they compile in turn, so the known races of two writers cannot happen.
Nodes do not share it even where they share the run directory, since both caches move and delete files as a
network file system does not allow (stale handles); they meet in `artifacts`, which is written whole.

No torch here: the variables must be set before torch is imported, which is when some of it reads them.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from pathlib import Path

INDUCTOR, TRITON = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
FLASH, FLASH_SWITCH = "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED"


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheDirs:
    """The directories of this node, and the one of all; all but `artifacts` exist."""

    node: Path
    artifacts: Path

    @property
    def inductor(self) -> Path:
        """Graphs and their code."""
        return self.node / "inductor"

    @property
    def triton(self) -> Path:
        """The GPU's kernels."""
        return self.node / "triton"

    @property
    def flash(self) -> Path:
        """FlashAttention 4's kernels, which are no Triton ones."""
        return self.node / "flash"


def cache_dirs(run_dir: Path, *, host: str | None = None) -> CacheDirs:
    """The directories of this host, or of the one named."""
    root = run_dir.absolute() / "compile-cache"
    name = re.sub(r"[^A-Za-z0-9.-]", "_", host if host is not None else socket.gethostname())
    return CacheDirs(node=root / f"node-{name}", artifacts=root / "artifacts")


def point_caches(run_dir: Path, environ: MutableMapping[str, str], *, host: str | None = None) -> CacheDirs:
    """Make the directories and set their variables in `environ`, except those that the user set.

    Raises:
        ConfigInvalid: a directory cannot be made.
    """
    dirs = cache_dirs(run_dir, host=host)
    dirs_by_name = {INDUCTOR: dirs.inductor, TRITON: dirs.triton, FLASH: dirs.flash}
    environ.setdefault(FLASH_SWITCH, "1")
    try:
        dirs.node.mkdir(parents=True, exist_ok=True)
        for name, path in dirs_by_name.items():
            if not environ.get(name):
                path.mkdir(exist_ok=True)
                environ[name] = str(path)
    except OSError as error:
        message = f"compile cache: {error.filename}: {error.strerror}; give another place with --run-dir"
        raise ConfigInvalid(message) from error
    return dirs
