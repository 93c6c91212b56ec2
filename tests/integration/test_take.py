"""export, cache, eval and diff through sshd, pct and LXC, with files of the test's own in the run."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.errors import Exit
from tests.cli import LONG_S
from tests.integration.clilab import RUNS, away, cli, launch_standin, options, told

if TYPE_CHECKING:
    from tests.cli import Cli

pytestmark = pytest.mark.integration
__all__ = ["away", "cli"]

HOSTILE = "A\x1b]52;c;ZXZpbA==\x07B\x1b[2JC\u202eD"

TRAINER = """\
import json, os, sys
words = sys.argv[1:]
assert words[:1] == ["eval"] and "--json" in words, words
run_dir = words[words.index("--run-dir") + 1]
if "--prompts" in words and words[words.index("--prompts") + 1] == "99":
    sys.stderr.write("trainer: ConfigInvalid: eval.prompts: 99 \\x1b[31mis too many\\n")
    sys.exit(78)
print("loading the target", flush=True)
print(json.dumps({"schema": 1, "acceptance_length": 1.25, "per_position": [0.75, 0.5], "step": 20,
                  "run_dir": run_dir, "words": words}))
"""


def ended(cli: Cli, run: str = "r1") -> Path:
    """A run that has ended; its folder."""
    launch_standin(cli, run, "--steps", "3", "--step-s", "0")
    assert cli.watch(run).end() == 0
    return cli.root / RUNS / run


def give_export(folder: Path, num_bytes: int) -> bytes:
    """Put a drafter into a run; its weights' file."""
    header = json.dumps(
        {"fc.weight": {"dtype": "U8", "shape": [num_bytes], "data_offsets": [0, num_bytes]}}
    ).encode()
    data = len(header).to_bytes(8, "little") + header + os.urandom(num_bytes)
    (folder / "export").mkdir(exist_ok=True)
    (folder / "export" / "model.safetensors").write_bytes(data)
    (folder / "export" / "config.json").write_text('{"block_size": 16}')
    return data


