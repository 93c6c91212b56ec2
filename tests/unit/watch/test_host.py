"""The host's kernel in a watch: told once, joined to the death, and never a reason by itself."""

from __future__ import annotations

from datetime import timedelta

from orchestrator.classify.kernel import read_all
from orchestrator.observe import HostMute, HostReady, HostSaid
from orchestrator.types.seen import HostLine
from orchestrator.watch.kernelwait import KERNEL_WAIT_S
from tests.builders import NOW, attempt_message, run_message
from tests.unit.classify.test_kernel import KILLED, OOM, XID_79
from tests.unit.watch.bench import TARGET, Bench, exit_json

HOST = "pve"
GPU = {"type": "gpu", "source": "nvml", "problem": None, "gpus": [{"index": 3, "pci": "0000:3b:00"}]}


def hear(bench: Bench, *texts: str, seconds: float = 0.0) -> None:
    """The kernel says it now, `seconds` later by the clock of its line."""
    lines = [HostLine(text, bench.clock.now() + timedelta(seconds=seconds)) for text in texts]
    for event in read_all(lines):
        bench.watcher.inbox.put(HostSaid(HOST, event))
    bench.turn_once()


def listening(bench: Bench) -> Bench:
    bench.watcher._dispatch.by_host = {HOST: bench.watcher.runs}
    for run in bench.watcher.runs:
        run.kernel_wait.limit_s = KERNEL_WAIT_S
        run.tracker.host.ct = 200
    bench.live()
    return bench


def killed(bench: Bench) -> None:
    bench.send(
        attempt_message("exit", {**exit_json(None, 9), "at": bench.clock.now().isoformat()}),
        run_message(alive=False, spec=bench.spec(1)),
    )


def test_a_kill_that_the_kernel_explains_a_moment_later_is_told_once_and_rightly(bench):
    listening(bench)
    killed(bench)
    bench.turn_once()
    assert bench.told("diagnosis") == [], "the kernel's word may be on its way"
    hear(bench, OOM, KILLED)
    bench.turn(1)
    (text,) = bench.told("diagnosis")
    assert "oom_host" in text
    assert "python3, host pid 31337" in text


def test_a_kill_that_nothing_explains_is_told_after_the_moment(bench):
    listening(bench)
    killed(bench)
    bench.turn_once()
    bench.turn(1)
    (text,) = bench.told("diagnosis")
    assert "a person or the OOM killer" in text


def test_a_log_that_is_not_followed_yet_is_waited_for_longer_but_not_for_long(bench):
    listening(bench)
    bench.watcher.inbox.put(HostReady(HOST, is_ready=False))
    bench.turn_once()
    killed(bench)
    bench.turn_once()
    bench.turn(2)
    assert bench.told("diagnosis") == []
    hear(bench, OOM)
    bench.turn_once()
    assert "oom_host" in bench.told("diagnosis")[0]


def test_a_log_that_is_never_followed_holds_nothing_up_for_ever(bench):
    listening(bench)
    bench.watcher.inbox.put(HostReady(HOST, is_ready=False))
    bench.turn_once()
    killed(bench)
    bench.turn_once()
    bench.turn(5)
    assert "signal_exit" in bench.told("diagnosis")[0]


def test_a_crash_that_the_kernel_cannot_explain_waits_for_nothing(bench):
    listening(bench)
    words = {"exception": "ValueError", "message": "bad shape", "rank": 0}
    bench.send(
        attempt_message("last_words", words),
        attempt_message("exit", exit_json(1)),
        run_message(alive=False, spec=bench.spec(1)),
    )
    bench.turn_once()
    assert len(bench.told("diagnosis")) == 1


def test_a_kill_in_another_container_is_neither_told_nor_the_cause(bench):
    listening(bench)
    hear(bench, OOM.replace("/lxc/200", "/lxc/201"))
    killed(bench)
    bench.turn_once()
    bench.turn(1)
    assert bench.told("host") == []
    assert "signal_exit" in bench.told("diagnosis")[0]


def test_an_xid_is_told_once_with_its_card_and_its_advice_and_the_run_lives_on(bench):
    listening(bench)
    bench.send(GPU)
    for _ in range(5):
        hear(bench, XID_79)
    (text,) = bench.told("host")
    assert text == (
        "kernel: GPU 3 (0000:3b:00): Xid 79, GPU has fallen off the bus; NVIDIA's catalogue: reboot the host"
    )
    assert not bench.told("decision")
    assert not bench.guest.asked("start")


def test_consequences_are_not_told(bench):
    listening(bench)
    for code in (43, 45):
        hear(bench, XID_79.replace("79", str(code)))
    assert bench.told("host") == []


def test_what_happened_before_the_watch_began_explains_and_is_no_news(bench):
    listening(bench)
    hear(bench, OOM, seconds=-40)
    assert bench.told("host") == []
    bench.send(
        attempt_message("exit", {**exit_json(None, 9), "at": (NOW - timedelta(seconds=39)).isoformat()}),
        run_message(alive=False, spec=bench.spec(1)),
    )
    bench.turn(1)
    assert "oom_host" in bench.told("diagnosis")[0]


def test_a_kernel_log_that_may_not_be_read_is_said_once_and_calmly(bench):
    listening(bench)
    bench.watcher.inbox.put(HostMute(HOST, "journalctl: not allowed; dmesg: not allowed"))
    bench.turn()
    (event,) = [e for e in bench.sink.events if e.kind == "host"]
    assert event.level.value == "info"
    assert "cannot be read (journalctl: not allowed" in event.text
    killed(bench)
    bench.turn_once()
    assert len(bench.told("diagnosis")) == 1, "nothing is waited for"


def test_a_hosts_lines_go_to_the_runs_of_that_host_only(bench):
    assert TARGET.startswith(HOST)
    listening(bench)
    bench.watcher._dispatch.by_host = {HOST: [], "other": bench.watcher.runs}
    hear(bench, OOM)
    assert bench.told("host") == []


def test_a_frozen_container_is_told_with_its_lock(bench):
    listening(bench)
    bench.see_container("frozen:backup")
    bench.turn_once()
    assert bench.run.tracker.container == "frozen"
    assert any("(a backup)" in text for text in bench.told("diagnosis"))


def test_another_boot_of_the_host_is_told_as_its_reboot(bench):
    listening(bench)
    hello = {"type": "hello", "now": bench.clock.now().timestamp(), "boot_id": "c", "pid1_start_ticks": 5}
    bench.send({**hello, "uptime_s": 90.0}, attempt_message("exit", None))
    bench.send(run_message(alive=False, spec=bench.spec(1)))
    bench.turn(1)
    (text,) = bench.told("diagnosis")
    assert "host_rebooted" in text
