"""Pages that are files of the repository: read where they stand, so they cannot fall behind."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = {
    "design.md": "DESIGN.md",
    "results.md": "benchmarks/RESULTS.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}


def pages() -> dict[str, str]:
    """Return every page by its path."""
    return {page: read(path) for page, path in FILES.items()}


def read(path: str) -> str:
    """Return a file of the repository."""
    return (REPOSITORY / path).read_text(encoding="utf-8")
