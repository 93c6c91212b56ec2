"""Read the whole chain, as much at once as it allows: the near end, the host, the container."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.connection import GuestClient, build_guest
from orchestrator.connection.container import explain
from orchestrator.doctor import near, parse
from orchestrator.doctor.readings import (
    NOT_ASKED,
    Container,
    Entered,
    HostFacts,
    Inside,
    Login,
    Readings,
    Skew,
    Trouble,
)
from orchestrator.errors import BlindError, GuestRefused, OrchestratorError
from orchestrator.launch import DEFAULT_PYTHON
from orchestrator.terminal import one_line
from orchestrator.types.seen import Blind, Present, Reading

if TYPE_CHECKING:
    from orchestrator.clock import Clock
    from orchestrator.connection.shell import Result
    from orchestrator.observe import Holder
    from orchestrator.site import Site

LOGIN_S = 20.0
HOST_S = 10.0
ENTER_S = 10.0
CHECKUP_S = 45.0
_ROUND = ("true",)
_HOST = r"""
echo "uid $(id -u)"; echo "user $(id -un)"
PATH="$PATH:/usr/sbin:/sbin"  # a login that is not root's has them not; whether pct can be run is asked apart
echo "pct $(command -v pct)"
echo "pct-version $(dpkg-query -W -f '${Version}' pve-container 2>/dev/null)"
echo "module $(head -n 1 /proc/driver/nvidia/version 2>/dev/null)"
echo "devices $(cd /dev && ls -d nvidia* 2>/dev/null | tr '\n' ' ')"
"""
# $1: the guest's Python. No word of it needs one, so that its lack can be told.
_ENTER = r"""
echo "python $("$1" -c 'import platform; print(platform.python_version())' 2>/dev/null)"
echo "tmux $(tmux -V 2>/dev/null)"
"""


def collect(site: Site, clock: Clock) -> Readings:
    """Return all readings of a place; what could not be read is in them as that.

    Raises:
        ConfigError: The ssh config is not readable.
    """
    target = site.target
    read = Readings(
        ct=target.ct,
        become=target.become or (),
        python=target.python or DEFAULT_PYTHON,
        guest_python=target.guest_python,
        wanted_gpus=target.gpus,
    )
    pool = ThreadPoolExecutor(max_workers=8, thread_name_prefix="doctor")
    try:
        hop = pool.submit(near.hop_of, target)
        pool.submit(build_guest)  # it is packed while we log in
        login, host = _log_in(site, clock)
        read = replace(read, hop=hop.result(), login=login, host=host)
        if login.trouble is not None:
            return read
        return _beyond(site, read, pool, clock)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # at Ctrl-C whoever closes the site ends what waits


def _log_in(site: Site, clock: Clock) -> tuple[Login, HostFacts | None]:
    """Log in by a first command, and measure a second one over the open connection."""
    host = site.target.host
    started = clock.monotonic()
    try:
        said = site.ask_host(("sh", "-c", _HOST), is_root=False, timeout_s=LOGIN_S)
        took = clock.monotonic() - started
        trip = site.ask_host(_ROUND, is_root=False, timeout_s=HOST_S).duration_s
    except OrchestratorError as error:
        return Login(user=host.user if host else None, trouble=trouble_of(error)), None
    facts = parse.host(said.stdout.decode("utf-8", "replace"))
    return Login(user=facts.user, seconds=took, round_trip_s=trip), facts


def _beyond(site: Site, read: Readings, pool: ThreadPoolExecutor, clock: Clock) -> Readings:
    """Read what lies behind the login. A container that is frozen would hold whoever enters it."""
    place: Future[Container] | None = None
    info = ""
    if read.ct is not None:
        place = pool.submit(_status, site, read.ct)
        info = _lxc_info(site, read.ct)
    if "STOPPED" in info or "FROZEN" in info:
        return replace(read, container=_told(place, info))
    entering = pool.submit(_enter, site, read.guest_python)
    asking = pool.submit(_ask_guest, site, clock)
    container = _told(place, info)
    read = replace(read, container=container, entered=entering.result())
    inside, skew, trouble = asking.result()
    python = (inside.trainer_python if inside else None) or read.python
    read = replace(read, inside=inside, skew=skew, inside_trouble=trouble, python=python)
    return replace(read, holders=_holders(site, read))


def _told(place: Future[Container] | None, info: str) -> Container | None:
    if place is None:
        return None
    container = place.result()
    frozen = parse.container("", info).is_frozen
    return replace(container, is_frozen=frozen)


def _lxc_info(site: Site, ct: int) -> str:
    """Return what lxc-info says; nothing if it may not be asked. It is a hundred times as quick as pct."""
    try:
        said = site.ask_host(("lxc-info", "-n", str(ct), "-s"), is_root=True, timeout_s=HOST_S)
    except BlindError:
        return ""
    return said.stdout.decode("utf-8", "replace")


def _status(site: Site, ct: int) -> Container:
    try:
        said = site.ask_host(("pct", "status", str(ct), "--verbose"), is_root=True, timeout_s=HOST_S)
        if said.exit_code != 0:
            explain(site.host_key, ct, said.exit_code, said.stderr_text())
            return Container(trouble=_unclear("pct status", said))
    except BlindError as error:
        return Container(trouble=trouble_of(error))
    return parse.container(said.stdout.decode("utf-8", "replace"), "")


def _unclear(what: str, said: Result) -> Trouble:
    words = one_line(said.stderr_text(), 200).strip() or "without a word"
    return Trouble(kind="blind_error", message=f"{what} ended with code {said.exit_code}: {words}")


def _enter(site: Site, python: str) -> Entered:
    try:
        said = site.shell().run(("sh", "-c", _ENTER, "sh", python), timeout_s=ENTER_S)
    except OrchestratorError as error:
        return Entered(trouble=trouble_of(error))
    if said.exit_code != 0:
        return Entered(trouble=_unclear("a command inside", said))
    words = dict(
        line.split(" ", 1) for line in said.stdout.decode("utf-8", "replace").splitlines() if " " in line
    )
    return Entered(
        seconds=said.duration_s,
        python=one_line(words.get("python", ""), 40).strip() or None,
        tmux=one_line(words.get("tmux", ""), 40).strip().removeprefix("tmux ") or None,
    )


def _ask_guest(site: Site, clock: Clock) -> tuple[Inside | None, Skew | None, Trouble | None]:
    """Ask the guest, put there if it was not: one round trip for all that only it can see."""
    try:
        client = GuestClient(site.shell(), site.target)
        client.ensure()
        asked_at = clock.now().timestamp()
        (said,) = client.call("checkup", {"python": site.target.python}, timeout_s=CHECKUP_S)
        skew = parse.skew(said, asked_at, clock.now().timestamp())
    except (BlindError, GuestRefused) as error:
        return None, None, trouble_of(error)
    return parse.inside(said), skew, None


def _holders(site: Site, read: Readings) -> Reading[tuple[Holder, ...]]:
    """Ask the host who holds the GPUs, where something seems to."""
    cards = (read.inside.cards if read.inside else None) or ()
    if not any(card.pids or (card.used_bytes or 0) > 1 << 30 for card in cards):
        return NOT_ASKED
    if read.host is not None and read.host.uid != 0 and read.ct is None:
        return Blind("only root sees all processes")
    pids = sorted({pid for card in cards for pid in card.pids})
    try:
        return Present(site.gpu_holders(pids))
    except BlindError as error:
        return Blind(error.message)


def trouble_of(error: OrchestratorError) -> Trouble:
    """Return an error as a reading."""
    return Trouble(kind=error.code, message=one_line(error.message, 600), hint=error.hint)
