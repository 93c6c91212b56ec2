import errno
import multiprocessing
import resource
import shutil
from typing import Any

import pytest
import torch

from trainer.data.buckets import Bucket
from trainer.data.hidden import HiddenCache, cache_key, expected_bytes
from trainer.errors import ConfigInvalid, DataInvalid
from trainer.target.api import Observation

pytestmark = pytest.mark.torch
SHAPE = Bucket(context_tokens=40, rows=2, anchors=5)
TOLD: dict[str, Any] = {
    "target": "t",
    "data": "d",
    "tap_layers": (1, 3),
    "dtype": torch.bfloat16,
    "last": True,
    "count": 8,
}
KEY = cache_key(**TOLD)


def observation(index, dtype=torch.bfloat16, *, last=True):
    noise = torch.Generator().manual_seed(index)
    taps = torch.randn(2, 40, 64, generator=noise).to(dtype)
    return Observation(taps, torch.randn(2, 40, 32, generator=noise).to(dtype) if last else None)


def same(one, other):
    assert one.taps.dtype == other.taps.dtype
    assert torch.equal(one.taps, other.taps)
    assert (one.last is None) == (other.last is None)
    assert one.last is None or torch.equal(one.last, other.last)


def write_some(directory, indices):
    cache = HiddenCache(directory, KEY)
    for index in indices:
        cache.write(index, observation(index))


@pytest.fixture
def cache(tmp_path):
    return HiddenCache(tmp_path, KEY)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("last", [True, False])
def test_what_is_read_is_what_was_written_to_the_bit(cache, dtype, last):
    cache.write(5, observation(5, dtype, last=last))
    same(cache.read(5), observation(5, dtype, last=last))


def test_a_view_is_kept_as_what_it_shows(cache):
    whole = torch.arange(2 * 40 * 64, dtype=torch.float32).view(40, 2, 64)
    cache.write(0, Observation(whole.transpose(0, 1), None))
    assert torch.equal(cache.read(0).taps, whole.transpose(0, 1))


def test_the_size_is_told_before_anything_is_written_and_holds(cache):
    needed = expected_bytes([SHAPE] * 8, taps_dim=64, last_dim=32, dtype=torch.bfloat16)
    line = cache.require_space(needed)
    assert line.startswith("hidden states take 0.00 GiB under ")
    assert not list(cache.directory.parent.rglob("*.safetensors"))
    write_some(cache.directory.parent, range(8))
    assert 0.9 * needed < cache.num_bytes() <= needed


def test_a_disk_that_is_too_small_is_refused_with_numbers(cache):
    with pytest.raises(
        ConfigInvalid, match=r"parallel\.cache_dir: .* take 1073741824\.00 GiB, .* to spare; name a"
    ):
        cache.require_space(1 << 60)


def test_a_folder_that_cannot_be_made_is_told_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigInvalid, match=r"parallel\.cache_dir: .*file.*: Not a directory; name a folder"):
        HiddenCache(tmp_path / "file", "0" * 64).require_space(1)


def test_what_is_there_already_needs_no_room(cache, monkeypatch):
    needed = expected_bytes([SHAPE] * 8, taps_dim=64, last_dim=32, dtype=torch.bfloat16)
    write_some(cache.directory.parent, range(7))
    usage = shutil.disk_usage(cache.directory)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(total=needed, free=needed // 4))
    assert "of which" in cache.require_space(needed)
    cache.path(0).unlink()
    cache.path(1).unlink()
    with pytest.raises(ConfigInvalid, match="to spare"):
        cache.require_space(needed)


def test_several_processes_write_at_once_and_none_waits(cache):
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=write_some, args=(cache.directory.parent, range(rank, 8, 2)))
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert cache.missing(8) == []
    for index in range(8):
        same(cache.read(index), observation(index))
    assert not list(cache.directory.rglob("*.tmp"))


@pytest.mark.parametrize("place", [10, 200, -1])
def test_a_changed_byte_is_told_with_the_file_and_the_cure(cache, place):
    cache.write(3, observation(3))
    path = cache.path(3)
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataInvalid, match=rf"{path.name}: .*delete it and run again"):
        cache.read(3)


@pytest.mark.parametrize("size", [0, 4, 100, -2])
def test_a_shortened_file_is_told(cache, size):
    cache.write(3, observation(3))
    path = cache.path(3)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataInvalid, match="cannot be read"):
        cache.read(3)


def test_a_file_in_the_place_of_another_is_told(cache):
    write_some(cache.directory.parent, (3, 4))
    shutil.copy(cache.path(4), cache.path(3))
    with pytest.raises(DataInvalid, match="written as"):
        cache.read(3)


def test_it_is_complete_when_all_are_there_and_no_longer_when_one_is_deleted(cache):
    write_some(cache.directory.parent, range(7))
    with pytest.raises(DataInvalid, match="1 of 8 micro-batches are missing, the first 7"):
        cache.finish(8)
    assert not cache.complete(8)
    write_some(cache.directory.parent, [7])
    cache.finish(8)
    assert HiddenCache(cache.directory.parent, KEY).complete(8)
    assert not cache.complete(9)
    cache.path(2).unlink()
    assert not cache.complete(8)
    assert cache.missing(8) == [2]


def test_another_target_or_data_has_a_folder_of_its_own(tmp_path):
    changes: list[dict[str, Any]] = [
        {"target": "u"},
        {"data": "e"},
        {"tap_layers": (1, 4)},
        {"dtype": torch.float32},
        {"last": False},
    ]
    keys = {cache_key(**TOLD | change) for change in changes}
    assert len(keys | {KEY}) == 6
    for key in keys:
        assert HiddenCache(tmp_path, key).directory != HiddenCache(tmp_path, KEY).directory


def test_what_a_killed_rank_left_half_written_is_removed_before_writing(cache):
    cache.write(0, observation(0))
    left = cache.path(1).with_name(".000000001.safetensors.77.tmp")
    left.write_bytes(b"x" * 100)
    cache.require_space(1)
    assert not left.exists()
    same(cache.read(0), observation(0))


def test_what_the_disk_refuses_is_an_error_of_the_system_and_leaves_nothing(cache):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OSError, match="000000000") as caught:
            cache.write(0, observation(0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG
    assert [path for path in cache.directory.rglob("*") if path.is_file()] == []
