"""Static files from the package, held in memory, under names that change with any of them."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.datastructures import Headers

FOLDER = Path(__file__).parent / "static"
A_YEAR = "public, max-age=31536000, immutable"
MIN_PACKED = 512
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}


@dataclass(frozen=True)
class Asset:
    """One file."""

    data: bytes
    packed: bytes | None
    media_type: str
    etag: str


class Assets:
    """All files. The sum of all is a folder of their URLs, so that modules import by relative names."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files: dict[str, Asset] = {}
        whole = hashlib.sha256()
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix in _TYPES:
                name, data = path.relative_to(folder).as_posix(), path.read_bytes()
                self._files[name] = _asset(data, _TYPES[path.suffix])
                whole.update(f"{name}\0{len(data)}\0".encode() + data)
        self.version = whole.hexdigest()[:12]

    @property
    def names(self) -> list[str]:
        """The files, by their paths."""
        return list(self._files)

    def answer(self, path: str, headers: Headers) -> Response:
        """Return a file's content, that it did not change, or 404."""
        head, _, rest = path.partition("/")
        is_versioned = head == self.version
        asset = self._files.get(rest if is_versioned else path)
        if asset is None:
            return Response("no such file\n", 404, media_type="text/plain")
        told = {
            "etag": asset.etag,
            "cache-control": A_YEAR if is_versioned else "no-cache",
            "vary": "accept-encoding",
        }
        if is_known(asset.etag, headers):
            return Response(status_code=304, headers=told)
        data = asset.data
        if asset.packed is not None and "gzip" in headers.get("accept-encoding", ""):
            data, told["content-encoding"] = asset.packed, "gzip"
        return Response(data, headers={**told, "content-type": asset.media_type})


def _asset(data: bytes, media_type: str) -> Asset:
    packed = gzip.compress(data, 9, mtime=0) if len(data) >= MIN_PACKED else None
    return Asset(data, packed, media_type, etag_of(data))


def etag_of(data: bytes) -> str:
    """Return what names this content."""
    return f'"{hashlib.sha256(data).hexdigest()[:20]}"'


def is_known(etag: str, headers: Headers) -> bool:
    """Whether who asks has it already."""
    named = headers.get("if-none-match", "")
    return etag in (each.strip().removeprefix("W/") for each in named.split(","))
