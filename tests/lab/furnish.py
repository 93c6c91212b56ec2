"""What the lab makes: compiled stubs, the programs on a login's PATH, the contents of a container's root."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab import host
from tests.lab.container import INIT
from tests.lab.gpus import STATE_IN_CONTAINER, GpuState
from tests.lab.host import run

if TYPE_CHECKING:
    from tests.lab.container import Container

HERE = Path(__file__).resolve().parent
LXC_TOOLS = ("lxc-attach", "lxc-freeze", "lxc-info", "lxc-ls", "lxc-start", "lxc-stop", "lxc-unfreeze")


def build(state: Path) -> None:
    """Compile the containers' init and both stub NVML libraries, once."""
    build = state / "build"
    if (build / "init").exists():
        return
    build.mkdir(exist_ok=True)
    common: list[str | Path] = ["gcc", "-Wall", "-O1", "-D_GNU_SOURCE"]
    shared = [*common, "-shared", "-fPIC", HERE / "nvml_stub.c"]
    run([*shared, "-o", build / "nvml-new.so"])
    run([*shared, "-DNVML_OLD", "-o", build / "nvml-old.so"])
    run([*common, HERE / "init.c", "-o", build / "init.partial"])
    (build / "init.partial").rename(build / "init")


def write_bin(state: Path, bin_dir: Path) -> None:
    """`pct`, the kernel's log, and LXC's tools, which on a real host need no path of the lab."""
    bin_dir.mkdir(exist_ok=True)
    # Isolated and without site: the interpreter's start is most of what a call costs.
    code = f"import sys; sys.path.insert(0, {str(host.REPO)!r}); "
    code += f"from tests.lab.pct import main; main({str(state)!r})"
    scripts = {"pct": [str(host.base_python()), "-I", "-S", "-c", code]}
    scripts |= kernel_log_scripts(state)
    for name in LXC_TOOLS:
        scripts[name] = [host.tool(name) or name, "-P", str(state / "lxc")]
    write_scripts(bin_dir, scripts)


def write_scripts(bin_dir: Path, scripts: dict[str, list[str]]) -> None:
    """Write programs that pass their words on to others."""
    for name, argv in scripts.items():
        path = bin_dir / name
        path.write_text(f'#!/bin/sh\nexec {shlex.join(argv)} "$@"\n')
        path.chmod(0o755)


def kernel_log_scripts(state: Path) -> dict[str, list[str]]:
    """The stand-ins for the kernel's log over the files of `state`, by name: what each runs."""
    code = f"import sys; sys.path.insert(0, {str(host.REPO)!r}); from tests.lab.kernellog import main; "
    calls = {name: f"{code}main({name!r}, {str(state)!r})" for name in ("journalctl", "dmesg")}
    return {name: [str(host.base_python()), "-I", "-S", "-c", call] for name, call in calls.items()}


def furnish(state: Path, container: Container) -> None:
    """Put init, the stub NVML, nvidia-smi and the GPUs into a container's root."""
    if (container.root / STATE_IN_CONTAINER).exists():
        return
    build = state / "build"
    shutil.copy2(build / "init", container.root / INIT)
    library = container.root / library_dir() / "libnvidia-ml.so.1"
    library.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(build / "nvml-new.so", library)
    smi = container.root / "usr/bin/nvidia-smi"
    shutil.copyfile(HERE / "nvidia_smi.py", smi)
    smi.chmod(0o755)
    (container.root / "etc/hosts").write_text(f"127.0.0.1 localhost {container.name}\n")
    GpuState(gpus=GpuState().gpus[: container.num_gpus]).write(container.root / STATE_IN_CONTAINER)


def library_dir() -> str:
    """Where the loader looks without being told, relative to the root."""
    triple = run(["gcc", "-print-multiarch"]).stdout.strip()
    return f"usr/lib/{triple}" if triple else "usr/lib"
