"""pull and push: the guest's verbs for files, as real processes on this machine."""

from __future__ import annotations

import hashlib
import os
import subprocess
from typing import Any

import pytest

from orchestrator import wire
from tests.cli import LONG_S
from tests.integration import guest_driver as driver

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not driver.HAS_TMUX, reason="no tmux")]


@pytest.fixture
def guest(tmp_path):
    yield from driver.lend(tmp_path)


@pytest.fixture
def exported(guest):
    """A run with an export of three files, one of them longer than a line may be."""
    folder = guest.dir() / "export"
    (folder / "more").mkdir(parents=True)
    (folder / "config.json").write_bytes(b"{}")
    (folder / "model.safetensors").write_bytes(os.urandom(wire.MAX_CHUNK_BYTES * 2 + 7))
    (folder / "more" / "empty").write_bytes(b"")
    (folder / ".config.json.123").write_bytes(b"half")
    (guest.dir() / "env").write_text('{"HF_TOKEN": "s3cret"}')
    return folder


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def pulled(lines: list[driver.Message]) -> tuple[dict[str, bytes], dict[str, str]]:
    """What came, by path, and what its sha256 was said to be."""
    data: dict[str, bytes] = {}
    hashes: dict[str, str] = {}
    for line in lines:
        if line["type"] == "file":
            data[line["path"]] = b""
        if line["type"] == "data":
            data[line["path"]] += wire.unpack_bytes(line["data"])
        if line["type"] == "file_end":
            hashes[line["path"]] = line["sha256"]
    return data, hashes


def test_a_folder_is_pulled_whole_with_the_sha256_of_each_file(guest, exported):
    lines = guest.ask("pull", run="r", path="export")
    data, hashes = pulled(lines)
    names = ["export/config.json", "export/model.safetensors", "export/more/empty"]
    assert list(data) == names
    assert data["export/model.safetensors"] == (exported / "model.safetensors").read_bytes()
    assert hashes == {name: sha256(data[name]) for name in names}
    assert lines[-1]["type"] == "end"
    assert lines[-1]["files"] == 3


@pytest.mark.parametrize(
    "offset", [1, wire.MAX_CHUNK_BYTES, wire.MAX_CHUNK_BYTES + 3, 2 * wire.MAX_CHUNK_BYTES + 7]
)
def test_a_pull_goes_on_from_an_offset_and_hashes_the_whole_file(guest, exported, offset):
    name = "export/model.safetensors"
    whole = (exported / "model.safetensors").read_bytes()
    lines = guest.ask("pull", run="r", path=name, offsets={name: offset})
    assert [line["offset"] for line in lines if line["type"] == "data"][:1] == (
        [offset] if offset < len(whole) else []
    )
    data, hashes = pulled(lines)
    assert data[name] == whole[offset:]
    assert hashes[name] == sha256(whole)


def test_names_and_hashes_send_no_byte_of_a_file(guest, exported):
    for want in ("names", "hashes"):
        lines = guest.ask("pull", run="r", path="export", want=want, suffix=".safetensors")
        assert {line["type"] for line in lines} == {"file", "end"} | (
            {"file_end"} if want == "hashes" else set()
        )
        assert [line["path"] for line in lines if line["type"] == "file"] == ["export/model.safetensors"]


@pytest.mark.parametrize(
    "path",
    ["env", "lock", "run.json", "../other/env", "export/../env", "export/..", "/etc/passwd", "", ".",
     "export//x", "export/./x", "export/\0", None, 7, ["export"]],
)  # fmt: skip
def test_a_path_that_is_none_of_the_folders_is_refused(guest, exported, path):
    answer = guest.ask("pull", run="r", path=path)
    assert [line["type"] for line in answer] == ["error"]
    assert answer[-1]["code"] == "bad_request"
    assert "s3cret" not in str(answer)


def test_a_link_is_refused_wherever_it_lies(guest, exported):
    (exported / "config.json").unlink()
    (exported / "config.json").symlink_to(guest.dir() / "env")
    assert guest.ask("pull", run="r", path="export")[-1]["code"] == "bad_request"
    assert guest.ask("pull", run="r", path="export/config.json")[-1]["code"] == "bad_request"
    (guest.dir() / "checkpoints").symlink_to("/etc")
    assert guest.ask("pull", run="r", path="checkpoints")[-1]["code"] == "bad_request"
    assert guest.ask("pull", run="r", path="checkpoints/hostname")[-1]["code"] == "bad_request"
    (exported / "config.json").unlink()
    (exported / "more" / "out").symlink_to("/etc")
    assert guest.ask("pull", run="r", path="export")[-1]["code"] == "bad_request"
    os.mkfifo(exported / "pipe")
    (exported / "more" / "out").unlink()
    assert guest.ask("pull", run="r", path="export")[-1]["code"] == "bad_request"


def test_a_state_directory_behind_a_link_is_no_link_inside_the_run(guest, exported, tmp_path):
    (tmp_path / "moved").symlink_to(guest.state)
    lines = guest.ask("pull", run="r", path="export", state_dir=str(tmp_path / "moved"))
    assert lines[-1]["type"] == "end"


