"""install, tail, capture, sizes, remove, gpu: the guest's other verbs."""

import ast
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from orchestrator import wire
from orchestrator.guest import processes
from tests.cli import LONG_S
from tests.integration import guest_driver as driver

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not driver.HAS_TMUX, reason="no tmux")]

GPU_LINE = "gpu 0,GPU-aaaa,NVIDIA H200,{used},143771,{busy},310,41,4711:{used}"


@pytest.fixture
def guest(tmp_path):
    yield from driver.lend(tmp_path)


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> tuple[bytes, str]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    data = buffer.getvalue()
    return data, hashlib.sha256(data).hexdigest()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o4777) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


def install(guest: driver.Guest, data: bytes, sha256: str, size: int | None = None) -> driver.Message:
    size = len(data) if size is None else size
    return guest.ask("install", raw=data, sha256=sha256, size=size, kind="trainer")[-1]


def test_a_trainer_is_installed_once_under_its_hash(guest):
    main = (member("trainer/__main__.py"), b"print('hi')")
    data, sha256 = archive(main, (member("trainer/x/y.txt"), b"y" * 99))
    check = {"sha256": sha256, "check": True, "kind": "trainer"}
    assert guest.ask("install", **check)[-1]["already"] is False
    first = install(guest, data, sha256)
    assert (first["type"], first["already"]) == ("installed", False)
    assert (Path(first["path"]) / "trainer/__main__.py").read_text() == "print('hi')"
    assert (Path(first["path"]) / "trainer/__main__.py").stat().st_mode & 0o7022 == 0
    assert install(guest, data, sha256)["already"] is True
    assert guest.ask("install", **check)[-1]["already"] is True
    assert driver.names(guest.state / "trainers") == [sha256]


def test_a_broken_archive_is_refused_and_leaves_nothing(guest):
    data, sha256 = archive((member("a"), b"a" * 1000))
    for sent, size in ((data[:-5], len(data)), (data[:-1] + b"?", None)):
        refused = install(guest, sent, sha256, size)
        assert refused["code"] == "checksum"
    junk = b"not a tar at all"
    assert install(guest, junk, hashlib.sha256(junk).hexdigest())["code"] == "checksum"
    assert driver.names(guest.state / "trainers") == []


def test_an_unpacking_that_was_cut_is_done_again(guest):
    data, sha256 = archive((member("a"), b"whole"))
    half = guest.state / "trainers" / sha256
    half.mkdir(parents=True)
    (half / "a").write_bytes(b"hal")
    assert install(guest, data, sha256)["already"] is False
    assert (half / "a").read_bytes() == b"whole"


@pytest.mark.parametrize(
    "bad",
    [
        member("../out"), member("/abs"), member("a/../../out"), member("l", tarfile.SYMTYPE, "/etc"),
        member("l", tarfile.LNKTYPE, "x"), member("d", tarfile.CHRTYPE), member("p", tarfile.FIFOTYPE),
    ],
    ids=lambda info: f"{info.name}-{info.type!r}",
)  # fmt: skip
def test_an_archive_that_reaches_outside_is_refused(guest, bad):
    data, sha256 = archive((member("fine"), b"x"), (bad, b""))
    assert install(guest, data, sha256)["code"] == "bad_request"
    assert driver.names(guest.state / "trainers") == []
    assert driver.names(guest.state) == ["trainers"]


def test_tail_gives_the_end_or_any_part_of_a_log(guest):
    guest.start("--steps", 20, "--step-s", 0.01)
    guest.exit()
    whole = (guest.dir("r", 1) / "log").read_bytes()

    def tail(**request: object) -> bytes:
        *lines, end = guest.ask("tail", run="r", **request)
        assert end["size"] == len(whole)
        return b"".join(wire.unpack_bytes(line["data"]) for line in lines)

    assert tail(last_bytes=10) == whole[-10:]
    assert tail(offset=0) == whole
    assert tail(offset=17, attempt=1) == whole[17:]
    assert tail(offset=5, limit=7) == whole[5:12]
    assert tail(offset=5, limit=0) == b""
    assert tail(last_bytes=0) == b""
    assert tail(last_lines=3) == b"".join(whole.splitlines(keepends=True)[-3:])
    assert tail(offset=1 << 40) == b""
    assert guest.ask("tail", run="r", attempt=2)[-1]["code"] == "not_found"
    assert guest.ask("tail", run="r", offset="x")[-1]["code"] == "bad_request"
    assert guest.ask("tail", run="r", limit=-1)[-1]["code"] == "bad_request"
    assert guest.ask("tail", run="r", previous=True)[-1]["code"] == "not_found"
    assert guest.ask("tail", run="r", since="yesterday")[-1]["code"] == "bad_request"
    since, log, end = guest.ask("tail", run="r", since_ago_s=3600)
    assert (since["type"], since["offset"], since["by"]) == ("since", 0, "start")
    assert wire.unpack_bytes(log["data"])[-10:] == whole[-10:]
    since, end = guest.ask("tail", run="r", since=3e9)
    assert (since["offset"], since["by"], end["type"]) == (len(whole), "quiet", "end")