def give_artifact(folder: Path, data: bytes, device: str = "NVIDIA H200") -> str:
    """Put compile artifacts into a run as the trainer does; their fingerprint."""
    origin = {"torch": "2.11.0", "device": device, "shapes": {}}
    name = hashlib.sha256(json.dumps(origin, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    place = folder / "compile-cache" / "artifacts"
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{name}.bin").write_bytes(data)
    binary = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    fields = {"schema": 1, "fingerprint": name, "origin": origin, "bin": binary, "compile_s": 41.5}
    (place / f"{name}.json").write_text(json.dumps({**fields, "at": "2026-11-29T19:31:31.000000Z"}))
    return name


def wait_for_state(cli: Cli, run: str, state: str) -> None:
    """Look until the run is in that state; no watch, so that the record learns nothing."""
    deadline = time.monotonic() + LONG_S
    while cli.json("status", run, code=None)["state"] != state:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_drafter_is_exported_checked_and_never_over_another_one(cli, lab):
    folder = ended(cli)
    data = give_export(folder, 3 << 20)
    body = cli.json("export", "r1", "--to", "d/b32")
    place = cli.home / "d" / "b32"
    assert (place / "model.safetensors").read_bytes() == data
    assert sorted(path.name for path in place.iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in (cli.home / "d").iterdir()] == ["b32"]
    assert (body["block_size"], body["tensors"], body["path"]) == (16, 1, str(place))
    assert body["files"][1]["sha256"] == hashlib.sha256(data).hexdigest()
    assert '"num_speculative_tokens": 15' in body["serve"]["vllm"]
    told(cli.run("export", "r1", "--to", "d/b32", code=Exit.USAGE), "not empty", "--force")
    newer = give_export(folder, 1 << 20)
    (place / "mine.txt").touch()
    shown = cli.run("export", "r1", "--to", "d/b32", "--force").stdout
    assert "serve it with vLLM" in shown
    assert "--speculative-num-draft-tokens 16" in shown
    assert (place / "model.safetensors").read_bytes() == newer
    assert not (place / "mine.txt").exists()


@pytest.mark.slow
def test_an_interrupted_export_leaves_no_folder_and_goes_on_where_it_was_cut(cli, lab):
    data = give_export(ended(cli), 150 << 20)
    part = cli.home / ".r1-drafter.part" / "model.safetensors"
    with subprocess.Popen(
        cli.argv("export", "r1"), env=cli.env, cwd=cli.home, stderr=subprocess.PIPE, stdout=subprocess.PIPE
    ) as run:
        deadline = time.monotonic() + LONG_S
        while not (part.exists() and part.stat().st_size > 1 << 20):
            assert time.monotonic() < deadline
            assert run.poll() is None
            time.sleep(0.01)
        run.send_signal(signal.SIGINT)
        _, error = run.communicate(timeout=LONG_S)
    assert run.returncode == Exit.INTERRUPTED
    assert error.decode().startswith("dflashctl: interrupted")
    assert not (cli.home / "r1-drafter").exists()
    came = part.stat().st_size
    assert 0 < came < len(data)
    with part.open("r+b") as file:  # what is there is used: an altered byte of it is found, and pulled again
        file.seek(came - 1)
        file.write(bytes([data[came - 1] ^ 1]))
    cli.run("export", "r1")
    assert (cli.home / "r1-drafter" / "model.safetensors").read_bytes() == data
    assert not part.exists()


@pytest.mark.slow
def test_what_is_no_drafter_or_not_there_is_told_and_leaves_nothing(cli, lab):
    folder = ended(cli)
    (folder / "export" / "config.json").write_text("{}")
    told(cli.run("export", "r1", code=Exit.ERROR), "model.safetensors", "no safetensors file")
    assert not (cli.home / "r1-drafter").exists()
    for path in (folder / "export").iterdir():
        path.unlink()
    (folder / "export").rmdir()
    (cli.home / ".r1-drafter.part" / "model.safetensors").unlink()
    (cli.home / ".r1-drafter.part" / "config.json").unlink()
    told(cli.run("export", "r1", code=Exit.NOT_FOUND), "has exported no drafter", "at its end")
    assert list(cli.home.glob(".r1-drafter*")) == []
    (folder / "export").symlink_to("/etc")
    told(cli.run("export", "r1", code=Exit.NOT_READY), "there is a link in it")


def test_a_cache_is_listed_saved_verified_and_restored_into_a_run_to_come(cli, lab):
    folder = ended(cli)
    data = os.urandom(2 << 20)
    name = give_artifact(folder, data, device=HOSTILE)
    shown = cli.run("cache", "list").stdout
    assert name[:12] in shown
    assert "2.0 MiB" in shown
    assert "\x1b" not in shown
    (saved,) = cli.json("cache", "save", "r1")["saved"]
    path = Path(saved["path"])
    assert path.read_bytes() == data
    assert path.is_relative_to(cli.home / "state" / "dflashctl" / "compile-cache")
    places = cli.json("cache", "verify")["places"]
    assert [(each["where"], each["artifacts"][0]["fingerprint"]) for each in places] == [
        ("container", name),
        ("here", name),
    ]
    assert cli.json("cache", "list", "--offline")["places"][0]["target"] == f"127.0.0.1:{lab.port}/200"
    assert cli.json("cache", "restore", "r1")["restored"][0]["already"] is True
    told(cli.run("cache", "restore", "new", code=Exit.NOT_FOUND), "no run 'new'")
    words = ("cache", "restore", "new", name[:8], *options(lab), "--ct", "200")
    assert "restored" in cli.run(*words).stdout
    place = lab.rootfs / RUNS / "new" / "compile-cache" / "artifacts"
    assert sorted(each.name for each in place.iterdir()) == [f"{name}.bin", f"{name}.json"]
    assert (place / f"{name}.bin").read_bytes() == data
    assert "was there already" in cli.run(*words).stdout
    launch_standin(cli, "new", "--steps", "3")
    assert cli.watch("new").end() == 0
    told(cli.run("cache", "save", "new", "ffff", code=Exit.NOT_FOUND), "no artifact 'ffff'", name[:12])


@pytest.mark.slow
def test_damage_on_either_side_is_found_and_never_copied(cli, lab):
    folder = ended(cli)
    name = give_artifact(folder, b"code" * 1000)
    path = Path(cli.json("cache", "save", "r1")["saved"][0]["path"])
    far = folder / "compile-cache" / "artifacts" / f"{name}.bin"
    far.write_bytes(b"?" + far.read_bytes()[1:])
    places = cli.json("cache", "verify", "r1", code=Exit.ERROR)["places"]
    assert ["another sha256" in (each["artifacts"][0]["problem"] or "") for each in places] == [True, False]
    told(cli.run("cache", "save", "r1", code=Exit.ERROR), "another sha256")
    assert path.read_bytes() == b"code" * 1000
    path.write_bytes(b"short")
    assert "5 bytes, not 4000" in cli.run("cache", "verify", "r1", code=Exit.ERROR).stdout
    told(cli.run("cache", "restore", "r1", code=Exit.ERROR), "5 bytes, not 4000")


@pytest.mark.slow
def test_a_removed_run_leaves_its_cache_and_says_so(cli, lab):
    folder = ended(cli)
    give_artifact(folder, b"code" * 1000)
    shown = cli.run("rm", "r1", "--yes").stdout
    assert "compile-cache stays" in shown
    assert [path.name for path in folder.iterdir()] == ["compile-cache"]
    ended(cli)
    cli.run("rm", "r1", "--cache", "--yes")
    assert not folder.exists()


def test_an_evaluation_asks_the_runs_own_trainer_and_shows_its_figures(cli, lab):
    folder = ended(cli)
    place = lab.rootfs / "opt" / "fake" / "trainer"
    place.mkdir(parents=True, exist_ok=True)
    (place / "__init__.py").touch()
    (place / "__main__.py").write_text(TRAINER)
    told(cli.run("eval", "r1", code=Exit.USAGE), "only runs of the bundled trainer")
    spec = json.loads((folder / "attempts/1/run.json").read_text())
    spec.update(command=[], kind="trainer", cwd="/opt/fake", python="python3")
    (folder / "attempts/1/run.json").write_text(json.dumps(spec))
    body = cli.json("eval", "r1", "--prompts", "4", "--temperature", "0.7")
    assert (body["acceptance_length"], body["per_position"]) == (1.25, [0.75, 0.5])
    assert body["evaluation"]["run_dir"] == "/var/lib/dflashctl/runs/r1"
    assert body["evaluation"]["words"][-4:] == ["--prompts", "4", "--temperature", "0.7"]
    lines = cli.run("eval", "r1").stdout.splitlines()
    assert "acceptance length 1.250" in lines[0]
    assert [line.split()[:2] for line in lines[-2:]] == [["1", "75.0%"], ["2", "50.0%"]]
    line = told(cli.run("eval", "r1", "--prompts", "99", code=Exit.USAGE), "eval.prompts: 99", "too many")
    assert "\x1b" not in line


def test_a_run_that_trains_is_not_evaluated_beside_it_unasked(cli, lab):
    launch_standin(cli, "r1", "--steps", "20000")
    told(cli.run("eval", "r1", code=Exit.ALIVE), "is training", "--beside")


def environment(folder: Path, attempt: int, **fields: Any) -> None:
    path = folder / "attempts" / str(attempt) / "environment.json"
    base = {"schema": 1, "torch": "2.11.0", "config": {}, "env_names": ["PATH"], "driver": "580.1"}
    path.write_text(json.dumps({**base, **fields}))


@pytest.mark.slow
def test_diff_tells_what_changed_since_the_attempt_that_worked(cli, lab):
    launch_standin(cli, "r1", "--steps", "20", "--step-s", "0", "--crash-at", "7", "--crash-attempts", "1")
    wait_for_state(cli, "r1", "dead")
    cli.run("relaunch", "r1", "--yes")
    wait_for_state(cli, "r1", "finished")
    folder = cli.root / RUNS / "r1"
    environment(folder, 1)
    environment(folder, 2, torch="2.13.0", env_names=["PATH", "NCCL_DEBUG"], driver=HOSTILE)
    shown = cli.run("diff", code=1).stdout
    assert shown.splitlines()[:3] == [
        "r1/1 -> r1/2: 3 differences",
        "torch build:",
        "  torch: 2.11.0 -> 2.13.0",
    ]
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    body = cli.json("diff", "r1/2", "r1/1", code=1)
    assert [each["group"] for each in body["changes"]] == ["torch build", "driver", "environment names"]
    assert (body["old"], body["new"]) == ("r1/2", "r1/1")
    assert "no difference" in cli.run("diff", "r1/1", "r1/1").stdout
    (folder / "attempts/2/environment.json").unlink()
    assert "r1/2 left no environment.json" in cli.run("diff", "r1", code=None).stdout
    told(cli.run("diff", "r1/1", code=Exit.NOT_FOUND), "with another before it")
    told(cli.run("diff", "r1/1", "r1/9", code=Exit.NOT_FOUND), "attempts/9")
    told(cli.run("diff", "r1/x", code=Exit.USAGE), "'x' is no attempt's number")


@pytest.mark.slow
def test_diff_answers_from_the_record_when_the_container_cannot_be_reached(cli, clean_lab):
    launch_standin(cli, "r1", "--steps", "20", "--step-s", "0", "--crash-at", "7", "--crash-attempts", "1")
    assert cli.watch("r1").end() == 0
    clean_lab.stop_sshd()
    done = cli.run("diff", "r1")
    assert "r1/1 and r1/2: no difference" in done.stdout
    assert "this is what the record knows" in done.stderr
    assert "no difference" in cli.run("diff", "r1/1", "r1/2").stdout


@pytest.mark.parametrize("words", [("export",), ("eval",), ("diff",), ("cache", "save"), ("cache", "verify")])
def test_a_run_that_does_not_exist_is_told(away, words):
    told(away.run(*words, "nosuch\x1b[31m", code=Exit.NOT_FOUND), "no run ", "dflashctl ps")
