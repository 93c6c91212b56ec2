import errno
import fcntl
import json
import multiprocessing
import random
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
import torch

from tests.torch import tiny
from trainer.checkpoint import MARKER, Checkpoints, complete_steps, layout
from trainer.errors import CheckpointCorrupt, ConfigInvalid, NonFinite

pytestmark = pytest.mark.torch


def trained(steps):
    model, optimizer = tiny.make()
    tiny.train(model, optimizer, 0, steps)
    return model, optimizer


def save(directory, step, keep=3, **state):
    model, optimizer = trained(step)
    checkpoints = Checkpoints(directory, keep)
    checkpoints.save(step, model, optimizer, {"loss": 1.5, **state}, wait=True)
    return model, optimizer


def resumed_step(directory):
    state = Checkpoints(directory, 3).resume(*tiny.make())
    return None if state is None else state["step"]


def assert_equal(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


def test_a_resumed_run_has_the_same_bits_as_one_that_was_not_stopped(tmp_path):
    straight = trained(10)
    save(tmp_path, 5, data="abc")
    torch.manual_seed(99)
    model, optimizer = tiny.make()
    tiny.train(model, optimizer, 7, 9)  # whatever it was before, the checkpoint's state replaces it
    state = Checkpoints(tmp_path, 3).resume(model, optimizer)
    assert state is not None
    assert (state["step"], state["loss"], state["data"]) == (5, 1.5, "abc")
    tiny.train(model, optimizer, 5, 10)
    assert_equal(tiny.bits(model, optimizer), tiny.bits(*straight))


def test_training_on_while_a_save_is_in_flight_does_not_change_what_is_saved(tmp_path):
    model, optimizer = trained(3)
    then = tiny.bits(model, optimizer)
    checkpoints = Checkpoints(tmp_path, 3)
    checkpoints.save(3, model, optimizer, {}, wait=False)
    tiny.train(model, optimizer, 3, 6)
    checkpoints.finish()
    fresh = tiny.make()
    Checkpoints(tmp_path, 3).resume(*fresh)
    assert_equal(tiny.bits(*fresh), then)


def test_a_checkpoint_before_the_first_step_resumes_to_the_first_step(tmp_path):
    straight = trained(3)
    save(tmp_path, 0)
    model, optimizer = tiny.make()
    Checkpoints(tmp_path, 3).resume(model, optimizer)
    tiny.train(model, optimizer, 0, 3)
    assert_equal(tiny.bits(model, optimizer), tiny.bits(*straight))


def test_hyper_parameters_are_the_configurations_and_not_the_checkpoints(tmp_path):
    save(tmp_path, 2)
    model, optimizer = tiny.make()
    optimizer.param_groups[0]["weight_decay"] = 0.125
    Checkpoints(tmp_path, 3).resume(model, optimizer)
    assert optimizer.param_groups[0]["weight_decay"] == 0.125
    assert optimizer.param_groups[0]["lr"] == tiny.CONFIG.lr


def test_weights_alone_are_read_without_a_change_on_disk(tmp_path):
    saved, _ = save(tmp_path, 2)
    (tmp_path / ".step-9.tmp").mkdir()
    model, _ = tiny.make()
    state = Checkpoints(tmp_path, 3).resume(model, None)
    assert state is not None
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), saved.parameters(), strict=True))
    assert (tmp_path / ".step-9.tmp").exists()


def test_a_run_without_checkpoints_begins_at_the_beginning(tmp_path):
    assert resumed_step(tmp_path) is None
    assert resumed_step(tmp_path / "absent") is None


def test_only_the_newest_are_kept_by_number_and_not_by_name(tmp_path):
    model, optimizer = trained(0)
    checkpoints = Checkpoints(tmp_path, 2)
    for step in (1, 2, 9, 10):
        checkpoints.save(step, model, optimizer, {}, wait=False)
    assert checkpoints.finish() == checkpoints.newest() == 10
    assert complete_steps(tmp_path) == [9, 10]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-10", "step-9"]


def test_one_that_is_being_read_is_not_removed_until_it_is_read(tmp_path):
    save(tmp_path, 1)
    with layout.reading(tmp_path / "step-1"):
        save(tmp_path, 2, keep=1)
        assert complete_steps(tmp_path) == [1, 2]
    save(tmp_path, 3, keep=1)
    assert complete_steps(tmp_path) == [3]