def test_tail_follows_until_its_reader_goes(guest):
    guest.start("--steps", 2000)
    process = subprocess.Popen(
        [*guest.command, "tail"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=guest.env
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(guest.line("tail", run="r", offset=0, follow=True))
    process.stdin.flush()
    seen = [wire.Decoder().decode(process.stdout.readline())["offset"]]
    while len(seen) < 3:
        seen.append(json.loads(process.stdout.readline())["offset"])
    assert seen == sorted(set(seen))
    rest, _ = process.communicate(timeout=LONG_S)
    assert b'"type":"end"' in rest
    assert process.returncode == 0


def test_a_session_that_is_not_ours_is_captured_with_its_history(guest):
    guest.tmux("-f/dev/null", "start-server", ";", "set", "-g", "remain-on-exit", "on", ";",
               "new-session", "-d", "-s", "theirs", "-x", "80", "-y", "10",
               "for i in $(seq 200); do echo line $i; done; printf 'caf\\303\\251\\n'; exit 3")  # fmt: skip
    driver.wait_until(lambda: guest.ask("capture", session="theirs", socket="dflashctl")[0]["dead"])
    pane, gpu, end = guest.ask("capture", session="theirs", socket="dflashctl", lines=150)
    assert (pane["exists"], gpu["type"], end["type"]) == (True, "gpu", "end")
    assert "caf\u00e9" in pane["lines"]
    assert "line 100" in pane["lines"]
    assert "line 1" not in pane["lines"]
    assert pane["pid"] > 1
    gone = guest.ask("capture", session="the", socket="dflashctl")[0]  # no prefix matching
    assert (gone["exists"], gone["lines"]) == (False, [])
    assert guest.ask("capture", session="dflash", socket=None)[0]["exists"] is False
    assert guest.ask("capture", session="x\ny")[-1]["code"] == "bad_request"


def test_checkpoints_are_sized_and_all_but_the_newest_complete_ones_removed(guest):
    guest.start("--steps", 20, "--step-s", 0.01)
    guest.exit()
    (guest.dir() / "checkpoints" / "step-25").mkdir()
    (guest.dir() / "checkpoints" / "step-25" / "half").write_bytes(b"x" * 10)
    request = {"run": "r", "what": "checkpoints", "keep": 2}
    items = guest.ask("sizes", **request)[-1]["items"]
    assert [(i["step"], i["complete"], i["kept"]) for i in items] == [
        (5, True, False), (10, True, False), (15, True, True), (20, True, True), (25, False, False),
    ]  # fmt: skip
    removed = guest.ask("remove", **request)[-1]
    assert [i["step"] for i in removed["items"]] == [5, 10, 25]
    assert removed["bytes"] == 2 * 1024 + 10
    assert driver.names(guest.dir() / "checkpoints") == ["step-15", "step-20"]


def test_a_living_run_is_not_removed(guest):
    guest.start("--steps", 2000)
    for what in ("run", "checkpoints"):
        assert guest.ask("remove", run="r", what=what, keep=0)[-1]["code"] == "run_alive"
    assert guest.dir("r", 1).exists()
    guest.stop()
    removed = guest.ask("remove", run="r", what="run", keep=0)[-1]
    assert removed["bytes"] > 1000
    assert not guest.dir().exists()
    assert guest.tmux("list-sessions").strip() == ""


@pytest.fixture
def nvml(guest, tmp_path):
    """The lab's stub of NVML; returns a function that writes what its driver answers."""
    library = tmp_path / "lib"
    library.mkdir()
    source = driver.ROOT / "tests" / "lab" / "nvml_stub.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library / "libnvidia-ml.so.1", source], check=True)
    guest.env.update(LD_LIBRARY_PATH=str(library), DFLASHCTL_LAB_GPUS=str(tmp_path / "gpus"))

    def write(*lines):
        (tmp_path / "new").write_text("\n".join(lines) + "\n")
        (tmp_path / "new").replace(tmp_path / "gpus")

    return write


def test_gpus_are_read_and_told_again_when_they_change(guest, nvml):
    nvml(GPU_LINE.format(used=1000, busy=50), "gpu 1,GPU-b,NVIDIA H200,0,143771,-,-,30,")
    watch = guest.watch(gpus=True)
    first = watch.until("gpu")
    assert (first["source"], first["problem"]) == ("nvml", None)
    assert first["gpus"][0] == {
        "index": 0, "uuid": "GPU-aaaa", "name": "NVIDIA H200", "memory_used_bytes": 1000 << 20,
        "memory_total_bytes": 143771 << 20, "utilization_pct": 50.0, "power_w": 310.0, "temperature_c": 41.0,
        "processes": [{"pid": 4711, "memory_bytes": 1000 << 20}], "problem": None,
        "pci": "0000:10:00", "recovery": None, "ecc_uncorrected": 0, "remap_pending": False,
        "remap_failed": False,
    }  # fmt: skip
    assert (first["gpus"][1]["power_w"], first["gpus"][1]["processes"]) == (None, [])
    nvml(GPU_LINE.format(used=1001, busy=52), "gpu 1,GPU-b,NVIDIA H200,0,143771,-,-,30,")
    assert all(m["type"] != "gpu" for m in iter(lambda: watch.read(3), None))  # jitter is no news
    nvml(GPU_LINE.format(used=5000, busy=90), "lost 0", "gpu 1,GPU-b,NVIDIA H200,0,143771,-,-,30,")
    lost = watch.until("gpu")
    assert "lost" in lost["gpus"][0]["problem"].lower()
    assert lost["gpus"][1]["problem"] is None
    watch.close()


def test_a_driver_that_hangs_is_a_reading_and_holds_nobody(guest, nvml):
    nvml(GPU_LINE.format(used=1000, busy=50))
    guest.start("--steps", 20000)
    watch = guest.watch(gpus=True)
    watch.until("gpu")
    watch.until("heartbeat")
    nvml(GPU_LINE.format(used=1000, busy=50), "hang 3600")
    watch.lines.clear()
    stuck = watch.until(lambda m: m["type"] == "gpu" and m["problem"])
    assert "does not answer" in stuck["problem"]
    beats = [m for m in watch.lines if m["type"] == "heartbeat"]
    assert len(beats) > 2  # the run was watched all the while
    assert watch.close() == 0


def test_a_probe_that_dies_is_a_reading(guest, nvml):
    nvml(GPU_LINE.format(used=1000, busy=50))
    watch = guest.watch(gpus=True)
    watch.until("gpu")
    for path in Path("/proc").glob("[0-9]*/stat"):
        row = processes.read_stat(int(path.parent.name))
        if row and row.ppid == watch.process.pid:
            os.kill(row.pid, signal.SIGSEGV)
    assert "code -11" in watch.until("gpu")["problem"]
    watch.close()


def test_nvidia_smi_is_asked_where_nvml_fails(guest, nvml, tmp_path):
    nvml("init-error 18")
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    answer = "0, GPU-c, NVIDIA H200, 1024, 143771, 7, 99.5, [N/A], 00000000:3B:00.0"
    smi.write_text(f"#!/bin/sh\necho '{answer}'\n")
    smi.chmod(0o755)
    guest.env["PATH"] = f"{smi.parent}:{guest.env['PATH']}"
    reading = guest.ask("capture", session="none", socket="dflashctl")[1]
    assert (reading["source"], reading["problem"]) == ("nvidia-smi", None)
    gpu = reading["gpus"][0]
    assert (gpu["memory_used_bytes"], gpu["power_w"], gpu["temperature_c"]) == (1 << 30, 99.5, None)
    assert gpu["pci"] == "0000:3b:00"
    smi.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")
    reading = guest.ask("capture", session="none", socket="dflashctl")[1]
    assert (reading["source"], reading["gpus"]) == (None, [])
    assert "mismatch" in reading["problem"]


def test_no_gpu_at_all_is_a_reading(guest):
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has a GPU")
    reading = guest.ask("capture", session="none", socket="dflashctl")[1]
    assert (reading["source"], reading["gpus"]) == ("none", [])  # an answer; null would be no answer
    assert "NVML" in reading["problem"]


def test_an_old_python_is_told_with_the_fix():
    for name in ("__init__.py", "guest/__init__.py", "guest/__main__.py"):
        text = (driver.ROOT / "orchestrator" / name).read_text()
        ast.parse(text, feature_version=(3, 6))
        assert "__future__" not in text
    code = (
        "import sys, io\nsys.version_info = (3, 9, 2)\n"
        "from orchestrator.guest.__main__ import main\nsys.exit(main())"
    )
    command = [sys.executable, "-c", code, "hello"]
    done = subprocess.run(command, capture_output=True, cwd=driver.ROOT, check=False)
    answer = wire.Decoder().decode(done.stdout)
    assert (answer["code"], done.returncode) == ("unsupported_python", 3)
    assert "3.9" in answer["message"]


@pytest.mark.parametrize("line", [b"", b"\n", b"hello\n", b"[]\n", b'{"schema":2,"seq":0,"type":"hello"}\n'])
def test_a_line_that_is_not_ours_is_refused(guest, line):
    command = [*guest.command, "hello"]
    done = subprocess.run(command, input=line, capture_output=True, env=guest.env, check=False)
    assert (wire.Decoder().decode(done.stdout)["code"], done.returncode) == ("bad_request", 3)
    assert done.stderr == b""


def test_an_unknown_verb_is_refused(guest):
    assert guest.ask("dance")[-1]["code"] == "bad_request"
