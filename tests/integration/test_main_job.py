"""The main job through real parts: sshd, pct exec, LXC, tmux, and a stand-in or a really training trainer."""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli import ROOT, Cli, is_kind
from tests.integration.guest_driver import wait_until
from tests.lab.gpus import Gpu, GpuState

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

STANDIN = "/opt/standin.py"
FAST_PLAYBOOK = "extends: default\nbackoff: [0s, 1s]\n"


@pytest.fixture
def cli(lab, tmp_path) -> Cli:
    where = ("--host", lab.host, "--port", str(lab.port), "--identity", str(lab.identity))
    made = Cli(tmp_path, (*where, "--known-hosts", str(lab.known_hosts), "--ct", "200"))
    made.root = lab.rootfs
    (lab.rootfs / "opt" / "cue").unlink(missing_ok=True)  # for a stand-in's --cue
    (tmp_path / "playbook.yaml").write_text(FAST_PLAYBOOK)
    return made


@pytest.fixture
def run(request, cli, lab) -> Iterator[str]:
    """A name of the test's own, and nothing left alive under it afterwards."""
    # Cases of one test differ at their name's end only.
    words = re.sub(r"[^A-Za-z0-9-]", "-", request.node.name).strip("-")
    name = f"{words[:40]}-{hashlib.sha256(request.node.name.encode()).hexdigest()[:6]}"
    yield name
    cli.end_watches()
    cli.run("stop", name, "--grace", "1s", code=None)


def launch_standin(cli: Cli, run: str, *words: str) -> None:
    shutil.copy(ROOT / "tests" / "standin.py", cli.root / STANDIN.lstrip("/"))
    cli.launch("--run", run, "--playbook", str(cli.home / "playbook.yaml"), "--", "python3", STANDIN, *words)


def living_trainers(lab, run: str) -> list[str]:
    listed = lab.exec(
        ["sh", "-c", "ps -eo args | grep -F standin | grep -v -e grep -e supervise || true"]
    ).stdout
    return [line for line in listed.splitlines() if line]


def test_a_drafter_trains_crashes_is_relaunched_and_finishes(cli, lab, run):
    """The whole story with the real trainer: launched, crashed by FX trace, diagnosed, resumed, exported."""
    python = str(lab.torch_python)
    cli.launch("--run", run, "--python", python, "--config", "fast", "--inject", "fx-trace@12",
               "--playbook", str(cli.home / "playbook.yaml"), timeout=300)  # fmt: skip
    watch = cli.watch(run)
    assert watch.end() == 0, watch.story()
    diagnosis = watch.wait_for(is_kind("diagnosis", state="dead"))
    assert diagnosis["detail"]["failure"] == "fx_trace_race", watch.story()
    assert any("symbolically trace" in e["text"] for e in diagnosis["detail"]["evidence"])
    assert watch.wait_for(is_kind("decision"))["detail"]["kind"] == "relaunch"
    assert any("resumed from step 10" in e["text"] for e in watch.events() if e["kind"] == "log"), (
        watch.story()
    )
    status = cli.json("status", run)
    assert status["state"] == "finished"
    assert status["result"]["acceptance_length"] > 0
    export = lab.rootfs / status["result"]["export"].lstrip("/")
    assert {"config.json", "model.safetensors"} <= {path.name for path in export.iterdir()}
    explained = cli.json("explain", run)
    assert explained["failure"] == "fx_trace_race"
    assert any("symbolically trace" in line for line in explained["log"])


@pytest.mark.parametrize(
    ("injection", "failure"),
    [
        ("oom-dense@6", "oom_dense_fallback"),
        pytest.param("nan@6", "nan_loss", marks=pytest.mark.slow),
        ("sigkill@6", "signal_exit"),
        pytest.param("disk-full@6", "disk_full", marks=pytest.mark.slow),
        pytest.param("exit@6", "unknown", marks=pytest.mark.slow),
        pytest.param("python@6", "python_exception", marks=pytest.mark.slow),
    ],
)
def test_each_injected_failure_is_named_and_acted_on_as_the_playbook_says(cli, lab, run, injection, failure):
    cli.launch(
        "--run",
        run,
        "--python",
        str(lab.torch_python),
        "--config",
        "fast",
        "--inject",
        injection,
        timeout=300,
    )
    watch = cli.watch(run, "--observe-only")
    code = watch.end()
    diagnosis = watch.wait_for(is_kind("diagnosis", state="dead"))
    assert diagnosis["detail"]["failure"] == failure, watch.story()
    assert diagnosis["detail"]["evidence"], "a diagnosis carries its proof"
    assert code in (10, 13), watch.story()
    assert cli.json("explain", run)["rule"]["why"]