def test_a_checkpoint_without_its_marker_does_not_exist(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 2)
    (tmp_path / "step-2" / MARKER).unlink()
    assert complete_steps(tmp_path) == [1]
    assert resumed_step(tmp_path) == 1
    assert not (tmp_path / "step-2").exists()


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(path):
    path.write_bytes(b"")


FILES = ["__0_0.distcp", ".metadata", "state.json"]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("harm", [flip_a_byte, empty, Path.unlink])
def test_a_corrupt_newest_gives_way_to_the_one_before_with_a_warning(tmp_path, capsys, file, harm):
    save(tmp_path, 1)
    save(tmp_path, 2)
    harm(tmp_path / "step-2" / file)
    assert resumed_step(tmp_path) == 1
    assert "checkpoint step-2:" in capsys.readouterr().err


@pytest.mark.parametrize("marker", [b"", b"[]", b"{}", b'{"sha256": [1]}', b"\xff"])
def test_a_marker_that_is_none_gives_way_to_the_one_before(tmp_path, marker):
    save(tmp_path, 1)
    save(tmp_path, 2)
    (tmp_path / "step-2" / MARKER).write_bytes(marker)
    assert resumed_step(tmp_path) == 1


def test_one_that_was_passed_over_is_set_aside_and_not_kept_in_place_of_a_good_one(tmp_path):
    save(tmp_path, 1)
    save(tmp_path, 9)
    flip_a_byte(tmp_path / "step-9" / FILES[0])
    checkpoints = Checkpoints(tmp_path, 1)
    model, optimizer = tiny.make()
    checkpoints.resume(model, optimizer)
    assert checkpoints.newest() == 1
    assert complete_steps(tmp_path) == [1]
    checkpoints.save(2, model, optimizer, {}, wait=True)
    assert complete_steps(tmp_path) == [2]
    assert (tmp_path / "step-9.corrupt" / MARKER).exists()


def test_when_none_can_be_read_the_run_ends_rather_than_begins_anew(tmp_path):
    save(tmp_path, 1)
    flip_a_byte(tmp_path / "step-1" / "state.json")
    for _ in range(2):
        with pytest.raises(CheckpointCorrupt, match="none of the 1 complete checkpoints"):
            resumed_step(tmp_path)


def test_one_of_the_older_format_is_named_as_such(tmp_path):
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / MARKER).write_text(
        json.dumps({"sha256": {"model.safetensors": "", "state.pt": ""}})
    )
    with pytest.raises(CheckpointCorrupt, match="older trainer"):
        resumed_step(tmp_path)


def test_a_corrupt_one_is_replaced_when_its_step_is_reached_again(tmp_path):
    save(tmp_path, 1)
    flip_a_byte(tmp_path / "step-1" / "state.json")
    save(tmp_path, 1)
    assert resumed_step(tmp_path) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_a_replacement_that_fails_at_its_last_rename_loses_nothing(tmp_path, monkeypatch):
    save(tmp_path, 1, version="old")
    rename = Path.rename

    def fail(path, to):
        if path.name == ".step-1.tmp":
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="step-1: Input/output error"):
        save(tmp_path, 1, version="new")
    monkeypatch.undo()
    state = Checkpoints(tmp_path, 3).resume(*tiny.make())
    assert state is not None
    assert state["version"] == "old"


def test_a_death_between_the_two_renames_of_a_replacement_loses_nothing(tmp_path):
    save(tmp_path, 1)
    (tmp_path / "step-1").rename(tmp_path / ".step-1.old")
    assert resumed_step(tmp_path) == 1


def test_a_save_that_fails_leaves_the_older_ones_as_they_are(tmp_path):
    save(tmp_path, 1)
    (tmp_path / ".step-2.tmp").write_text("in the way")
    with pytest.raises(OSError, match="exists"):
        save(tmp_path, 2)
    assert complete_steps(tmp_path) == [1]


def test_leftovers_of_killed_saves_are_removed_at_the_start_or_overwritten(tmp_path):
    save(tmp_path, 1)
    shutil.copytree(tmp_path / "step-1", tmp_path / ".step-2.tmp")
    save(tmp_path, 2)
    assert complete_steps(tmp_path) == [1, 2]
    shutil.copytree(tmp_path / "step-1", tmp_path / ".step-7.tmp")
    assert resumed_step(tmp_path) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1", "step-2"]


