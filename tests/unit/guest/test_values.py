"""The guest's pure parts: names, values on the wire, what is news of a GPU."""

import json
import subprocess
from typing import Any

import pytest

from orchestrator import wire
from orchestrator.errors import ConfigError
from orchestrator.guest import asked, files, gpu, paths
from orchestrator.guest.refusal import Refusal
from orchestrator.launch import RunSpec, spec_document, spec_from_document


@pytest.mark.parametrize("name", ["dflash", "a", "A1._-", "x" * 64, "2026-11-29"])
def test_a_plain_name_is_a_run_name(name):
    assert paths.checked_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../a", "a..b", ".a", "-a", "a b", "a\n", "x" * 65, "é", 3]
)
def test_anything_else_is_no_run_name(name):
    with pytest.raises(Refusal, match="no run name") as refused:
        paths.checked_name(name)
    assert refused.value.code == "bad_request"


def test_a_state_directory_is_expanded(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.resolve_state("~/x") == tmp_path / "x"
    assert paths.resolve_state("$HOME/../y") == tmp_path.parent / "y"


@pytest.mark.parametrize(
    "text", [None, "", "x", "a\0", "/$NO_SUCH_VARIABLE/x", "~nobody-of-this-name/x", "/\ud800"]
)
def test_a_state_directory_that_is_no_absolute_path_is_refused(text):
    with pytest.raises(Refusal):
        paths.resolve_state(text)


def test_what_is_not_json_becomes_null():
    assert files.parse_object(b'{"a": NaN, "b": -Infinity, "c": 1e999, "d": 1.5}') == {
        "a": None,
        "b": None,
        "c": None,
        "d": 1.5,
    }
    assert files.parse_object(b"[1]") is None
    assert files.parse_object(b'{"a":') is None
    assert files.parse_object(b"[" * 100_000) is None
    assert files.parse_object(b"\xff\xfe") is None


@pytest.mark.parametrize(
    "value",
    [
        {"traceback": "é" * 2_000_000},
        {"a": {"b": ["x" * 100_000] * 3}},
        {f"key{i}": "y" * 100 for i in range(20_000)},
        {"x" * 2_000_000: 1},
    ],
)
def test_a_value_of_any_size_fits_a_line(value):
    assert len(wire.Encoder().encode("error", {"value": files.fit(value)})) < wire.MAX_LINE_BYTES


def test_a_small_value_is_not_touched():
    value = {"traceback": "x" * 100_000, "n": [1, {"a": None}]}
    assert files.fit(value) is value


def test_a_cut_text_keeps_its_head_and_tail():
    cut = files.fit({"traceback": "HEAD" + "x" * 1_000_000 + "TAIL"})["traceback"]
    assert cut.startswith("HEAD")
    assert cut.endswith("TAIL")


@pytest.mark.parametrize("value", [True, -1, 1.5, "1", 1 << 70])
def test_an_offset_is_a_whole_number(value):
    with pytest.raises(Refusal):
        asked.integer({"offset": value}, "offset", 0)


def test_a_null_takes_the_default():
    assert asked.integer({"offset": None}, "offset", 7) == 7
    assert asked.seconds({}, "grace_s", 2.5, low=0, high=9) == 2.5


def test_a_time_out_of_range_is_refused():
    for value in (True, -0.1, 9.1, "3", float("nan")):
        with pytest.raises(Refusal):
            asked.seconds({"grace_s": value}, "grace_s", 1, low=0, high=9)


def reading(**changes: Any) -> gpu.Reading:
    one = {"index": 0, "uuid": "u", "memory_used_bytes": 1 << 30, "utilization_pct": 50.0, "power_w": 300.0}
    return {
        "gpus": [{**one, "processes": [{"pid": 1, "memory_bytes": 5}], **changes}],
        "source": "nvml",
        "problem": None,
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"memory_used_bytes": 2 << 30}, {"utilization_pct": None}, {"problem": "lost"}, {"power_w": 100.0},
        {"processes": []}, {"uuid": "v"}, {"ecc_uncorrected": 1}, {"recovery": "reset the GPU"},
    ],
)  # fmt: skip
def test_a_change_of_a_gpu_is_news(changes):
    assert gpu.differs(reading(problem=None), reading(**{"problem": None, **changes}))


def test_jitter_of_a_gpu_is_no_news():
    jitter = reading(memory_used_bytes=(1 << 30) + 4096, utilization_pct=55.0, power_w=290.0)
    jitter["gpus"][0]["processes"] = [{"pid": 1, "memory_bytes": 6}]
    assert not gpu.differs(reading(), jitter)
    assert not gpu.differs(reading(), json.loads(json.dumps(reading())))


def test_a_gpu_that_is_gone_is_news():
    assert gpu.differs(reading(), {**reading(), "gpus": []})
    assert gpu.differs(reading(), gpu.nothing("the driver is gone"))


def test_what_is_run_again_is_whole_or_cannot_be_run_again():
    config = "".join(f"key_{number} = {number}\n" for number in range(60_000))
    spec = RunSpec(run="r", config=None, config_toml=config, gpus=(0, 1))
    document = spec_document(spec, state_dir="/s", attempt=1, created_at="t")
    told = files.whole(document)
    assert (told["attempt"], told["kind"], told["gpus"]) == (1, "trainer", [0, 1])
    with pytest.raises(ConfigError, match="config_toml"):
        spec_from_document(told)
    small = {**document, "config_toml": config[:1000]}
    assert files.whole(small) is small


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"a", b"a\n", b"a\n\nb", b"one\ntwo\n" * 20, b"x" * 50 + b"\ny"]
)
@pytest.mark.parametrize("count", [1, 2, 3, 39, 40, 100])
def test_the_last_lines_begin_where_the_tool_tail_has_them(tmp_path, monkeypatch, text, count):
    monkeypatch.setattr(files, "BLOCK_BYTES", 7)
    path = tmp_path / "log"
    path.write_bytes(text)
    wanted = subprocess.run(["tail", "-n", str(count), path], capture_output=True, check=True).stdout
    assert text[files.last_lines(path, count) :] == wanted
