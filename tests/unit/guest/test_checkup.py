"""checkup: nodes of the driver that is loaded, limits of the groups above, idle GPUs only, torch's words."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.guest import checkup, devices, memory, surroundings, torch_lines, torch_probe

MAJORS = {"nvidia": 195, "nvidiactl": 195, "nvidia-uvm": 511}
GIB = 1 << 30


@pytest.mark.parametrize(
    ("name", "major", "majors", "expected"),
    [
        ("nvidia-uvm", 511, MAJORS, True),
        ("nvidia-uvm", 508, MAJORS, False),
        ("nvidia-uvm-tools", 508, MAJORS, False),
        ("nvidia-uvm", 508, {"nvidia": 195}, False),
        ("nvidia0", 195, MAJORS, True),
        ("nvidia0", 194, MAJORS, False),
        ("nvidia-modeset", 195, MAJORS, None),
        ("nvidia-uvm", 508, {"mem": 1}, None),
    ],
)
def test_a_node_is_current_if_its_number_is_its_drivers(name, major, majors, expected):
    assert devices.is_current(name, major, majors) is expected


def test_nodes_are_devices_only_and_what_opening_says_is_told(tmp_path, monkeypatch):
    (tmp_path / "nvidia-caps").mkdir()
    (tmp_path / "nvidia0").write_text("a file that somebody made")
    (tmp_path / "nvidiactl").symlink_to("/dev/null")
    (tmp_path / "numbers").write_text(
        "Character devices:\n  1 nvidia\n511 nvidia-uvm\n\nBlock devices:\n8 sd\n"
    )
    assert devices.nodes(tmp_path, tmp_path / "numbers") == [
        {"name": "nvidiactl", "current": True, "error": None}
    ]
    assert devices.nodes(tmp_path / "none", tmp_path / "numbers") is None

    def refuse(path: object, flags: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("orchestrator.guest.devices.os.open", refuse)
    assert devices.nodes(tmp_path, tmp_path / "none") == [
        {"name": "nvidiactl", "current": None, "error": "Operation not permitted"}
    ]


def test_versions_of_module_and_library(tmp_path):
    path = tmp_path / "version"
    path.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC 12.2.0\n"
    )
    assert devices.module_version(path) == "580.65.06"
    assert devices.module_version(tmp_path / "none") is None
    path.write_text(
        "7f00 r-xp 0 08:01 1    /usr/lib/libnvidia-ml.so.580.65.06\n7f01 r-xp 0 08:01 1 /lib/libc.so.6\n"
    )
    assert devices.library_version(path) == "580.65.06"
    path.write_text("7f00 r-xp 0 08:01 1    /usr/lib/libnvidia-ml.so.1\n")
    assert devices.library_version(path) is None


def write(path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def place(tmp_path):
    write(tmp_path / "own", "5:memory:/lxc/200\n0::/lxc/200/init.scope\n")
    write(tmp_path / "meminfo", "MemTotal: 1 kB\nMemAvailable:   104857600 kB\n")
    return tmp_path


def room(place) -> dict[str, object]:
    return memory.room(place, place / "own", place / "meminfo")


def test_a_limit_of_a_group_above_counts_and_files_that_can_go_are_free(place):
    write(place / "lxc/200/memory.max", f"{10 * GIB}\n")
    write(place / "lxc/200/memory.current", f"{8 * GIB}\n")
    write(place / "lxc/200/memory.stat", f"anon 1\ninactive_file {3 * GIB}\n")
    write(place / "lxc/200/init.scope/memory.max", "max\n")
    assert room(place) == {"limit_bytes": 10 * GIB, "free_bytes": 5 * GIB, "told": True}


def test_the_older_hierarchy_says_none_by_a_large_number(place):
    write(place / "memory/lxc/200/memory.limit_in_bytes", "9223372036854771712\n")
    assert room(place) == {"limit_bytes": None, "free_bytes": 100 * GIB, "told": True}


def test_what_nobody_tells_is_null(place):
    (place / "meminfo").unlink()
    assert room(place) == {"limit_bytes": None, "free_bytes": None, "told": False}


def gpu(index: int, **changes: object) -> dict[str, object]:
    return {"index": index, "memory_used_bytes": 0, "processes": [], "problem": None, **changes}


def test_only_an_idle_gpu_is_tried():
    idle, left = checkup.split(
        [
            gpu(0),
            gpu(1, memory_used_bytes=2 * GIB),
            gpu(2, processes=[{"pid": 1}]),
            gpu(3, problem="GPU is lost"),
            gpu(4, memory_used_bytes=None),
        ]
    )
    assert idle == [0]
    assert set(left) == {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("by_driver", "by_torch", "expected"),
    [
        ({0: ""}, {0: ""}, {"error": "", "reason": None}),
        ({0: ""}, {}, {"error": "", "reason": None}),
        ({}, {0: "torch: no kernel"}, {"error": "torch: no kernel", "reason": None}),
        ({0: ""}, {0: "torch: no kernel"}, {"error": "torch: no kernel", "reason": None}),
        ({}, {}, {"error": None, "reason": "no answer in time"}),
    ],
)
def test_what_both_tries_come_to(by_driver, by_torch, expected):
    assert checkup.verdict(0, by_driver, by_torch, {}) == expected


def test_torchs_words_are_found_among_what_an_import_prints():
    output = (
        b'hello\n\ndflashctl-torch {"version": "2.11.0"}\nnoise\n\ndflashctl-torch {"tries": {"1": ""}}\n'
    )
    assert torch_lines.read_lines(output) == {"build": {"version": "2.11.0"}, "tries": {1: ""}}
    assert torch_lines.read_lines(b"dflashctl-torch {half") == {"build": None, "tries": {}}
    assert torch_probe.MARK.encode() == torch_lines.MARK


def fake_torch(tmp_path, monkeypatch, text: str) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_a_torch_that_cannot_be_imported_says_why(tmp_path, monkeypatch):
    fake_torch(tmp_path, monkeypatch, 'print("noise"); raise OSError("libcudart.so.13: cannot open")')
    build = checkup.Torch(sys.executable).finish([0])["build"]
    assert build["version"] is None
    assert build["error"] == "torch cannot be imported: libcudart.so.13: cannot open"


def test_an_import_that_dies_says_its_code(tmp_path, monkeypatch):
    fake_torch(tmp_path, monkeypatch, "import os; os._exit(7)")
    build = checkup.Torch(sys.executable).finish([])["build"]
    assert build == {"version": None, "error": "it ended with code 7"}


def test_an_import_that_never_ends_is_not_known(tmp_path, monkeypatch):
    fake_torch(tmp_path, monkeypatch, "import time; time.sleep(60)")
    monkeypatch.setattr(checkup, "TRIES_S", 0.5)
    assert checkup.Torch(sys.executable).finish([])["build"] is None


def test_a_python_that_is_not_there():
    assert checkup.Torch("/no/such/python").finish([])["build"]["error"] == "No such file or directory"


@pytest.fixture(scope="module")
def libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc here")
    folder = tmp_path_factory.mktemp("cuda")
    source = Path(__file__).with_name("cuda_stub.c")
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", folder / "libcuda.so.1"], check=True)
    return folder


def computed(folder: Path, fails: str = "") -> str:
    """What the child tells with the libraries of a folder."""
    code = "from orchestrator.guest import cuda_child; cuda_child.main([])"
    env = {**os.environ, "LD_LIBRARY_PATH": str(folder), "STUB_FAILS": fails}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return str(json.loads(done.stdout)["error"])


@pytest.mark.parametrize(
    ("fails", "error"),
    [
        ("", ""),
        ("cuInit", "cuInit: 999 unknown error"),
        ("cuMemAlloc", "cuMemAlloc_v2: 999 unknown error"),
        ("bit", "what was written was read back otherwise"),
    ],
)
def test_a_gpu_is_written_and_read_back(libcuda, fails, error):
    assert computed(libcuda, fails) == error


TORCH = """
import os
__version__ = "2.11.0"
class version: cuda = "13.0"
class _C:
    @staticmethod
    def _cuda_getArchFlags(): return "sm_80 sm_90"