def test_a_checkpoint_of_another_drafter_is_refused_with_the_difference(tmp_path):
    save(tmp_path, 1)
    wider = tiny.make(shape=tiny.TinyShape(width=8))
    with pytest.raises(ConfigInvalid, match="width: it has 6, the configuration wants 8"):
        Checkpoints(tmp_path, 1).resume(*wider)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_never_saved(tmp_path, value):
    model, optimizer = trained(1)
    with torch.no_grad():
        next(model.parameters())[0, 0] = value
    with pytest.raises(NonFinite, match="nothing was saved"):
        Checkpoints(tmp_path, 1).save(1, model, optimizer, {}, wait=True)
    assert not list(tmp_path.iterdir())


def test_very_large_finite_weights_are_saved(tmp_path):
    model, optimizer = trained(1)
    with torch.no_grad():
        next(model.parameters())[0, :] = 3e38
    Checkpoints(tmp_path, 1).save(1, model, optimizer, {}, wait=True)
    assert complete_steps(tmp_path) == [1]


def test_too_little_room_is_told_before_a_byte_is_written(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    checkpoints = Checkpoints(tmp_path, 1)
    model, optimizer = trained(1)
    checkpoints.save(1, model, optimizer, {}, wait=False)
    words = r"step-1: No space left on device; it needs [\d,]+ bytes, 100 are free"
    with pytest.raises(OSError, match=words) as error:
        list(iter(checkpoints.check, 1))  # asked again and again, as after each step
    assert error.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_while_it_is_written_is_told_with_path_and_bytes(tmp_path):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", tmp_path], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no right to mount a small file system")
    try:
        free = shutil.disk_usage(tmp_path).free
        big = tiny.make(shape=tiny.TinyShape(num_layers=1))
        checkpoints = Checkpoints(tmp_path, 1)
        (tmp_path / "other").write_bytes(b"x" * (free - 8192))
        with pytest.raises(OSError, match=r"step-1: No space left.*it needs [\d,]+ bytes") as error:
            checkpoints.save(1, *big, {}, wait=True)
        assert error.value.errno == errno.ENOSPC
        assert [path.name for path in tmp_path.iterdir()] == ["other"]
    finally:
        subprocess.run(["umount", tmp_path], check=True)


processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.torch.tiny", "torch._dynamo"])  # a step imports the latter


@pytest.mark.parametrize("file_bytes", [64, 1024, 4096])
def test_a_file_that_cannot_be_written_in_full_is_an_error_of_the_system(tmp_path, file_bytes):
    here, there = processes.Pipe()
    child = processes.Process(target=tiny.save_within, args=(tmp_path, file_bytes, there))
    child.start()
    assert here.poll(60)
    number, message = here.recv()
    child.join()
    assert number == errno.EFBIG
    assert message.startswith(f"[Errno {errno.EFBIG}] checkpoint {tmp_path}/step-2: File too large")
    assert complete_steps(tmp_path) == []


def test_a_failure_in_the_background_is_raised_by_the_next_save_at_the_latest(tmp_path):
    model, optimizer = trained(1)
    checkpoints = Checkpoints(tmp_path, 1)
    (tmp_path / ".step-1.tmp").write_text("in the way")
    checkpoints.save(1, model, optimizer, {}, wait=False)
    with pytest.raises(OSError, match="step-1: File exists"):
        checkpoints.save(2, model, optimizer, {}, wait=False)
    checkpoints.save(3, model, optimizer, {}, wait=True)
    assert complete_steps(tmp_path) == [3]


def test_check_tells_a_finished_save_once_and_does_not_wait_for_one_in_flight(tmp_path, monkeypatch):
    go = threading.Event()
    begin = layout.begin
    monkeypatch.setattr(layout, "begin", lambda *given: go.wait(30) and begin(*given))
    model, optimizer = trained(1)
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.save(1, model, optimizer, {}, wait=False)
    assert checkpoints.check() is None
    assert checkpoints.newest() is None
    go.set()
    told = [step for step in iter(lambda: checkpoints.check() or checkpoints.newest(), 1) if step]
    assert told == []
    assert checkpoints.newest() == 1
    assert checkpoints.check() is None


