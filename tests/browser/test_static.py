"""What the pages are made of: small, without a build, and safe before whatever a run's name or log says."""

from __future__ import annotations

import re
from pathlib import Path

import orchestrator.serve

FOLDER = Path(orchestrator.serve.__file__).parent
SCRIPTS = sorted((FOLDER / "static" / "js").glob("*.js"))
TEMPLATES = sorted((FOLDER / "templates").glob("*.html"))
SMALL = 200_000


def test_all_pages_together_are_small():
    files = [
        path for name in ("static", "templates") for path in (FOLDER / name).rglob("*") if path.is_file()
    ]
    assert len(files) > 15
    assert sum(path.stat().st_size for path in files) < SMALL


def test_text_from_outside_is_only_ever_set_as_text():
    assert SCRIPTS
    for path in SCRIPTS:
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setHTML",
            path.read_text(),
        )
        assert found == [], path.name


def test_a_strict_policy_has_nothing_to_forbid():
    assert len(TEMPLATES) >= 6
    for path in TEMPLATES:
        text = path.read_text()
        assert re.findall(r"<script(?![^>]*\bsrc=)", text) == [], f"{path.name}: an inline script"
        assert re.findall(r"<style|\bstyle=|\son[a-z]+=", text) == [], (
            f"{path.name}: an inline style or handler"
        )
        assert re.findall(r"(?:src|href)=\"(?:https?:)?//", text) == [], f"{path.name}: another server"
    for path in SCRIPTS:
        assert re.findall(r"https?://(?!www\.w3\.org)", path.read_text()) == [], (
            f"{path.name}: another server"
        )


def test_what_is_vendored_names_its_version_and_licence():
    folder = FOLDER / "static" / "vendor"
    assert "uPlot 1.6.32" in (folder / "README.md").read_text()
    assert (folder / "uPlot.LICENSE").read_text().startswith("The MIT License")
    assert "v1.6.32" in (folder / "uPlot.iife.min.js").read_text()[:300]