class Sum:
    def sum(self): return self
    def item(self): return float(2 << 20)
def full(shape, value, device):
    if os.environ["CUDA_VISIBLE_DEVICES"] == "5" and device == "cuda:0":
        raise RuntimeError("CUDA error: no kernel image\\nmore")
    return Sum()
"""


def try_both(tmp_path, monkeypatch, libcuda, gpus: list[int], fails: str = ""):
    fake_torch(tmp_path, monkeypatch, TORCH)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(libcuda))
    monkeypatch.setenv("STUB_FAILS", fails)
    monkeypatch.setattr("sys.argv", ["guest"])
    return checkup._try(gpus, checkup.Torch(sys.executable))


def test_torch_computes_where_the_library_did(tmp_path, monkeypatch, libcuda):
    by_driver, told = try_both(tmp_path, monkeypatch, libcuda, [3, 4])
    assert by_driver == {3: "", 4: ""}
    assert told["tries"] == {3: "", 4: ""}
    assert told["build"]["arch"] == ["sm_80", "sm_90"]


def test_a_torch_that_has_no_code_for_the_gpu_is_told(tmp_path, monkeypatch, libcuda):
    by_driver, told = try_both(tmp_path, monkeypatch, libcuda, [5])
    assert by_driver == {5: ""}
    assert told["tries"] == {5: "torch: CUDA error: no kernel image"}


def test_torch_is_not_sent_to_a_gpu_that_failed(tmp_path, monkeypatch, libcuda):
    by_driver, told = try_both(tmp_path, monkeypatch, libcuda, [3], fails="cuInit")
    assert by_driver == {3: "cuInit: 999 unknown error"}
    assert told["tries"] == {}
    assert told["build"]["version"] == "2.11.0"


def test_a_libcuda_that_is_none_is_told(tmp_path):
    (tmp_path / "libcuda.so.1").write_text("no library")
    assert computed(tmp_path).startswith("libcuda.so.1 cannot be loaded: ")


def test_a_folder_that_is_not_there_yet_has_the_room_of_its_parent(tmp_path):
    fields = surroundings.fields(tmp_path / "none" / "yet")
    assert fields["total_bytes"] > 0
    assert fields["has_shm"] in (True, False)