RANK_OF_RUN = """
for each in /proc/[0-9]*; do
    env=$(tr '\\0' '\\n' <"$each/environ" 2>/dev/null) || continue
    echo "$env" | grep -qx "DFLASHCTL_RUN=$0" || continue
    args=$(tr '\\0' ' ' <"$each/cmdline")
    case "$args" in *"-m trainer"*) echo "${each#/proc/} $(echo "$env" | sed -n 's/^RANK=//p')" ;; esac
done
true
"""


def trainers_by_rank(lab, run: str) -> dict[str, int]:
    """The run's trainer processes in the container; its launcher has the rank ''."""
    listed = lab.exec(["sh", "-c", RANK_OF_RUN, run]).stdout
    found = (line.partition(" ") for line in listed.splitlines() if line)
    return {rank: int(pid) for pid, _, rank in found}


@pytest.mark.slow
def test_a_killed_target_rank_is_named_and_the_split_is_relaunched_and_finishes(cli, lab, run):
    shape = ("parallel.processes=2", "parallel.placement=split", "parallel.targets=1")
    settings = (*shape, "total_steps=14", "eval.prompts=0")
    cli.launch("--run", run, "--python", str(lab.torch_python), "--config", "fast", "--inject", "slow@7",
               *(word for setting in settings for word in ("--set", setting)),
               "--playbook", str(cli.home / "playbook.yaml"), timeout=300)  # fmt: skip
    watch = cli.watch(run)
    watch.wait_for(lambda e: e["kind"] == "log" and e["text"].startswith("checkpoint step-5"))
    before = trainers_by_rank(lab, run)
    assert set(before) == {"", "0", "1"}, before
    lab.exec(["kill", "-9", str(before["1"])])
    diagnosis = watch.wait_for(is_kind("diagnosis", state="dead"))
    assert diagnosis["detail"]["failure"] == "signal_exit", watch.story()
    assert "on rank 1 (target): killed from outside (SIGKILL)" in diagnosis["text"]
    assert diagnosis["detail"]["evidence"][0]["rank"] == 1
    watch.wait_for(lambda e: e["kind"] == "attempt" and e["attempt"] == 2)
    assert not set(before.values()) & set(trainers_by_rank(lab, run).values()), "none is left of attempt 1"
    assert watch.end() == 0, watch.story()
    logged = [e["text"] for e in watch.events() if e["kind"] == "log" and e["attempt"] == 2]
    assert any(line.startswith("resumed from step ") for line in logged), watch.story()
    status = cli.json("status", run)
    assert (status["state"], status["attempt"], status["step"]) == ("finished", 2, 14)


@pytest.mark.slow
def test_a_hang_is_seen_stopped_and_relaunched(cli, lab, run):
    (cli.home / "playbook.yaml").write_text(FAST_PLAYBOOK + "limits: {train: 5s, init: 5m}\ngrace: 0s\n")
    launch_standin_without_command_hang(cli, lab, run)
    watch = cli.watch(run)
    assert watch.end() == 0, watch.story()
    assert watch.wait_for(is_kind("diagnosis", state="hung"))["detail"]["failure"] == "hang"
    assert any("from step" in e["text"] for e in watch.events() if e["kind"] == "log")
    assert cli.json("status", run)["attempt"] == 2


def launch_standin_without_command_hang(cli: Cli, lab, run: str) -> None:
    launch_standin(cli, run, "--steps", "12", "--hang-at", "7", "--crash-attempts", "1")


def test_ssh_killed_in_mid_watch_reconnects_and_loses_no_log_byte(cli, lab, run):
    words = ("--steps", "100", "--step-s", "0.1", "--checkpoint-every", "0", "--cue", "/opt/cue")
    launch_standin(cli, run, *words)
    watch = cli.watch(run)
    watch.wait_for(is_kind("log"))
    for _ in range(3):
        time.sleep(2.0)
        wait_until(lambda: lab.kill_ssh_connections() > 0)
    (cli.root / "opt" / "cue").touch()
    assert watch.end() == 0, watch.story()
    steps = [e["text"] for e in watch.events() if e["kind"] == "log" and e["text"].startswith("step ")]
    told = [int(line.split()[1].split("/")[0]) for line in steps]
    assert len(told) >= 100
    assert told == list(range(1, len(told) + 1)), watch.story()
    assert any(e["kind"] == "blind" for e in watch.events()), "the cut was told"
    assert not any(e["detail"].get("state") == "dead" for e in watch.events()), "blind is never dead"


