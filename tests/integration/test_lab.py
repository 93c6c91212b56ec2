"""The lab itself is right: what the other suites take for a Proxmox host behaves like one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli import LONG_S
from tests.lab import host, leftovers
from tests.lab.container import is_mounted
from tests.lab.fixtures import lab_is_required, new_state, require_lab
from tests.lab.gpus import DRIVER_MISMATCH, Gpu, GpuState
from tests.lab.host import LabError, LentPython, run
from tests.lab.lab import PREFIX, Lab, sweep

pytestmark = pytest.mark.integration

READ_GPUS = """
import json, sys
import pynvml as n
def ask(name, *args):
    try:
        return getattr(n, name)(*args)
    except n.NVMLError as error:
        return "error %d" % error.value
try:
    n.nvmlInit()
except n.NVMLError as error:
    print(json.dumps("init error %d" % error.value)); sys.exit()
rows = []
for i in range(n.nvmlDeviceGetCount()):
    handle = ask("nvmlDeviceGetHandleByIndex", i)
    if isinstance(handle, str):
        rows.append(handle); continue
    memory = ask("nvmlDeviceGetMemoryInfo", handle)
    processes = ask("nvmlDeviceGetComputeRunningProcesses_" + sys.argv[1], handle)
    rows.append({
        "name": n.nvmlDeviceGetName(handle), "uuid": n.nvmlDeviceGetUUID(handle),
        "used": memory if isinstance(memory, str) else memory.used,
        "total": memory if isinstance(memory, str) else memory.total,
        "power_mw": ask("nvmlDeviceGetPowerUsage", handle),
        "util": ask("nvmlDeviceGetUtilizationRates", handle).gpu,
        "celsius": ask("nvmlDeviceGetTemperatureV", handle, 0),
        "processes": processes
        if isinstance(processes, str) else [[p.pid, p.usedGpuMemory] for p in processes],
    })
