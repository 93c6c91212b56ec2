"""Where compiled code is kept."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trainer.compiling.caches import FLASH, FLASH_SWITCH, INDUCTOR, TRITON, cache_dirs, point_caches
from trainer.errors import ConfigInvalid


def test_the_caches_are_put_into_the_run_directory(tmp_path):
    environ: dict[str, str] = {}
    dirs = point_caches(tmp_path, environ, host="gpu-1")
    node = tmp_path / "compile-cache" / "node-gpu-1"
    assert environ.pop(FLASH_SWITCH) == "1"
    assert environ == {
        name: str(node / part)
        for name, part in ((INDUCTOR, "inductor"), (TRITON, "triton"), (FLASH, "flash"))
    }
    assert (dirs.node, dirs.artifacts) == (node, tmp_path / "compile-cache" / "artifacts")
    assert all(os.path.isdir(path) for path in environ.values())  # noqa: PTH112


def test_a_place_that_the_user_chose_stays(tmp_path):
    environ = {INDUCTOR: "/elsewhere"}
    point_caches(tmp_path, environ, host="gpu-1")
    assert environ[INDUCTOR] == "/elsewhere"
    assert environ[TRITON].endswith("/node-gpu-1/triton")


def test_the_ranks_of_a_node_share_and_nodes_do_not(tmp_path):
    assert cache_dirs(tmp_path) == cache_dirs(tmp_path)
    assert cache_dirs(tmp_path, host="a").node != cache_dirs(tmp_path, host="b").node
    assert cache_dirs(tmp_path, host="a").artifacts == cache_dirs(tmp_path, host="b").artifacts


def test_a_host_named_like_a_path_stays_inside(tmp_path):
    node = cache_dirs(tmp_path, host="../../etc").node
    assert node.parent == tmp_path / "compile-cache"
    assert node.name == "node-.._.._etc"


def test_a_relative_run_directory_is_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    environ: dict[str, str] = {}
    point_caches(tmp_path.relative_to(tmp_path), environ)
    assert environ[INDUCTOR].startswith(str(tmp_path))


def test_a_place_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "compile-cache").write_text("")
    with pytest.raises(ConfigInvalid, match=r"compile cache: .*compile-cache.*--run-dir"):
        point_caches(tmp_path, {})


def test_the_caches_are_placed_without_importing_torch():
    code = "import sys, trainer.compiling.caches, trainer.compiling.serial; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