def test_a_watcher_killed_and_restarted_adopts_the_run(cli, lab, run):
    launch_standin(
        cli,
        run,
        "--steps",
        "140",
        "--step-s",
        "0.1",
        "--crash-at",
        "120",
        "--crash-attempts",
        "1",
        "--fx-text",
        "--cue",
        "/opt/cue",
    )
    first = cli.watch(run)
    first.wait_for(lambda e: e["kind"] == "log" and e["text"].startswith("step 40/"))
    time.sleep(1.0)  # what was told is on record within half a second
    first.kill()
    second = cli.watch(run)
    second.wait_for(lambda e: e["kind"] == "log" and e["text"].startswith("step "))
    (cli.root / "opt" / "cue").touch()
    assert second.end() == 0, second.story()
    assert second.wait_for(is_kind("diagnosis", state="dead"))["detail"]["failure"] == "fx_trace_race"
    shown = [e["text"] for e in second.events() if e["kind"] == "log"]
    assert not any(line.startswith("step 10/") for line in shown), "what was told before is not told again"
    log = (lab.rootfs / "var/lib/dflashctl/runs" / run / "attempts/1/log").read_text().splitlines()
    assert [line for line in log if line.startswith("step ")][-1] in shown
    assert cli.json("status", run)["attempt"] == 2


def test_two_launches_and_two_watches_never_make_two_trainers(cli, lab, run):
    launch_standin(
        cli,
        run,
        "--steps",
        "160",
        "--step-s",
        "0.1",
        "--crash-at",
        "120",
        "--crash-attempts",
        "1",
        "--fx-text",
        "--cue",
        "/opt/cue",
    )
    again = cli.launch("--run", run, "--", "python3", STANDIN)
    assert "alive" in again.stdout
    watches = [cli.watch(run), cli.watch(run)]
    for watch in watches:
        watch.wait_for(is_kind("state", state="healthy"))
    (cli.root / "opt" / "cue").touch()
    for _ in range(60):
        assert len(living_trainers(lab, run)) <= 1
        if all(watch.process.poll() is not None for watch in watches):
            break
        time.sleep(0.25)
    assert [watch.end() for watch in watches] == [0, 0], watches[0].story() + watches[1].story()
    assert cli.json("status", run)["attempt"] == 2


def test_a_container_that_is_stopped_is_not_a_crash(cli, clean_lab, run):
    launch_standin(cli, run, "--steps", "20000", "--step-s", "0.1")
    watch = cli.watch(run)
    watch.wait_for(lambda e: e["kind"] == "log" and e["text"].startswith("step 5/"))
    clean_lab.stop_container()
    stopped = watch.wait_for(is_kind("diagnosis", state="container_stopped"))
    assert "container is stopped" in stopped["text"]
    time.sleep(2)
    assert not any(e["detail"].get("state") == "dead" for e in watch.events()), watch.story()
    assert not any(e["kind"] == "act" for e in watch.events())
    clean_lab.start_container()
    restarted = watch.wait_for(is_kind("diagnosis", state="dead"))
    assert restarted["detail"]["failure"] == "container_restarted", watch.story()
    watch.wait_for(lambda e: e["kind"] == "attempt" and e["attempt"] == 2)
    watch.kill()


def test_a_frozen_container_is_neither_dead_nor_hung(cli, clean_lab, run):
    launch_standin(cli, run, "--steps", "20000", "--step-s", "0.1")
    watch = cli.watch(run)
    watch.wait_for(lambda e: e["kind"] == "log" and e["text"].startswith("step 5/"))
    clean_lab.freeze()
    try:
        watch.wait_for(is_kind("diagnosis", state="container_frozen"))
        looked = cli.run("status", run, code=None)
        assert "is frozen, and nothing in it answers" in looked.stdout + looked.stderr
    finally:
        clean_lab.unfreeze()
    watch.wait_for(lambda e: e["kind"] == "log" and e["text"].startswith("step 60/"))
    states = {e["detail"].get("state") for e in watch.events()}
    assert not states & {"dead", "hung"}, watch.story()
    watch.kill()


def test_a_run_that_its_user_stopped_stays_stopped(cli, lab, run):
    launch_standin(cli, run, "--steps", "20000", "--step-s", "0.1")
    watch = cli.watch(run)
    watch.wait_for(lambda e: e["kind"] == "log" and e["text"].startswith("step 5/"))
    cli.run("stop", run, "--grace", "2m")
    assert watch.end() == 3, watch.story()
    assert not any(e["kind"] == "act" for e in watch.events())
    assert living_trainers(lab, run) == []