def test_a_save_killed_at_any_moment_leaves_a_whole_checkpoint_or_none(tmp_path):
    draw = random.Random(20261129)
    seen = set()
    for _ in range(24):
        before = max(complete_steps(tmp_path), default=0)
        child = processes.Process(target=tiny.save_in_a_loop, args=(tmp_path,))
        child.start()
        deadline = time.monotonic() + 60
        while max(complete_steps(tmp_path), default=0) <= before and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(draw.random() * 0.05)
        child.kill()
        child.join()
        steps = complete_steps(tmp_path)
        assert steps
        assert steps[-1] > before
        for step in steps:
            with layout.reading(tmp_path / f"step-{step}") as digests:
                layout.verify(tmp_path / f"step-{step}", digests, lambda: None)
        model, _ = tiny.make()
        state = Checkpoints(tmp_path, 2).resume(model, None)
        assert state is not None
        assert state["sum"] == tiny.checksum(model)
        seen |= {path.suffix for path in tmp_path.iterdir()}
    assert ".tmp" in seen, "no kill hit a save: the test has shown nothing"


def run_ranks(tmp_path, act, arguments):
    ranks = [processes.Process(target=act, args=given) for given in arguments]
    (tmp_path / "meet").unlink(missing_ok=True)
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(100)
    assert [rank.exitcode for rank in ranks] == [0] * len(ranks)


def run_wrapped(tmp_path, how, size=2, before=None):
    run_ranks(tmp_path, tiny.save_as, [(rank, size, tmp_path, how, before) for rank in range(size)])


@pytest.mark.parametrize(("first", "second"), [("ddp", "fsdp"), ("fsdp", "ddp")])
def test_replicas_shards_and_one_process_resume_from_one_another(tmp_path, first, second):
    run_wrapped(tmp_path, first)
    saved = torch.load(tmp_path / f"{first}.pt")
    alone = tiny.make()
    Checkpoints(tmp_path / first, 2).resume(*alone)
    assert_equal(tiny.bits(*alone), saved)
    run_wrapped(tmp_path, second, before=first)
    assert_equal(torch.load(tmp_path / f"{second}-resumed.pt"), saved)
    alone = tiny.make()
    Checkpoints(tmp_path / second, 2).resume(*alone)
    assert_equal(tiny.bits(*alone), torch.load(tmp_path / f"{second}.pt"))


def test_two_ranks_resume_what_one_process_saved(tmp_path):
    model, optimizer = trained(3)
    Checkpoints(tmp_path / "plain", 2).save(3, model, optimizer, {}, wait=True)
    run_wrapped(tmp_path, "fsdp", before="plain")
    assert_equal(torch.load(tmp_path / "fsdp-resumed.pt"), tiny.bits(model, optimizer))
    files = sorted(path.name for path in (tmp_path / "fsdp" / "step-5").glob("*.distcp"))
    assert files == ["__0_0.distcp", "__1_0.distcp"]


def test_more_and_fewer_ranks_resume_what_two_saved(tmp_path):
    run_wrapped(tmp_path, "fsdp", size=2)
    saved = torch.load(tmp_path / "fsdp.pt")
    (tmp_path / "fsdp").rename(tmp_path / "two")
    for size in (3, 1):
        run_wrapped(tmp_path, "fsdp", size=size, before="two")
        assert_equal(torch.load(tmp_path / "fsdp-resumed.pt"), saved)


def test_drafters_beside_a_target_agree_on_what_is_resumed_and_on_what_went_wrong(tmp_path):
    run_ranks(tmp_path, tiny.save_beside_a_target, [(rank, tmp_path) for rank in range(3)])
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (1, 2)]
    for each in told:  # each looks at the disk for itself, which others fill meanwhile
        each["words"] = re.sub(r"[\d,]+ are free", "so much is free", each["words"])
    assert told[0] == told[1]
    assert (told[0]["resumed"], told[0]["begun"], told[0]["newest"]) == (1, True, 4)
    assert told[0]["errno"] == errno.EFBIG
    assert "step-3: File too large (drafter rank 1)" in told[0]["words"]
    assert complete_steps(tmp_path / "checkpoints") == [1, 4]


def test_the_marker_is_locked_shared_while_it_is_read(tmp_path):
    save(tmp_path, 1)
    with layout.reading(tmp_path / "step-1"), (tmp_path / "step-1" / MARKER).open() as other:
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