print(json.dumps(rows))
"""
MIB = 1024 * 1024


def read_gpus(lab: Lab, *, processes: str = "v3", timeout: float = LONG_S):
    assert lab.torch_python is not None
    done = lab.exec([lab.torch_python, "-c", READ_GPUS, processes], timeout=timeout)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# -- pct: messages, formats, codes


@pytest.mark.parametrize(
    ("argv", "code", "stderr"),
    [
        (
            ["exec", "299", "--", "true"],
            255,
            r"^Configuration file 'nodes/\S+/lxc/299.conf' does not exist\n$",
        ),
        (["exec", "201", "--", "true"], 255, r"^container '201' not running!\n$"),
        (["exec", "200"], 255, r"^missing command at /usr/share/perl5/PVE/CLI/pct.pm line \d+.\n$"),
        (
            ["exec", "200", "ls", "-x"],
            255,
            r"^Unknown option: x\n400 unable to parse option\npct exec <vmid>",
        ),
        (["exec"], 255, r"^400 not enough arguments\npct exec <vmid>"),
        (["status", "200", "201"], 255, r"^400 too many arguments\npct status"),
        (["frobnicate"], 255, r"^ERROR: unknown command 'pct frobnicate'\nUSAGE: pct <COMMAND>"),
        (["exec", "abc", "--", "true"], 255, r"^400 Parameter verification failed.\nvmid: "),
        (["exec", "5", "--", "true"], 255, r"^400 Parameter verification failed.\nvmid: "),
        (["start", "200"], 255, r"^CT 200 already running\n$"),
        (["stop", "201"], 255, r"^CT 201 not running\n$"),
        (["push", "201", "/etc/hostname", "/x"], 255, r"^can only push files to a running CT\n$"),
        (
            ["pull", "201", "/etc/hostname", "/x"],
            255,
            r"^can only pull files from a running VM at \S+ line 664.\n$",
        ),
        (
            ["exec", "200", "--", "no-such-command"],
            127,
            r"No such file or directory - Failed to exec \"no-such-command\"",
        ),
        (["exec", "200", "--", "/etc/passwd"], 126, r"Permission denied - Failed to exec \"/etc/passwd\""),
        (["exec", "200", "--", "sh", "-c", "exit 7"], 7, r"^$"),
    ],
)
def test_pct_fails_with_the_words_and_the_code_of_the_real_one(lab: Lab, argv, code, stderr):
    done = lab.ssh("pct", *argv)
    assert (done.returncode, done.stdout) == (code, "")
    assert re.search(stderr, done.stderr), done.stderr


def test_pct_list_and_status_have_the_real_format(lab: Lab):
    assert lab.pct("list").stdout == (
        "VMID       Status     Lock         Name                \n"
        "200        running                 trainer             \n"
        "201        stopped                 spare               \n"
    )
    assert lab.pct("status", "200").stdout == "status: running\n"
    assert lab.pct("status", "201").stdout == "status: stopped\n"
    keys = [line.split(": ")[0] for line in lab.pct("status", "200", "--verbose").stdout.splitlines()]
    assert keys == sorted(keys)
    assert {"status", "pid", "uptime", "maxmem"} <= set(keys)
    assert "cpu" not in keys


def test_pct_config_tells_the_gpus_passed_through(lab: Lab):
    lines = lab.pct("config", "200").stdout.splitlines()
    assert lines == sorted(lines)
    assert (
        sum(line.split(": ")[1].startswith("/dev/nvidia") for line in lines if line.startswith("dev")) == 10
    )
    assert "hostname: trainer" in lines
    assert "nvidia" not in lab.pct("config", "201").stdout


def test_a_locked_container_refuses_stop_but_not_exec(clean_lab: Lab):
    clean_lab.lock(200, "backup")
    refused = clean_lab.pct("stop", "200")
    assert (refused.returncode, refused.stderr) == (255, "CT is locked (backup)\n")
    assert clean_lab.pct("exec", "200", "--", "true").returncode == 0
    assert "200        running    backup       trainer" in clean_lab.pct("list").stdout
    assert "lock: backup\n" in clean_lab.pct("status", "200", "--verbose").stdout
    assert clean_lab.pct("unlock", "200").returncode == 0
    assert clean_lab.pct("stop", "200").returncode == 0
    assert clean_lab.pct("exec", "200", "--", "true").stderr == "container '200' not running!\n"
    assert clean_lab.pct("start", "200").returncode == 0
    assert clean_lab.pct("exec", "200", "--", "true").returncode == 0


def test_a_shutdown_ends_the_container_and_a_reboot_makes_a_new_init(clean_lab: Lab):
    before = clean_lab.containers[200].init_pid()
    assert clean_lab.pct("reboot", "200").returncode == 0
    assert clean_lab.containers[200].init_pid() not in {0, before}
    assert clean_lab.pct("shutdown", "200", "--timeout", "10").returncode == 0
    assert clean_lab.containers[200].state() == "STOPPED"


def test_push_and_pull_copy_and_hide_their_failures_behind_exit_code_zero(clean_lab: Lab, tmp_path: Path):
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)))
    assert clean_lab.pct("push", "200", str(source), "/root/there", "--perms", "0600").returncode == 0
    assert (clean_lab.rootfs / "root/there").stat().st_mode & 0o777 == 0o600
    assert clean_lab.pct("pull", "200", "/root/there", str(tmp_path / "back")).returncode == 0
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
    failed = clean_lab.pct("push", "200", str(source), "/no/such/place")
    assert (failed.returncode, failed.stderr) == (
        0,
        "failed to open /no/such/place: No such file or directory\n",
    )


def test_a_held_config_lock_is_waited_for_and_then_reported(clean_lab: Lab, tmp_path: Path):
    with clean_lab.config_locked():
        done = clean_lab.pct("push", "200", "/etc/hostname", "/root/x")
    assert done.returncode == 255
    assert done.stderr == (
        "trying to acquire lock...\ncan't lock file '/run/lock/lxc/pve-config-200.lock' - got timeout\n"
    )


def test_the_environment_is_kept_with_the_hosts_path_or_cleared(lab: Lab):
    kept = lab.ssh("pct", "exec", "200", "--", "env").stdout.splitlines()
    assert "PATH=/sbin:/bin:/usr/sbin:/usr/bin" in kept
    assert any(line.startswith("SSH_CONNECTION=") for line in kept)
    cleared = lab.ssh("pct", "exec", "200", "--keep-env", "0", "--", "env").stdout.splitlines()
    assert sorted(cleared) == [
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "container=lxc",
    ]


def test_hostile_arguments_and_bytes_pass_through_untouched(lab: Lab):
    hostile = ["a b", "$(id)", "`id`", "'\"\\", "two\nlines", "--flag", "", "\u00e9\u4e2d", "*"]
    code = "import sys, json; print(json.dumps([sys.argv[1:], len(sys.stdin.buffer.read())]))"
    done = lab.ssh(
        "pct",
        "exec",
        "200",
        "--",
        "env",
        "LC_ALL=C.UTF-8",
        "python3",
        "-c",
        code,
        *hostile,
        stdin="x" * 100_000,
    )
    assert json.loads(done.stdout) == [hostile, 100_000]


def test_pct_is_as_slow_as_told(clean_lab: Lab):
    clean_lab.set_pct_delay(1)
    started = time.monotonic()
    assert clean_lab.pct("status", "200").returncode == 0
    assert time.monotonic() - started >= 1
    clean_lab.set_pct_delay(0)
    started = time.monotonic()
    assert clean_lab.pct("status", "200").returncode == 0
    assert time.monotonic() - started < 20


# -- the container


def test_an_attach_to_a_frozen_container_blocks_until_it_is_thawed(clean_lab: Lab):
    clean_lab.freeze()
    assert clean_lab.ssh("lxc-info", "-n", "200", "-s").stdout.split() == ["State:", "FROZEN"]
    assert clean_lab.pct("status", "200").stdout == "status: running\n"
    with subprocess.Popen([clean_lab.pct_bin_dir / "pct", "exec", "200", "--", "true"]) as attach:
        with pytest.raises(subprocess.TimeoutExpired):
            attach.wait(timeout=1)
        clean_lab.unfreeze()
        assert attach.wait(timeout=LONG_S) == 0
    assert clean_lab.ssh("lxc-info", "-n", "200", "-s").stdout.split() == ["State:", "RUNNING"]


def test_tmux_runs_in_the_container_and_orphans_are_reaped(clean_lab: Lab):
    done = clean_lab.exec(
        ["env", "LC_ALL=C.UTF-8", "tmux", "-L", "t", "new-session", "-d", "-s", "x", "sleep 3600"]
    )
    assert done.returncode == 0, done.stderr
    assert clean_lab.exec(["tmux", "-L", "t", "has-session", "-t", "x"]).returncode == 0
    clean_lab.exec(["sh", "-c", "(sleep 0.1 &)"])
    give_up_at = time.monotonic() + LONG_S
    while (
        "sleep 0.1" in (table := clean_lab.exec(["ps", "-eo", "stat,args"]).stdout)
        or "Z" in table.split("STAT")[1]
    ):
        assert time.monotonic() < give_up_at, table
        time.sleep(0.1)


def test_the_container_has_torch_but_not_the_projects_source(lab: Lab):
    assert lab.torch_python is not None
    code = "import torch; print(torch.ones(2).sum().item())\n"
    code += "try:\n    import orchestrator\nexcept ImportError:\n    print('no')"
    done = lab.exec([lab.torch_python, "-W", "ignore", "-c", code])
    assert done.stdout.split() == ["2.0", "no"], done.stderr
    assert lab.exec(["touch", lab.torch_python.parent / "x"]).returncode != 0


def test_a_reset_forgets_what_was_written_in_the_container(clean_lab: Lab):
    clean_lab.exec(["touch", "/root/written"])
    assert (clean_lab.rootfs / "root/written").exists()
    clean_lab.reset()
    assert not (clean_lab.rootfs / "root/written").exists()
    assert clean_lab.exec(["true"]).returncode == 0


# -- sshd


def test_sshd_listens_on_loopback_alone(lab: Lab):
    listening = [
        line.split()[1]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
        if line.split()[3] == "0A" and int(line.split()[1].split(":")[1], 16) == lab.port
    ]
    assert listening == [f"0100007F:{lab.port:04X}"]


def test_a_killed_connection_drops_and_the_next_one_works(clean_lab: Lab):
    argv = [*clean_lab.ssh_argv(), "sleep 3600"]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as client:
        give_up_at = time.monotonic() + LONG_S
        while clean_lab.kill_ssh_connections() == 0:
            assert time.monotonic() < give_up_at
            time.sleep(0.05)
        assert client.wait(timeout=LONG_S) == 255
    assert clean_lab.ssh("true").returncode == 0


def test_a_restart_with_a_new_host_key_is_refused_by_a_strict_client(clean_lab: Lab):
    port = clean_lab.port
    clean_lab.restart_sshd()
    assert clean_lab.ssh("true").returncode == 0
    clean_lab.restart_sshd(new_host_key=True)
    refused = clean_lab.ssh("true")
    assert refused.returncode == 255
    assert "HOST IDENTIFICATION HAS CHANGED" in refused.stderr
    assert clean_lab.port == port
    clean_lab.reset()
    assert clean_lab.ssh("true").returncode == 0


def test_a_restart_leaves_live_connections_alone_and_they_can_still_be_killed(clean_lab: Lab):
    argv = [*clean_lab.ssh_argv(), "echo up; exec sleep 3600"]
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"up\n"
        clean_lab.restart_sshd()
        with pytest.raises(subprocess.TimeoutExpired):
            client.wait(timeout=0.5)
        assert clean_lab.kill_ssh_connections() >= 1
        assert client.wait(timeout=LONG_S) == 255


# -- GPUs


def test_the_real_nvml_binding_reads_the_stub(clean_lab: Lab):
    clean_lab.set_gpus(GpuState().with_gpu(Gpu(3, 70000, 143771, 99, 650.5, 61, processes={4242: 69000})))
    rows = read_gpus(clean_lab)
    assert len(rows) == 8
    assert rows[3] == {
        "name": "NVIDIA H200",
        "uuid": "GPU-00000000-0000-0000-0000-000000000003",
        "used": 70000 * MIB,
        "total": 143771 * MIB,
        "power_mw": 650500,
        "util": 99,
        "celsius": 61,
        "processes": [[4242, 69000 * MIB]],
    }
    assert rows[2]["processes"] == []


def test_a_lost_gpu_hidden_processes_and_unsupported_readings_are_told_by_the_stub(clean_lab: Lab):
    busy = Gpu(0, processes={1: 10}, power_w=None)
    clean_lab.set_gpus(GpuState(gpus=(busy, Gpu(1)), lost=(1,), hide_processes=True))
    first, second = read_gpus(clean_lab)
    assert (first["processes"], first["power_mw"]) == ([], "error 3")
    assert second == "error 15"


def test_an_old_driver_lacks_the_newer_calls(clean_lab: Lab):
    clean_lab.set_gpus(GpuState().with_gpu(Gpu(0, processes={7: 10})))
    clean_lab.set_nvml("old")
    row = read_gpus(clean_lab)[0]
    assert (row["celsius"], row["processes"]) == ("error 13", "error 13")
    assert row["used"] == 4 * MIB
    assert read_gpus(clean_lab, processes="v2")[0]["processes"] == [[7, 10 * MIB]]


def test_a_driver_mismatch_and_a_missing_library_fail_at_init(clean_lab: Lab):
    clean_lab.set_gpus(GpuState(init_error=DRIVER_MISMATCH))
    assert read_gpus(clean_lab) == "init error 18"
    assert (
        clean_lab.exec(["nvidia-smi"]).stdout
        == "Failed to initialize NVML: Driver/library version mismatch\n"
    )
    clean_lab.set_nvml("none")
    assert read_gpus(clean_lab) == "init error 12"


def test_a_hanging_driver_hangs_the_caller(clean_lab: Lab):
    clean_lab.set_gpus(GpuState(hang_s=3600))
    with pytest.raises(LabError, match="no end within"):
        read_gpus(clean_lab, timeout=2)
    clean_lab.set_gpus(GpuState())
    assert len(read_gpus(clean_lab)) == 8


def test_nvidia_smi_answers_from_the_same_file(clean_lab: Lab):
    clean_lab.set_gpus(GpuState(gpus=(Gpu(0, 1000, utilization_pct=50, power_w=None), Gpu(1)), lost=(1,)))
    query = "--query-gpu=index,memory.used,utilization.gpu,power.draw"
    done = clean_lab.exec(["nvidia-smi", query, "--format=csv,noheader,nounits"])
    assert done.stdout.splitlines()[0] == "0, 1000, 50, [N/A]"
    assert "GPU is lost" in done.stdout
    assert done.returncode == 15
    with_units = clean_lab.exec(["nvidia-smi", query, "--format=csv"]).stdout.splitlines()
    assert with_units[:2] == ["index, memory.used, utilization.gpu, power.draw", "0, 1000 MiB, 50 %, [N/A]"]


# -- its own life


@pytest.fixture
def second_lab():
    require_lab()
    made = Lab(new_state())
    yield made
    made.stop()


def traces(lab: Lab) -> list[str]:
    """What of a lab is on this machine: processes, mounts, cgroups, files."""
    found = [str(lab.state)] if lab.state.exists() else []
    found += [
        line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(lab.state) in line
    ]
    found += [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{lab.cgroup}")]
    found += [str(path) for path in Path("/sys/fs/cgroup").glob(lab.cgroup)]
    found += [str(path) for path in Path("/run/lxc").glob(f"**{lab.state}/**/.20?")]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            mark = (process / "environ").read_bytes()
        except OSError:
            continue
        if str(lab.state).encode() in command or str(lab.state).encode() in mark:
            found.append(f"{process.name} {command!r}")
    return found


def test_two_labs_live_side_by_side_and_each_leaves_nothing_behind(lab: Lab, second_lab: Lab):
    second_lab.start()
    assert second_lab.ssh("pct", "exec", "200", "--", "true").returncode == 0
    assert len(traces(second_lab)) > 4
    assert second_lab.port != lab.port
    second_lab.freeze()  # the hardest to end
    second_lab.stop()
    assert traces(second_lab) == []
    assert lab.ssh("pct", "exec", "200", "--", "true").returncode == 0
    second_lab.stop()


def test_a_login_that_still_runs_does_not_outlive_its_lab(second_lab: Lab):
    second_lab.start()
    argv = [*second_lab.ssh_argv(), "echo up; setsid sleep 3600; true"]
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"up\n"
        second_lab.stop()
        assert client.wait(timeout=LONG_S) == 255
    assert traces(second_lab) == []


def test_a_second_start_changes_nothing_and_repairs_what_is_missing(second_lab: Lab):
    second_lab.start()
    port, init = second_lab.port, second_lab.containers[200].init_pid()
    second_lab.start()
    assert (second_lab.port, second_lab.containers[200].init_pid()) == (port, init)
    second_lab.stop_sshd()
    second_lab.start()
    assert second_lab.port == port
    assert second_lab.ssh("true").returncode == 0


def test_a_lab_whose_owner_was_killed_is_swept_and_a_living_ones_is_not(lab: Lab, second_lab: Lab):
    with subprocess.Popen(["sleep", "3600"]) as owner:
        second_lab.start(owner=owner.pid)
        assert second_lab.state not in sweep()
        owner.kill()
        owner.wait()
    assert second_lab.state in sweep()
    assert traces(second_lab) == []
    assert lab.is_up()


def test_a_link_in_the_place_of_the_state_directory_is_refused(tmp_path: Path):
    require_lab()
    link = tmp_path / PREFIX
    link.symlink_to(tmp_path)
    with pytest.raises(LabError, match="a link or another user's directory"):
        Lab(link).start()
    assert list(tmp_path.iterdir()) == [link]


def test_up_twice_status_and_down_work_by_hand(tmp_path: Path):
    require_lab()
    env = {**os.environ, "TMPDIR": str(tmp_path)}

    def by_hand(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tests.lab", *argv],
            env=env,
            capture_output=True,
            text=True,
            timeout=LONG_S,
            check=False,
        )

    state = tmp_path / PREFIX
    try:
        first = by_hand("up", "--detach")
        assert first.returncode == 0, first.stderr
        assert f"dflashctl launch --host 127.0.0.1 --ct 200 --port {Lab(state).port}" in first.stdout
        assert state.stat().st_mode & 0o777 == 0o700
        assert "already up" in by_hand("up", "--detach").stdout
        assert "container 200: running" in by_hand("status").stdout
    finally:
        ended = by_hand("down")
    assert ended.stdout == "lab: ended; nothing is left\n"
    assert traces(Lab(state)) == []
    assert by_hand("down").stdout == "lab: was not up\n"
    assert by_hand("status").returncode == 3


def test_up_in_the_foreground_ends_in_order_at_a_signal_and_at_two(tmp_path: Path):
    require_lab()
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    argv = [sys.executable, "-m", "tests.lab", "up"]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as up:
        assert up.stdout is not None
        said = ""
        while "up until Ctrl-C" not in said:
            line = up.stdout.readline()
            assert line, said
            said += line
        assert len(traces(Lab(tmp_path / PREFIX))) > 4
        up.send_signal(signal.SIGINT)
        up.send_signal(signal.SIGTERM)
        assert up.stdout.read().split("\n") == ["", "lab: ending", ""]
        assert up.wait(timeout=LONG_S) == 0
    assert traces(Lab(tmp_path / PREFIX)) == []


def test_the_container_is_seen_in_the_cgroup_that_proxmox_gives_it(lab: Lab):
    init = lab.containers[200].init_pid()
    assert "lxc/200" in Path(f"/proc/{init}/cgroup").read_text()
    assert is_mounted(lab.rootfs) or (lab.rootfs / "bin").exists()


def test_a_state_directory_that_cannot_carry_an_overlay_gets_a_copy(tmp_path: Path):
    require_lab()
    parts = [tmp_path / name for name in ("lower", "upper", "work", "merged")]
    for part in parts:
        part.mkdir()
    options = f"lowerdir={parts[0]},upperdir={parts[1]},workdir={parts[2]}"
    run(["mount", "-t", "overlay", "test", "-o", options, parts[3]])
    copied = Lab(parts[3] / "lab")
    try:
        copied.start()
        assert not is_mounted(copied.rootfs)
        assert copied.exec(["cat", "/etc/hosts"]).stdout == "127.0.0.1 localhost trainer\n"
        copied.reset()
        assert copied.exec(["true"]).returncode == 0
    finally:
        copied.stop()
        run(["umount", parts[3]])
    assert traces(copied) == []


def test_an_installed_copy_of_the_project_is_hidden_from_the_container(
    second_lab: Lab, tmp_path: Path, monkeypatch
):
    lent = host.lent_python()
    assert lent is not None
    packages = tmp_path / "site-packages"
    (packages / "orchestrator").mkdir(parents=True)
    (packages / "orchestrator" / "__init__.py").write_text("print('leaked')\n")
    (packages / "other.py").write_text("print('other')\n")
    both = LentPython(lent.python, (*lent.mounts, packages), (packages,))
    monkeypatch.setattr(host, "lent_python", lambda: both)
    second_lab.start()
    for module, said in (("orchestrator", "hides the project's installed copy"), ("other", "other\n")):
        done = second_lab.exec(["env", f"PYTHONPATH={packages}", lent.python, "-c", f"import {module}"])
        assert said in done.stdout + done.stderr
        assert "leaked" not in done.stdout


def test_a_missing_part_skips_with_the_reason_and_fails_where_the_lab_is_required(monkeypatch):
    monkeypatch.setattr(Lab, "missing", lambda self: ["lxc-start (package lxc)"])
    for name in ("CI", "DFLASHCTL_REQUIRE_LAB"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"missing: lxc-start \(package lxc\)"):
        require_lab()
    for name in ("CI", "DFLASHCTL_REQUIRE_LAB"):
        monkeypatch.setenv(name, "1")
        assert lab_is_required()
        with pytest.raises(pytest.fail.Exception, match="required by CI"):
            require_lab()
        monkeypatch.delenv(name)
    with pytest.raises(LabError, match="missing: lxc-start"):
        Lab(Path("/nonexistent/lab")).start()


def test_a_complete_machine_is_neither_skipped_nor_failed(monkeypatch):
    monkeypatch.setattr(Lab, "missing", lambda self: [])
    monkeypatch.setenv("CI", "true")
    require_lab()


def test_an_owner_is_stale_only_when_its_very_process_is_gone():
    assert not leftovers.is_stale(leftovers.owner_line(None))
    assert not leftovers.is_stale(leftovers.owner_line(os.getpid()))
    assert leftovers.is_stale(f"{os.getpid()} 1")  # the pid came round again
