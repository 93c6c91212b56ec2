"""What the doctor read, before anybody judges it. None: it was not read, or could not be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.types.seen import Blind, Reading

if TYPE_CHECKING:
    from orchestrator.observe import Holder

NOT_ASKED = Blind("it was not asked")


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """An error as the connection told it; `kind` is its stable name, such as `host_denied`."""

    kind: str
    message: str
    hint: str | None = None


@dataclass(frozen=True, kw_only=True)
class Hop:
    """The first step of the way, as this machine takes it."""

    name: str
    port: int
    via: str | None = None  # a jump host's name, or the ProxyCommand that is not looked into
    is_command: bool = False
    addresses: tuple[str, ...] = ()
    resolve_error: str | None = None
    tcp_s: float | None = None
    tcp_error: str | None = None
    banner: str | None = None


@dataclass(frozen=True, kw_only=True)
class Login:
    """How logging in went. `round_trip_s` is a command's, over the open connection."""

    user: str | None = None
    seconds: float | None = None
    round_trip_s: float | None = None
    trouble: Trouble | None = None


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """What the host said of itself."""

    uid: int | None = None
    user: str | None = None
    pct: str | None = None
    pct_version: str | None = None
    module: str | None = None  # version of the NVIDIA kernel module; None: none is loaded
    devices: tuple[str, ...] = ()  # /dev/nvidia*


@dataclass(frozen=True, kw_only=True)
class Container:
    """What `pct status` and `lxc-info` said."""

    status: str | None = None  # running, stopped
    lock: str | None = None
    is_frozen: bool | None = None
    memory_bytes: int | None = None  # its limit as Proxmox has it
    trouble: Trouble | None = None


@dataclass(frozen=True, kw_only=True)
class Entered:
    """What a plain shell inside said, which needs no Python."""

    seconds: float | None = None
    python: str | None = None  # None: there is none by the name
    tmux: str | None = None
    trouble: Trouble | None = None


@dataclass(frozen=True, kw_only=True)
class Node:
    """A device node inside."""

    name: str
    is_current: bool | None = None  # its number is that of the loaded driver
    error: str | None = None  # what opening it said


@dataclass(frozen=True, kw_only=True)
class Card:
    """A GPU as NVML tells it, and what computing on it came to."""

    index: int
    name: str | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None
    capability: tuple[int, int] | None = None
    pids: tuple[int, ...] = ()  # of the host
    recovery: str | None = None
    remap_failed: bool | None = None
    remap_pending: bool | None = None
    problem: str | None = None
    cuda: Reading[str] = NOT_ASKED  # Present(""): it computed; Present(why): it did not


@dataclass(frozen=True, kw_only=True)
class Torch:
    """What the trainer's Python said. `version` None: it has no torch, and `error` says why."""

    python: str | None = None
    version: str | None = None
    cuda: str | None = None
    hip: str | None = None
    arch: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()  # packages that the bundled trainer needs
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Inside:
    """What the guest said of the container."""

    uid: int | None = None
    locale: bool | None = None
    state_dir: str = ""
    free_bytes: int | None = None
    total_bytes: int | None = None
    shm_free_bytes: int | None = None
    shm_total_bytes: int | None = None
    has_shm: bool | None = None
    memory_limit_bytes: int | None = None  # None: no limit of its own, or unknown (`memory_told`)
    memory_free_bytes: int | None = None
    memory_told: bool = False
    oom_kills: int | None = None
    open_files: int | None = None  # the hard limits; -1: none
    processes: int | None = None
    now: float | None = None
    nodes: tuple[Node, ...] | None = None
    module: str | None = None
    library: str | None = None
    driver_cuda: tuple[int, int] | None = None  # the newest CUDA that the driver knows
    nvml_problem: str | None = None
    has_driver: bool | None = None
    cards: tuple[Card, ...] | None = None
    trainer_python: str | None = None  # that was asked: what was named, what `provision` made, or python3
    torch: Torch | None = None


@dataclass(frozen=True, kw_only=True)
class Skew:
    """The far clock less ours, and by how much that may be off."""

    seconds: float
    within_s: float


@dataclass(frozen=True, kw_only=True)
class Readings:
    """All of it. `hop` None: this machine itself; `ct` None: no container."""

    ct: int | None = None
    become: tuple[str, ...] = ()
    python: str = "python3"
    guest_python: str = "python3"
    wanted_gpus: tuple[int, ...] | None = None
    hop: Hop | None = None
    login: Login = Login()
    host: HostFacts | None = None
    container: Container | None = None
    entered: Entered | None = None
    inside: Inside | None = None
    inside_trouble: Trouble | None = None
    holders: Reading[tuple[Holder, ...]] = NOT_ASKED
    skew: Skew | None = None
