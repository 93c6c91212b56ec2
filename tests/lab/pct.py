# pathlib would double the time that a call takes.
# ruff: noqa: PTH101, PTH105, PTH123, PTH208
"""A stand-in for Proxmox's `pct`, over the lab's own LXC containers.

Messages, formats and exit codes are those of pve-container (commit 94f5585; `pct.pm` is src/PVE/CLI/pct.pm,
`Status.pm` is src/PVE/API2/LXC/Status.pm), pve-common f665029 and pve-guest-common 4a8f6cb; each is cited
where it is made. Known only from their source, not from a run on a Proxmox host. A verb or flag that is not
here fails. It imports little, since every look of the tests pays for it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import sys
import time

from tests.lab.pct_options import VERBS, as_bool, check_vmid, die, parse

HOST_PATH = (
    "/sbin:/bin:/usr/sbin:/usr/bin"  # CLIHandler.pm:688 sets it, and --keep-env carries it into the CT
)
LOCK_LIMIT_S = 10  # AbstractConfig.pm: lock_config's default


class Pct:
    """One call: the lab's files and the verbs."""

    def __init__(self, lab: str) -> None:
        self.configs = f"{lab}/pve/lxc"
        self.lxc_path = f"{lab}/lxc"
        self.locks = f"{lab}/run"

    # -- what PVE knows of a container

    def config(self, ct: str) -> dict[str, str]:
        """Read a container's configuration; keys in the file's order."""
        try:
            with open(f"{self.configs}/{ct}.conf", encoding="utf-8") as file:
                lines = file.read().splitlines()
        except FileNotFoundError:  # AbstractConfig.pm:57
            die(f"Configuration file 'nodes/{socket.gethostname()}/lxc/{ct}.conf' does not exist")
        return dict(line.split(": ", 1) for line in lines if ": " in line)

    def tool(self, name: str) -> str:
        """The path of one of LXC's own tools."""
        return shutil.which(name, path=f"{HOST_PATH}:/usr/local/bin") or die(
            f"{name}: command not found", 127
        )

    def lxc(self, name: str, ct: str, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run one of LXC's tools on a container of the lab."""
        command = [self.tool(name), "-P", self.lxc_path, "-n", ct, *argv]
        return subprocess.run(
            command, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL, check=False
        )

    def running(self, ct: str) -> bool:
        """A frozen container runs too."""
        return self.lxc("lxc-info", ct, "-s", "-H").stdout.strip() in {"RUNNING", "FROZEN", "FREEZING"}

    def init_pid(self, ct: str) -> int:
        """The container's process 1 as the host sees it."""
        return int(self.lxc("lxc-info", ct, "-p", "-H").stdout.strip() or 0)

    def check_lock(self, config: dict[str, str], options: dict[str, str]) -> None:
        """Refuse a locked container."""
        if config.get("lock") and "skiplock" not in options:
            die(f"CT is locked ({config['lock']})")  # AbstractConfig.pm:339

    def hold_config_lock(self, ct: str) -> int:
        """Take the configuration's lock, for as long as this process lives."""
        handle = os.open(f"{self.locks}/pve-config-{ct}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.stderr.write("trying to acquire lock...\n")  # PVE::Tools, lock_file_full
            give_up_at = time.monotonic() + LOCK_LIMIT_S
            while True:
                time.sleep(0.1)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() > give_up_at:
                        die(f"can't lock file '/run/lock/lxc/pve-config-{ct}.lock' - got timeout")
                else:
                    sys.stderr.write(" OK\n")
                    break
        return handle

    # -- the verbs

    def do_exec(self, args: list[str], options: dict[str, str]) -> None:
        """pct.pm:214-255."""
        ct, argv = args[0], args[1:]
        self.config(ct)
        if not self.running(ct):
            die(f"container '{ct}' not running!")  # pct.pm:244
        if not argv:
            die("missing command at /usr/share/perl5/PVE/CLI/pct.pm line 246.")  # pct.pm:246
        keep = as_bool("exec", "keep-env", options.get("keep-env", "1"))  # the default is 1 (commit 069553d)
        keep_flag = "--keep-env" if keep else "--clear-env"
        tool = self.tool("lxc-attach")
        os.execv(tool, ["lxc-attach", "-P", self.lxc_path, "-n", ct, keep_flag, "--", *argv])  # pct.pm:253

    def do_list(self, args: list[str], options: dict[str, str]) -> None:
        """Fixed columns, and nothing at all when there is no container (pct.pm, the list command)."""
        del args, options
        cts = sorted(int(name[:-5]) for name in os.listdir(self.configs) if name.endswith(".conf"))
        row = "%-10s %-10s %-12s %-20s\n"
        if cts:
            sys.stdout.write(row % ("VMID", "Status", "Lock", "Name"))
        for ct in cts:
            config = self.config(str(ct))
            state = "running" if self.running(str(ct)) else "stopped"
            sys.stdout.write(row % (ct, state, config.get("lock", ""), config.get("hostname", f"CT{ct}")))

    def do_status(self, args: list[str], options: dict[str, str]) -> None:
        """`status: running`, or sorted keys with --verbose, without `cpu` (pct.pm, the status command)."""
        ct = args[0]
        config = self.config(ct)
        told: dict[str, object] = {"status": "running" if self.running(ct) else "stopped"}
        if as_bool("status", "verbose", options.get("verbose", "0")):
            pid = self.init_pid(ct)
            mib = 1024 * 1024
            zeros = dict.fromkeys(
                ("disk", "diskread", "diskwrite", "mem", "netin", "netout", "swap", "uptime"), 0
            )
            told |= {**zeros, "cpus": config["cores"], "maxmem": int(config["memory"]) * mib, "type": "lxc"}
            told |= {"maxswap": int(config["swap"]) * mib, "name": config["hostname"], "vmid": ct}
            if pid:
                told |= {"pid": pid, "uptime": uptime_s(pid)}
            if "lock" in config:
                told["lock"] = config["lock"]
        for key in sorted(told):
            sys.stdout.write(f"{key}: {told[key]}\n")

    def do_config(self, args: list[str], options: dict[str, str]) -> None:
        """Sorted keys, raw lxc.* lines last (pct.pm, the config command)."""
        del options
        config = self.config(args[0])
        for key in sorted(config, key=lambda key: (key.startswith("lxc."), key)):
            sys.stdout.write(f"{key}: {config[key]}\n")

    def do_start(self, args: list[str], options: dict[str, str]) -> None:
        """Status.pm:150-200."""
        ct = args[0]
        config = self.config(ct)
        if self.running(ct):
            die(f"CT {ct} already running")  # Status.pm:162
        self.check_lock(config, options)
        self.hold_config_lock(ct)
        if self.lxc("lxc-start", ct, "-d").returncode != 0:
            die(f"startup for container '{ct}' failed")  # PVE/LXC.pm, vm_start

    def do_stop(self, args: list[str], options: dict[str, str]) -> None:
        """Kill the container at once (Status.pm:250-290)."""
        ct = args[0]
        self.check_stoppable(ct, options)
        if self.lxc("lxc-stop", ct, "-k").returncode != 0:
            die(f"command 'lxc-stop -n {ct} --kill' failed: exit code 1")

    def check_stoppable(self, ct: str, options: dict[str, str]) -> None:
        """A stop needs a running container without a lock."""
        config = self.config(ct)
        if not self.running(ct):
            die(f"CT {ct} not running")  # Status.pm:264
        self.check_lock(config, options)

    def do_shutdown(self, args: list[str], options: dict[str, str]) -> None:
        """SIGPWR to the container's init, 60 s by default (PVE/LXC.pm, vm_stop)."""
        ct, limit = args[0], options.get("timeout", "60")
        self.check_stoppable(ct, options)
        if self.lxc("lxc-stop", ct, "--nokill", "--timeout", limit).returncode == 0:
            return
        if not as_bool("shutdown", "forceStop", options.get("forceStop", "0")):
            die(f"command 'lxc-stop -n {ct} --nokill --timeout {limit}' failed: exit code 1")
        self.lxc("lxc-stop", ct, "-k")

    def do_reboot(self, args: list[str], options: dict[str, str]) -> None:
        """A shutdown and a start."""
        self.do_shutdown(args, options)
        self.do_start(args, {})

    def do_unlock(self, args: list[str], options: dict[str, str]) -> None:
        """Drop the lock line (pct.pm, the unlock command; it says nothing)."""
        del options
        config = self.config(args[0])
        config.pop("lock", None)
        path = f"{self.configs}/{args[0]}.conf"
        with open(f"{path}.tmp", "w", encoding="utf-8") as file:
            file.write("".join(f"{key}: {value}\n" for key, value in config.items()))
        os.replace(f"{path}.tmp", path)

    def do_push(self, args: list[str], options: dict[str, str]) -> None:
        """pct.pm:700-800."""
        ct, source, destination = args
        self.config(ct)
        if not self.running(ct):
            die("can only push files to a running CT")  # pct.pm:752
        self.hold_config_lock(ct)
        self.worker(source, f"/proc/{self.init_pid(ct)}/root/{destination.lstrip('/')}", destination, options)

    def do_pull(self, args: list[str], options: dict[str, str]) -> None:
        """pct.pm:600-700."""
        ct, source, destination = args
        self.config(ct)
        if not self.running(ct):
            die(
                "can only pull files from a running VM at /usr/share/perl5/PVE/CLI/pct.pm line 664."
            )  # pct.pm:664
        self.hold_config_lock(ct)
        self.worker(f"/proc/{self.init_pid(ct)}/root/{source.lstrip('/')}", destination, source, options)

    def worker(self, source: str, destination: str, told: str, options: dict[str, str]) -> None:
        """Copy. What fails in here is told on stderr and the exit code is 0 all the same.

        pct.pm:1189-1190 give `push` and `pull` no exit status of the worker; RESTEnvironment.pm:445-514.
        """
        try:
            mode = int(options.get("perms", "0644"), 8)
            shutil.copyfile(source, destination)
            os.chmod(destination, mode)
            if {"user", "group"} & options.keys():
                owner, group = options.get("user", "-1"), options.get("group", "-1")
                os.chown(destination, int(owner), int(group))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            sys.stderr.write(f"failed to open {told}: {why}\n")


def uptime_s(pid: int) -> int:
    """Seconds since a process started."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    with open("/proc/uptime", encoding="utf-8") as file:
        return int(float(file.read().split()[0]) - ticks / os.sysconf("SC_CLK_TCK"))


def main(lab: str) -> None:
    """Do what this process's command line says, to the lab in that directory."""
    argv = sys.argv[1:]
    try:
        with open(f"{lab}/pct-delay", encoding="utf-8") as file:
            time.sleep(
                float(file.read())
            )  # the real pct is a Perl program that takes up to a second to start
    except FileNotFoundError:
        pass
    os.environ["PATH"] = HOST_PATH
    if os.geteuid() != 0:
        die("please run as root")  # RESTEnvironment.pm:174
    if not argv:
        die("ERROR: no command specified\nUSAGE: pct <COMMAND> [ARGS] [OPTIONS]")
    verb = argv[0]
    if verb not in VERBS:
        die(f"ERROR: unknown command 'pct {verb}'\nUSAGE: pct <COMMAND> [ARGS] [OPTIONS]")  # CLIHandler.pm
    args, options = parse(verb, argv[1:])
    if args:
        check_vmid(verb, args[0])
    getattr(Pct(lab), f"do_{verb}")(args, options)