def test_relaunch_with_changes_tells_the_difference_and_a_watch_stays(cli, lab, run):
    launch_standin(cli, run, "--steps", "20000", "--step-s", "0.1")
    watch = cli.watch(run)
    watch.wait_for(lambda e: e["kind"] == "log" and e["text"].startswith("step 8/"))
    told = cli.json("relaunch", run, "--python", "/usr/bin/python3", "--yes")
    assert told["attempt"] == 2
    assert told["changes"] == [{"key": "python", "old": "python3", "new": "/usr/bin/python3"}]
    watch.wait_for(lambda e: e["kind"] == "attempt" and e["attempt"] == 2)
    watch.wait_for(lambda e: e["kind"] == "log" and e["attempt"] == 2 and "from step" in e["text"])
    assert watch.process.poll() is None
    watch.kill()


def test_the_gpus_are_seen_and_a_busy_gpu_holds_back_a_relaunch(cli, clean_lab, run):
    launch_standin(
        cli,
        run,
        "--steps",
        "40",
        "--step-s",
        "0.05",
        "--crash-at",
        "20",
        "--crash-attempts",
        "1",
        "--fx-text",
    )
    clean_lab.set_gpus(GpuState().with_gpu(Gpu(0, used_mib=90_000)))
    watch = cli.watch(run)
    watch.wait_for(lambda e: e["kind"] == "gate" and "GPU 0 holds" in e["text"])
    assert not any(e["attempt"] == 2 for e in watch.events())
    clean_lab.set_gpus(GpuState())
    assert watch.end() == 0, watch.story()


def test_logs_events_ps_explain_and_rm_tell_one_story(cli, lab, run):
    launch_standin(cli, run, "--steps", "10", "--step-s", "0.02")
    assert cli.watch(run).end() == 0
    assert "step 10/10" in cli.run("logs", run).stdout
    assert [r["state"] for r in cli.json("ps")["runs"] if r["run"] == run] == ["finished"]
    kinds = [event["kind"] for event in cli.json("events", run)["events"]]
    assert "action" in kinds
    again = cli.launch("--run", run, "--", "python3", STANDIN)
    assert "finished" in again.stdout
    removed = cli.json("rm", run, "--yes")
    assert removed["bytes"] > 0
    assert not (lab.rootfs / "var/lib/dflashctl/runs" / run).exists()
    assert cli.json("ps")["runs"] == []


def test_no_secret_reaches_argv_the_record_or_a_screen_though_the_log_holds_it(cli, lab, run):
    """The trainer prints its token, and dies with it in its last line."""
    cli.env["MY_TOKEN"] = "s3cret-value-of-mine"
    tells = (
        'echo "got ${#MY_TOKEN} letters: $MY_TOKEN"; while [ ! -e /opt/cue ]; do sleep 0.1; done; '
        'echo "RuntimeError: CUDA error: out of memory near $MY_TOKEN" >&2; exit 1'
    )
    cli.launch("--run", run, "--env", "MY_TOKEN", "--", "sh", "-c", tells)
    listed = lab.exec(["ps", "-eo", "args"]).stdout
    assert "s3cret" not in listed
    watch = cli.watch(run, "--observe-only")
    watch.wait_for(is_kind("state", state="healthy"))
    (cli.root / "opt" / "cue").touch()
    assert watch.end() == 10
    said = [
        watch.out.read_text(),
        cli.run("logs", run).stdout,
        cli.run("logs", run, "--raw").stdout,
        cli.run("explain", run).stdout,
        cli.run("explain", run, "--json").stdout,
        cli.run("events", run, "--json").stdout,
        cli.run("status", run, "--json", code=10).stdout,
    ]
    for text in said:
        assert "s3cret" not in text
    assert f"got 20 letters: {'*' * 20}" in said[0]
    assert f"got 20 letters: {'*' * 20}" in said[1]
    assert "near *****" in said[3]
    log = (lab.rootfs / "var/lib/dflashctl/runs" / run / "attempts/1/log").read_bytes()
    assert log.count(b"s3cret-value-of-mine") == 2, "it is masked on its way out, not on the disk"
    for path in Path(cli.home).rglob("*"):
        assert not path.is_file() or b"s3cret" not in path.read_bytes(), path


def test_a_foreign_tmux_session_is_looked_at_and_never_touched(cli, lab):
    lab.exec(
        ["tmux", "new-session", "-d", "-s", "dflash", "python3 -c 'print(\"step 3/10 loss 2.0\")'; sleep 600"]
    )
    try:
        body = cli.json("watch", *cli.where, "--session", "dflash")
        assert any("step 3/10" in line for line in body["lines"])
        assert body["confidence"] < 1.0
        assert body["dead"] is False
        assert len(body["gpus"]) == 8
    finally:
        assert lab.exec(["tmux", "has-session", "-t", "dflash"]).returncode == 0
        lab.exec(["tmux", "kill-session", "-t", "dflash"])