def test_what_is_not_there_is_told(guest, exported):
    assert guest.ask("pull", run="r", path="checkpoints")[-1]["code"] == "not_found"
    assert guest.ask("pull", run="nosuch", path="export")[-1]["code"] == "not_found"
    for bad in ({"want": "all"}, {"offsets": [1]}, {"suffix": 3}, {"offsets": {"export/config.json": -1}}):
        assert guest.ask("pull", run="r", path="export", **bad)[-1]["code"] == "bad_request"


def test_a_reader_that_goes_ends_a_pull_quietly(guest, exported):
    (exported / "model.safetensors").write_bytes(b"\0" * (64 << 20))
    command = [*guest.command, "pull"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=guest.env
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(guest.line("pull", run="r", path="export"))
        process.stdin.flush()
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(LONG_S) == 0
        assert process.stderr.read() == b""


def push(guest: driver.Guest, data: bytes, path: str = "compile-cache/artifacts/a.bin", **other: Any) -> Any:
    request = {"run": "r", "path": path, "size": len(data), "sha256": sha256(data), **other}
    return guest.ask("push", raw=b"" if other.get("check") else data, **request)[-1]


def test_a_file_is_pushed_whole_into_a_run_that_is_yet_to_come(guest):
    data = os.urandom(1 << 20)
    place = guest.dir() / "compile-cache" / "artifacts"
    assert push(guest, data, check=True)["already"] is False
    assert not guest.dir().exists()
    assert push(guest, data)["already"] is False
    assert (place / "a.bin").read_bytes() == data
    assert push(guest, data, check=True)["already"] is True
    assert push(guest, data)["already"] is True
    assert push(guest, b"other")["already"] is False
    assert (place / "a.bin").read_bytes() == b"other"
    assert driver.names(place) == ["a.bin"]
    guest.start("--steps", 2, "--step-s", 0.01)
    assert guest.exit()["code"] == 0


def test_a_push_that_was_cut_or_altered_leaves_nothing_or_the_old_file(guest):
    data = b"x" * 1000
    assert push(guest, data[:-1], sha256=sha256(data), size=1000)["code"] == "checksum"
    assert push(guest, data[:-1] + b"y", sha256=sha256(data))["code"] == "checksum"
    assert not guest.dir().exists()
    push(guest, data)
    assert push(guest, data[:-1] + b"y", sha256=sha256(b"z"))["code"] == "checksum"
    assert (guest.dir() / "compile-cache/artifacts/a.bin").read_bytes() == data
    assert driver.names(guest.dir() / "compile-cache/artifacts") == ["a.bin"]


@pytest.mark.parametrize(
    "path",
    ["export/config.json", "attempts/1/run.json", "compile-cache", "compile-cache/", "compile-cache/../env",
     "env", "checkpoints/step-1/COMPLETE", "compile-cache/.hidden", "/etc/passwd", "", None],
)  # fmt: skip
def test_only_the_compile_cache_is_pushed_into(guest, path):
    assert push(guest, b"x", path)["code"] == "bad_request"
    assert not guest.state.exists() or not guest.dir().exists()


def test_a_push_through_a_link_is_refused(guest, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    guest.dir().mkdir(parents=True)
    (guest.dir() / "compile-cache").symlink_to(tmp_path / "elsewhere")
    assert push(guest, b"x")["code"] == "bad_request"
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize(
    "bad", [{"sha256": "00"}, {"sha256": None}, {"size": -1}, {"size": "1"}, {"size": 1 << 61}]
)
def test_a_push_with_a_wrong_word_is_refused(guest, bad):
    assert push(guest, b"x", **bad)["code"] == "bad_request"


def test_a_removed_run_keeps_its_compile_cache_unless_that_is_named(guest):
    guest.start("--steps", 2, "--step-s", 0.01)
    guest.exit()
    push(guest, b"c" * 5000)
    request: dict[str, Any] = {"run": "r", "what": "run", "keep": 0}
    whole, kept = guest.ask("sizes", **request)[-1]["items"]
    assert (kept["path"], kept["bytes"], kept["kept"]) == (str(guest.dir() / "compile-cache"), 5000, True)
    removed = guest.ask("remove", **request)[-1]
    assert removed["bytes"] == whole["bytes"]
    assert driver.names(guest.dir()) == ["compile-cache"]
    assert guest.start("--steps", 2, "--step-s", 0.01)["attempt"] == 1
    guest.exit()
    (only,) = guest.ask("sizes", **request, cache=True)[-1]["items"]
    assert only["bytes"] > 5000
    guest.ask("remove", **request, cache=True)
    assert not guest.dir().exists()


def test_a_run_of_which_only_the_cache_is_left_disturbs_no_watch(guest):
    push(guest, b"c" * 10)
    (guest.state / "runs" / "r" / "attempts").mkdir(exist_ok=True)
    assert guest.look()["end"]["attempt"] is None
    watch = guest.watch()
    assert watch.until("run")["attempt"] is None
    watch.close()
