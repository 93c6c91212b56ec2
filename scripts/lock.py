"""Write playbooks/trainer.lock anew: the trainer's packages, as pip resolves them today for each Python.

    python scripts/lock.py torch==2.13.0

It needs pip and a package index. What torch pins itself (CUDA's libraries, triton) is left to it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
WANTED = ("numpy>=1.26", "safetensors>=0.4.5", "tomli>=2", "transformers>=4.56,<6", "pip")
OF_TORCH = ("cuda-", "nvidia-", "triton")
HEAD = """\
# The trainer's packages, a constraint for pip: `dflashctl provision` installs these versions and no others.
# Made by scripts/lock.py. CUDA's libraries and triton are pinned by torch itself, for each of its builds.
"""


def resolved(torch: str, python: str) -> dict[str, str]:
    """Return name -> version of all that is needed with a Python."""
    argv = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--ignore-installed",
        "--quiet",
        "--report",
        "-",
    ]
    with tempfile.TemporaryDirectory() as folder:
        argv += ["--only-binary", ":all:", "--python-version", python, "--target", folder, torch, *WANTED]
        done = subprocess.run(argv, check=True, stdout=subprocess.PIPE)
    names = [item["metadata"] for item in json.loads(done.stdout)["install"]]
    found = {each["name"].lower().replace("_", "-"): each["version"].partition("+")[0] for each in names}
    return {name: version for name, version in found.items() if not name.startswith(OF_TORCH)}


def lines(by_python: dict[str, dict[str, str]]) -> list[str]:
    """Return the constraints, with a marker where Pythons differ."""
    told = []
    for name in sorted({name for found in by_python.values() for name in found}):
        versions = {python: found[name] for python, found in by_python.items() if name in found}
        if len(set(versions.values())) == 1:
            told.append(f"{name}=={next(iter(versions.values()))}")
            continue
        told += [f'{name}=={version}; python_version == "{python}"' for python, version in versions.items()]
    return told


def main() -> None:
    """Resolve for every Python and write the file."""
    torch = sys.argv[1]
    by_python = {python: resolved(torch, python) for python in PYTHONS}
    target = ROOT / "playbooks" / "trainer.lock"
    target.write_text(HEAD + "".join(f"{line}\n" for line in lines(by_python)), encoding="utf-8")


if __name__ == "__main__":
    main()
