"""Who holds a GPU: NVML in a container gives process ids of the host, and only the host can name them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from orchestrator.masking import Masker

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_PIDS = 64
MAX_COMMAND = 120
_TIMEOUT_S = 15.0
# Without ids (the driver hides those of other containers) whoever has a GPU's device open is named.
_SCRIPT = r"""
[ $# -gt 0 ] || set -- $(find /proc/[0-9]*/fd -maxdepth 1 -lname '/dev/nvidia[0-9]*' 2>/dev/null |
  cut -d/ -f3 | sort -un | head -n 64)
for p in "$@"; do
  [ -r "/proc/$p/status" ] || continue
  echo "pid $p"
  sed -n 's/^\(NSpid\|State\):[[:space:]]*/\1 /p' "/proc/$p/status"
  printf 'cgroup '; tr '\n' ' ' < "/proc/$p/cgroup"; echo
  printf 'owner '; stat -c %U "/proc/$p"
  printf 'command '; tr '\000\n' '  ' < "/proc/$p/cmdline" | head -c 500; echo
  printf 'run '; tr '\000' '\n' 2>/dev/null < "/proc/$p/environ" | sed -n 's/^DFLASHCTL_RUN=//p' | head -n 1
  echo
done
"""
_CONTAINER = re.compile(r"/lxc(?:\.payload)?[./](\d+)(?=[/ ]|$)")


class _Result(Protocol):
    @property
    def stdout(self) -> bytes: ...


class _Shell(Protocol):
    def run(self, argv: tuple[str, ...], *, timeout_s: float) -> _Result: ...


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process that holds a GPU. `pid` is the host's, `inner_pid` its id in container `ct`."""

    pid: int
    command: str
    owner: str
    ct: int | None = None
    inner_pid: int | None = None
    run: str | None = None  # of dflashctl, by its environment
    is_stuck: bool = False  # in the kernel, where no signal reaches it

    @property
    def text(self) -> str:
        """Who it is, for people."""
        where = f", pid {self.inner_pid} in container {self.ct}" if self.ct is not None else ""
        whose = f", of run {self.run}" if self.run else ""
        return f"{self.command or '?'} (host pid {self.pid}{where}, user {self.owner or '?'}{whose})"

    def remedy(self, ct: int | None) -> str:
        """What a person may type; `ct` is the container of the run that waits."""
        if self.is_stuck:
            return "it waits in the kernel, and only a reboot of the host ends it"
        if self.run and self.ct == ct:
            return f"`dflashctl stop {shlex.quote(self.run)}` would end it"
        if self.ct is not None and self.inner_pid is not None:
            return f"`pct exec {self.ct} -- kill {self.inner_pid}` on the host would end it"
        return f"`kill {self.pid}` on the host would end it"


def gpu_holders(shell: _Shell, pids: Sequence[int], become: Sequence[str] = ()) -> tuple[Holder, ...]:
    """Return who the processes are, as the host tells it; without ids, who has a GPU's device open.

    Raises:
        BlindError: The host could not be asked.
    """
    argv = (*become, "sh", "-c", _SCRIPT, "sh", *map(str, pids[:MAX_PIDS]))
    return parse(shell.run(argv, timeout_s=_TIMEOUT_S).stdout.decode("utf-8", "replace"))


def parse(text: str) -> tuple[Holder, ...]:
    """Return the processes that the script told of."""
    found = []
    for part in re.split(r"^(?=pid \d+$)", text, flags=re.MULTILINE):
        fields = dict(line.split(" ", 1) for line in part.splitlines() if " " in line)
        if not fields.get("pid", "").isdigit():
            continue
        inside = _CONTAINER.search(fields.get("cgroup", ""))
        numbers = [int(word) for word in fields.get("NSpid", "").split() if word.isdigit()]
        found.append(
            Holder(
                pid=int(fields["pid"]),
                command=_short(fields.get("command", "")),
                owner=fields.get("owner", "").strip(),
                ct=int(inside[1]) if inside else None,
                inner_pid=numbers[-1] if inside and numbers else None,
                run=fields.get("run", "").strip() or None,
                is_stuck=fields.get("State", "").startswith("D"),
            )
        )
    return tuple(found)


def _short(command: str) -> str:
    text = Masker().text(" ".join(command.split()))
    return text if len(text) <= MAX_COMMAND else f"{text[: MAX_COMMAND - 3]}..."


def told(holders: Sequence[Holder], ct: int | None) -> str:
    """Return a sentence about all of them, each with what would end it; empty if the host names nobody."""
    return "; ".join(f"held by {each.text}: {each.remedy(ct)}" for each in holders)
