"""Remedies through real parts: sshd, pct exec, LXC, tmux, and the real trainer where it has to show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli import Cli, is_kind
from tests.integration.clilab import RUNS, cli, launch_standin
from tests.integration.local import wait_until
from tests.integration.test_take import give_artifact
from tests.lab.gpus import Gpu, GpuState

pytestmark = pytest.mark.integration
__all__ = ["cli"]

ONCE = ("--steps", "12", "--crash-at", "6", "--crash-attempts", "1", "--fx-text")
BACK = """extends: default
backoff: [0s]
jitter: 0
rules:
  python_exception:
    act: relaunch_with
    why: The test lets it go back, and then leave out the step that it dies at.
    ladder:
      - {why: Back to the checkpoint before., do: [previous_checkpoint]}
      - {why: Without the step that it dies at., do: [skip_batch]}
"""


def playbook(cli: Cli, text: str = "extends: default\nbackoff: [0s]\njitter: 0\n") -> str:
    path = cli.home / "playbook.yaml"
    path.write_text(text)
    return str(path)


def crashing(cli: Cli, run: str) -> Path:
    """A run that dies of a trace race in attempt 1 only; its folder."""
    where = cli.where
    cli.where = (*where, "--playbook", playbook(cli))
    launch_standin(cli, run, *ONCE)
    cli.where = where
    return cli.root / RUNS / run


@pytest.mark.parametrize("damage", ["cut", pytest.param("removed", marks=pytest.mark.slow)])
def test_a_damaged_or_lost_compile_cache_is_restored_before_a_trace_race_is_tried_again(cli, damage):
    folder = crashing(cli, "r1")
    data = bytes(range(256)) * 4096
    name = give_artifact(folder, data)
    cli.run("cache", "save", "r1")
    binary = folder / "compile-cache" / "artifacts" / f"{name}.bin"
    if damage == "cut":
        binary.write_bytes(data[:1000])
    else:
        binary.unlink()
        binary.with_suffix(".json").unlink()
    watch = cli.watch("r1")
    assert watch.end() == 0, watch.story()
    assert (
        "compile artifacts that are lost or damaged are put back"
        in watch.wait_for(is_kind("decision"))["text"]
    )
    outcome = watch.wait_for(is_kind("outcome"))["text"]
    assert f"restored {name[:12]}" in outcome, watch.story()
    assert binary.read_bytes() == data
    assert json.loads(binary.with_suffix(".json").read_text())["fingerprint"] == name


@pytest.mark.slow
def test_a_compile_cache_that_is_whole_is_left_alone(cli):
    folder = crashing(cli, "r1")
    name = give_artifact(folder, b"x" * 1000)
    binary = folder / "compile-cache" / "artifacts" / f"{name}.bin"
    before = binary.stat()
    watch = cli.watch("r1")
    assert watch.end() == 0, watch.story()
    assert watch.wait_for(is_kind("outcome"))["text"].endswith("compile cache: 1 whole")
    after = binary.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.slow
def test_a_poisoned_step_is_gone_back_from_and_then_left_out(cli, lab):
    """The real trainer dies at step 13 in every attempt; the third leaves that step out, and finishes."""
    cli.launch("--run", "poison", "--python", str(lab.torch_python), "--config", "fast",
               "--inject", "python@13!", "--playbook", playbook(cli, BACK), timeout=300)  # fmt: skip
    watch = cli.watch("poison")
    assert watch.end() == 0, watch.story()
    told = [e["text"] for e in watch.events() if e["kind"] == "log"]
    began = [text for text in told if "resumed from step" in text]
    assert ["resumed from step 5" in began[0], "resumed from step 10" in began[1]] == [True, True], began
    outcomes = [e["text"] for e in watch.events() if e["kind"] == "outcome"]
    assert "rejected-step-10 was set aside" in outcomes[0]
    assert "step 13 is left out" in outcomes[1]
    folder = cli.root / RUNS / "poison"
    assert (folder / "checkpoints" / "rejected-step-10" / "COMPLETE").exists()
    metrics = (folder / "attempts" / "3" / "metrics.jsonl").read_text()
    assert {json.loads(line)["step"] for line in metrics.splitlines()} >= {14, 24}
    assert cli.json("status", "poison")["by"] == "watch"


def test_whoever_holds_a_gpu_is_named_by_container_pid_command_and_owner_and_left_alone(cli, clean_lab):
    """Another program in the container, and one that the driver does not name but has the device open."""
    lab = clean_lab
    crashing(cli, "r1")
    script = "touch /dev/nvidia0; exec 9</dev/nvidia0; exec sleep 3607"
    lab.exec(["sh", "-c", f"setsid sh -c '{script}' >/dev/null 2>&1 </dev/null &"])
    holder = ["sh", "-c", 'pgrep -x -f "sleep 3607" | tail -n 1']
    wait_until(lambda: lab.exec(holder).stdout.strip(), what="the program that holds the GPU")
    inner = int(lab.exec(holder).stdout.split()[0])
    outer = host_pid(inner)
    lab.set_gpus(GpuState().with_gpu(Gpu(0, used_mib=90_000, processes={outer: 90_000})))
    watch = cli.watch("r1")
    held = watch.wait_for(lambda e: e["kind"] == "gate" and "held by" in e["text"])["text"]
    assert f"held by sleep 3607 (host pid {outer}, pid {inner} in container 200, user root)" in held
    assert f"`pct exec 200 -- kill {inner}` on the host would end it" in held
    watch.kill()
    lab.set_gpus(GpuState(hide_processes=True).with_gpu(Gpu(0, used_mib=90_000)))
    watch = cli.watch("r1")
    held = watch.wait_for(lambda e: e["kind"] == "gate" and "held by" in e["text"])["text"]
    assert f"pid {inner} in container 200" in held, "found by the device that it has open"
    assert lab.exec(["kill", "-0", str(inner)]).returncode == 0, "nobody else's process is ended"
    lab.exec(["kill", str(inner)])
    lab.set_gpus(GpuState())
    assert watch.end() == 0, watch.story()


def host_pid(inner: int) -> int:
    """The id outside of a process in the lab's container."""
    for place in Path("/proc").glob("[0-9]*/status"):
        try:
            text = place.read_text()
        except OSError:
            continue
        numbers = next((line.split()[1:] for line in text.splitlines() if line.startswith("NSpid:")), [])
        if len(numbers) > 1 and int(numbers[-1]) == inner and "sleep" in text.splitlines()[0]:
            return int(numbers[0])
    raise AssertionError(inner)
