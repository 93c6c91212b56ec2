"""Real wheels for tests: tiny ones made up here, and pip's own from the pip that is installed."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def make(folder: Path, name: str, version: str, files: Mapping[str, bytes] | None = None) -> Path:
    """Write a pure wheel of one module, with further files beside it."""
    info = f"{name}-{version}.dist-info"
    members = {
        f"{name}.py": f'VERSION = "{version}"\n'.encode(),
        **(files or {}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    return _write(folder / f"{name}-{version}-py3-none-any.whl", members, info)


def pips_own(folder: Path) -> Path:
    """Write pip's wheel from the files of the pip that runs here."""
    found = metadata.distribution("pip")
    info = f"pip-{found.version}.dist-info"
    members = {}
    for path in found.files or ():
        if (
            path.parts[0] in ("pip", info)
            and path.suffix != ".pyc"
            and path.name not in ("RECORD", "INSTALLER")
        ):
            members[path.as_posix()] = path.read_binary()
    return _write(folder / f"pip-{found.version}-py3-none-any.whl", members, info)


def _write(path: Path, members: Mapping[str, bytes], info: str) -> Path:
    record = ""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(members.items()):
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(data)}\n"
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), data)
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return path
