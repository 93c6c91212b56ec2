"""Kernels that torch's cache leaves out: they travel whole, to where they belong, or not at all."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import tarfile
from typing import TYPE_CHECKING

import pytest
import torch

from trainer.compiling import artifacts, kernels, pairs
from trainer.compiling.caches import FLASH, TRITON, CacheDirs, cache_dirs, point_caches

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trainer.compiling.artifacts import Origin

pytestmark = pytest.mark.torch

FORWARD = f"{'a' * 64}/fwd/{'1' * 64}.o"
BACKWARD = f"{'a' * 64}/bwd_pre/{'2' * 64}.o"
OWN, LAUNCHER, INDUCTOR = (letter * 52 for letter in "XYZ")
SO = "cuda_utils.cpython-312-x86_64-linux-gnu.so"


@pytest.fixture
def origin() -> Origin:
    return artifacts.describe(torch.device("cpu"), "inductor", {"rows": (2, 4)})


def fill(dirs: CacheDirs) -> None:
    """As FlashAttention 4 and Triton leave them, with what is none of ours between."""
    for name in (FORWARD, BACKWARD):
        path = dirs.flash / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
        path.with_suffix(".lock").touch()
        (path.parent / ".3.77.tmp.o").write_bytes(b"half")
    for key, kernel in ((OWN, "row_terms"), (INDUCTOR, "triton_poi_fused_0")):
        folder = dirs.triton / key
        (folder / "tmp.pid_7_ab").mkdir(parents=True)
        members = {f"{kernel}{suffix}": str(folder / f"{kernel}{suffix}") for suffix in (".cubin", ".json")}
        for name in members:
            (folder / name).write_text(name)
        (folder / f"__grp__{kernel}.json").write_text(json.dumps({"child_paths": members}))
    (dirs.triton / LAUNCHER).mkdir()
    (dirs.triton / LAUNCHER / SO).write_bytes(b"ELF")


def node(run: Path, host: str) -> tuple[CacheDirs, dict[str, str]]:
    environ: dict[str, str] = {}
    return point_caches(run, environ, host=host), environ


@pytest.fixture
def saved(tmp_path: Path, origin: Origin) -> Path:
    """A run directory with the kernels of node `one` saved."""
    dirs, environ = node(tmp_path, "one")
    fill(dirs)
    line = kernels.save(dirs, origin, environ, compile_s=1.5)
    assert line is not None
    assert line.startswith("compile cache: saved 6 entries, ")
    return tmp_path


def here(dirs: CacheDirs) -> dict[str, bytes]:
    return {
        path.relative_to(dirs.node).as_posix(): path.read_bytes()
        for place in (dirs.flash, dirs.triton)
        for path in place.rglob("*")
        if path.is_file()
    }


def binary_of(run: Path, origin: Origin, environ: dict[str, str]) -> Path:
    name = pairs.fingerprint(kernels.describe(origin, environ))
    return pairs.paths(cache_dirs(run).artifacts, name)[0]


def test_a_fresh_node_gets_the_kernels_and_groups_that_lead_to_them(saved, origin):
    dirs, environ = node(saved, "two")
    line = kernels.load(dirs, origin, environ)
    assert line == f"compile cache: loaded 6 files of kernels of {binary_of(saved, origin, environ)}"
    found = here(dirs)
    group = json.loads(found.pop(f"triton/{OWN}/__grp__row_terms.json"))["child_paths"]
    assert group == {name: str(dirs.triton / OWN / name) for name in ("row_terms.cubin", "row_terms.json")}
    assert found == {
        f"flash/{FORWARD}": FORWARD.encode(),
        f"flash/{BACKWARD}": BACKWARD.encode(),
        f"triton/{OWN}/row_terms.cubin": b"row_terms.cubin",
        f"triton/{OWN}/row_terms.json": b"row_terms.json",
        f"triton/{LAUNCHER}/{SO}": b"ELF",
    }


def test_the_pair_is_one_that_is_carried_like_torch_s(saved, origin):
    _, environ = node(saved, "two")
    binary = binary_of(saved, origin, environ)
    value = json.loads(binary.with_suffix(".json").read_bytes())
    assert value["entries"] == {"flash": 2, "triton": 4}
    assert value["origin"]["torch"] == torch.__version__
    assert value["origin"]["kernels"].keys() == {"packages", "sources", "switches", "libc", "cpu"}
    assert binary.stem == pairs.fingerprint(value["origin"]) != origin.fingerprint


def test_what_is_there_stays_as_it_is(saved, origin):
    dirs, environ = node(saved, "two")
    mine = dirs.flash / FORWARD
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"newer")
    kernels.load(dirs, origin, environ)
    assert mine.read_bytes() == b"newer"
    assert (dirs.flash / BACKWARD).exists()


def test_it_is_written_again_only_for_a_kernel_that_it_lacks(saved, origin):
    dirs, environ = node(saved, "one")
    assert kernels.save(dirs, origin, environ, compile_s=1.0) is None
    (dirs.flash / FORWARD).with_name(f"{'3' * 64}.o").write_bytes(b"another shape's")
    assert "saved 7 entries" in str(kernels.save(dirs, origin, environ, compile_s=1.0))


def test_nothing_compiled_is_nothing_saved_nor_told(tmp_path, origin):
    dirs, environ = node(tmp_path, "one")
    assert kernels.save(dirs, origin, environ, compile_s=1.0) is None
    assert kernels.load(dirs, origin, environ) is None
    assert not dirs.artifacts.exists()


def test_too_much_is_told_and_not_saved(tmp_path, origin, monkeypatch):
    dirs, environ = node(tmp_path, "one")
    fill(dirs)
    monkeypatch.setattr(kernels, "MAX_BYTES", 100)
    assert "bytes of kernels are not saved" in str(kernels.save(dirs, origin, environ, compile_s=1.0))
    assert not dirs.artifacts.exists()


@pytest.mark.parametrize("variable", [FLASH, TRITON])
def test_a_place_of_the_user_s_is_left_alone(saved, origin, tmp_path, variable):
    dirs, environ = node(saved, "two")
    environ[variable] = str(tmp_path / "elsewhere")
    kernels.load(dirs, origin, environ)
    kept = {FLASH: "triton", TRITON: "flash"}[variable]
    assert {name.split("/")[0] for name in here(dirs)} == {kept}
    assert not (tmp_path / "elsewhere").exists()


DIFFERENT: dict[str, Callable[[Origin, pytest.MonkeyPatch], Origin]] = {
    "gpu": lambda origin, _: dataclasses.replace(origin, capability="10.0"),
    "card": lambda origin, _: dataclasses.replace(origin, device="NVIDIA H100 PCIe"),
    "torch": lambda origin, _: dataclasses.replace(origin, torch="2.9.0"),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_those_of_another_gpu_or_torch_are_not_looked_at(saved, origin, what, monkeypatch):
    dirs, environ = node(saved, "two")
    assert kernels.load(dirs, DIFFERENT[what](origin, monkeypatch), environ) is None
    assert here(dirs) == {}


@pytest.mark.parametrize("what", ["package", "cpu", "switch"])
def test_nor_those_of_another_compiler_cpu_or_switch(saved, origin, what, monkeypatch):
    dirs, environ = node(saved, "two")
    if what == "package":
        monkeypatch.setattr(kernels, "_version", lambda name: f"{name} 9")
    elif what == "cpu":
        monkeypatch.setattr(kernels, "_cpu_features", lambda: "none")
    else:
        environ["CUTE_DSL_ARCH"] = "sm_100a"
    assert kernels.load(dirs, origin, environ) is None
    assert here(dirs) == {}


def rewrite(run: Path, origin: Origin, environ: dict[str, str], data: bytes) -> None:
    """Other bytes in a pair that is whole: its sums are theirs."""
    pairs.write(cache_dirs(run).artifacts, kernels.describe(origin, environ), data, {}, compile_s=0.0)


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def plain(name: str) -> tarfile.TarInfo:
    return tarfile.TarInfo(name)


def link(kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(f"flash/{FORWARD}")
    info.type, info.linkname = kind, "/etc/passwd"
    return info


EVIL = {
    "up": plain("flash/../../../escaped.o"),
    "up in Triton's": plain(f"triton/{OWN}/.."),
    "up by its key": plain("triton/../row_terms.json"),
    "absolute": plain("/tmp/escaped.o"),
    "elsewhere": plain("inductor/a/b.py"),
    "hidden": plain(f"triton/{OWN}/.profile"),
    "a symbolic link": link(tarfile.SYMTYPE),
    "a hard link": link(tarfile.LNKTYPE),
    "a pipe": link(tarfile.FIFOTYPE),
    "a line's end": plain(f"flash/{FORWARD}\n"),
}


@pytest.mark.parametrize("what", EVIL)
def test_a_tar_with_anything_else_in_it_is_refused_whole(saved, origin, what):
    dirs, environ = node(saved, "two")
    before = sorted(path for path in saved.rglob("*") if "artifacts" not in path.parts)
    info = EVIL[what]
    data = b"" if info.type != tarfile.REGTYPE else b"evil"
    rewrite(saved, origin, environ, tar_of((plain(f"flash/{BACKWARD}"), b"good"), (info, data)))
    line = kernels.load(dirs, origin, environ)
    assert line is not None
    assert "the tar of kernels holds " in line
    assert line.endswith("; kernels are compiled anew")
    assert sorted(path for path in saved.rglob("*") if "artifacts" not in path.parts) == before


@pytest.mark.parametrize("keep", [0, 100, 512, 700, 1600])
def test_a_torn_tar_restores_nothing(saved, origin, keep):
    dirs, environ = node(saved, "two")
    binary = binary_of(saved, origin, environ)
    whole = binary.read_bytes()
    binary.write_bytes(whole[:keep])
    line = str(kernels.load(dirs, origin, environ))
    assert f"{binary}: damaged" in line
    rewrite(saved, origin, environ, whole[:keep])
    line = str(kernels.load(dirs, origin, environ))
    assert line.endswith("; kernels are compiled anew") or "loaded 1 files" in line, line
    assert all(data in (FORWARD.encode(), BACKWARD.encode()) for data in here(dirs).values())


def test_a_group_that_is_none_is_refused(saved, origin):
    dirs, environ = node(saved, "two")
    rewrite(saved, origin, environ, tar_of((plain(f"triton/{OWN}/__grp__row_terms.json"), b"[]")))
    assert "is no group of Triton's" in str(kernels.load(dirs, origin, environ))


def test_a_place_that_cannot_be_written_is_told(saved, origin):
    dirs, environ = node(saved, "two")
    (dirs.flash / ("a" * 64)).write_text("in the way")
    line = str(kernels.load(dirs, origin, environ))
    assert "Not a directory" in line or "File exists" in line
    assert line.endswith("; kernels are compiled anew")


def test_every_source_of_a_kernel_is_there():
    from pathlib import Path

    folder = Path(kernels.__file__).parent.parent
    assert [name for name in kernels.SOURCES if not (folder / name).exists()] == []
    launched = [
        name
        for path in folder.rglob("*.py")
        for name in re.findall(r"^@triton\.jit.*\ndef ([a-z]\w*)\(", path.read_text(), re.MULTILINE)
    ]
    assert sorted(launched) == sorted(kernels.OWN)
