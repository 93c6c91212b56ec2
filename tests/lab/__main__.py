"""The lab by hand: `python -m tests.lab up|down|status|shell`."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import NoReturn

from tests.lab.host import LabError
from tests.lab.lab import Lab

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HELP = {
    "up": "start the lab and print what to try; ends with Ctrl-C unless --detach",
    "down": "end it and remove every trace",
    "status": "what is up",
    "shell": "a shell in container 200",
}


def main(argv: list[str]) -> int:
    """Do one command; 0 fine, 1 it could not be done, 3 the lab is not up (status)."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, told in HELP.items():
        command = commands.add_parser(name, help=told)
        if name == "up":
            command.add_argument("--detach", action="store_true", help="leave it up and return")
    options = parser.parse_args(argv)
    lab = Lab()
    try:
        if options.command == "up":
            return up(lab, detach=options.detach)
        return {"down": down, "status": status, "shell": shell}[options.command](lab)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1


def up(lab: Lab, *, detach: bool) -> int:
    """Start it, tell how to reach it, and wait for the end."""
    if lab.is_up():
        lab.start()  # repairs what is missing
        print(f"lab: already up in {lab.state}; end it: python -m tests.lab down\n\n{instructions(lab)}")
        return 0
    for number in ENDING:
        signal.signal(number, _interrupt)
    try:
        print("lab: starting (the first time takes a minute: debootstrap)", flush=True)
        lab.start()
        print(instructions(lab), flush=True)
        if detach:
            print("\nlab: left up; end it: python -m tests.lab down")
            return 0
        print("\nlab: up until Ctrl-C", flush=True)
        while True:
            signal.pause()
    except (KeyboardInterrupt, BrokenPipeError):
        for number in ENDING:  # the programs that end the lab inherit this
            signal.signal(number, signal.SIG_IGN)
        with contextlib.suppress(OSError):  # a closed terminal is one of the reasons to end
            print("\nlab: ending", flush=True)
        lab.stop()
        return 0


def _interrupt(number: int, frame: object) -> NoReturn:
    """End in order, once: a second signal must not leave half of the lab behind."""
    del frame
    for other in ENDING:
        signal.signal(other, _already_ending)
    raise KeyboardInterrupt(number)


def _already_ending(number: int, frame: object) -> None:
    del number, frame


def instructions(lab: Lab) -> str:
    """The commands to try, ready to paste."""
    where = f"--host {lab.host} --ct {lab.ct}"
    reach = f"--port {lab.port} --user root --identity {lab.identity} --known-hosts {lab.known_hosts}"
    python = f" --python {lab.torch_python}" if lab.torch_python else ""
    rows = [
        ("host", lab.host),
        ("port", str(lab.port)),
        ("identity file", str(lab.identity)),
        ("known_hosts file", str(lab.known_hosts)),
        ("container", f"{lab.ct} (201 exists and is stopped)"),
        ("python with torch", str(lab.torch_python or "none: make .venv first")),
        ("GPUs", f"edit {lab.gpu_state}"),
    ]
    table = "\n".join(f"  {name:<18} {value}" for name, value in rows)
    beside = Path(sys.executable).parent  # make lab puts nothing on PATH
    commands = [
        f"{beside}/dflashctl launch {where} {reach}{python}",
        f"{beside}/dflashctl watch {where} {reach}",
        shlex.join([*lab.ssh_argv(), "pct", "exec", "200", "--", "nvidia-smi"]),
        f"lxc-freeze -P {lab.state / 'lxc'} -n {lab.ct}  # as a backup does; lxc-unfreeze ends it",
        f"{sys.executable} -m tests.lab shell",
    ]
    return f"{table}\n\nTry:\n" + "\n".join(f"  {command}" for command in commands)


def down(lab: Lab) -> int:
    """End it."""
    was_there = lab.state.exists()
    lab.stop()
    print(f"lab: {'ended; nothing is left' if was_there else 'was not up'}")
    return 0


def status(lab: Lab) -> int:
    """Tell what is up."""
    if not lab.is_up():
        print(f"lab: not up ({lab.state})")
        return 3
    for container in lab.containers.values():
        print(f"container {container.ct}: {container.state().lower()}")
    print(instructions(lab))
    return 0


def shell(lab: Lab) -> int:
    """Become a shell in the container."""
    if not lab.is_up():
        raise LabError("not up; start it: python -m tests.lab up --detach")
    attach = ["lxc-attach", "-n", str(lab.ct), "--clear-env", "-v", f"TERM={os.environ.get('TERM', 'dumb')}"]
    os.execv(lab.pct_bin_dir / "lxc-attach", [*attach, "-v", "HOME=/root", "--", "bash"])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
