"""The way there, link by link: name, TCP, host key, login, root, pct, the container. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.doctor.findings import Verdict, bad, ok, skipped, unknown, warn

if TYPE_CHECKING:
    from orchestrator.doctor.readings import Readings, Trouble

SLOW_S = 3.0
_NO_ANSWER = ("command_timeout", "blind_error")
_REFUSALS = ("container_unavailable", "host_denied")
_NO_CT = ("no such container", "pct refused the id")


def _judged(trouble: Trouble, *, is_bad: bool) -> Verdict:
    return (bad if is_bad else unknown)(trouble.message, trouble.hint)


def name(read: Readings) -> Verdict:
    """Whether the host's name has an address."""
    hop = read.hop
    if hop is None:
        return ok("this machine itself, no ssh")
    if hop.is_command:
        return skipped(f"its ProxyCommand finds the way: {hop.via}")
    via = f"jump host {hop.name}: " if hop.via else ""
    if hop.resolve_error is not None:
        fix = "check the address, the DNS, or add the name to ~/.ssh/config or /etc/hosts"
        return bad(f"{via}{hop.name} does not resolve: {hop.resolve_error}", fix)
    if not hop.addresses:
        return unknown("the resolver did not answer in time")
    if hop.name in hop.addresses:
        return ok(f"{via}{hop.name}, an address")
    return ok(f"{via}{hop.name} is {', '.join(hop.addresses[:3])}")


def tcp(read: Readings) -> Verdict:
    """Whether the port answers, with an ssh banner."""
    hop = read.hop
    if hop is None:
        return skipped("this machine itself")
    if hop.is_command:
        return skipped("by ProxyCommand")
    if hop.tcp_error is not None:
        fix = "is the host up, sshd running there, the port right (--port), no firewall between?"
        return bad(f"port {hop.port}: {hop.tcp_error}", fix)
    if hop.tcp_s is None:
        return unknown(f"port {hop.port} was not tried")
    took = f"port {hop.port} in {hop.tcp_s * 1000:.0f} ms"
    if hop.banner is None:
        return warn(f"{took}, but no banner came", "sshd may be overloaded, or it is no sshd: --port")
    if not hop.banner.startswith("SSH-"):
        return bad(f"{took} says {hop.banner!r}, which is no sshd", "give the port of sshd: --port")
    return ok(f"{took}, {hop.banner}")


def host_key(read: Readings) -> Verdict:
    """Whether the host is who it was."""
    if read.hop is None:
        return skipped("this machine itself")
    trouble = read.login.trouble
    if trouble is None:
        return ok("known and unchanged")
    if trouble.kind == "host_key_refused":
        return bad(trouble.message, trouble.hint)
    if trouble.kind == "host_denied":
        return ok("known and unchanged")
    return unknown("the handshake did not come to it")


def login(read: Readings) -> Verdict:
    """Whether we are let in."""
    if read.hop is None:
        return skipped("this machine itself")
    made = read.login
    if made.trouble is not None:
        return _judged(made.trouble, is_bad=made.trouble.kind not in _NO_ANSWER)
    took = f" in {made.seconds:.1f} s" if made.seconds is not None else ""
    who = made.user or (read.host.user if read.host else None)
    return ok(f"as {who}{took}" if who else f"done{took}")


def root(read: Readings) -> Verdict:
    """Whether pct may be run."""
    host = read.host
    if host is None or host.uid is None:
        return unknown("the host did not say who we are there")
    trouble = read.container.trouble if read.container else None
    user = host.user or f"uid {host.uid}"
    line = f"{user} ALL=(root) NOPASSWD: /usr/sbin/pct"
    if host.uid == 0:
        return ok("root")
    how = " ".join(read.become)
    fix = f"log in as root, or set `become: [sudo, -n]` for the host; /etc/sudoers.d/dflashctl: {line}"
    if not how:
        return bad(f"{user}, and pct wants root", fix)
    if trouble is not None and trouble.kind == "host_denied":
        return bad(f"{user} by `{how}`: {trouble.message}", f"/etc/sudoers.d/dflashctl: {line}")
    if trouble is not None:
        return unknown(f"{user} by `{how}`, not proven: {trouble.message}")
    return ok(f"{user} by `{how}`")


def pct(read: Readings) -> Verdict:
    """Whether it is a Proxmox host, and which."""
    host = read.host
    if host is None:
        return unknown("the host did not say")
    trouble = read.container.trouble if read.container else None
    is_missing = trouble is not None and "there is no pct" in trouble.message
    if is_missing or (not host.pct and trouble is not None):
        fix = "is it the Proxmox host itself? /usr/sbin must be on the PATH of a non-interactive login"
        return bad("there is no pct", fix)
    version = f"pve-container {host.pct_version}" if host.pct_version else "version not told"
    return ok(f"{host.pct or 'pct'}, {version}")


def exists(read: Readings) -> Verdict:
    """Whether the container is on this host."""
    place = read.container
    if place is None:
        return unknown("the host was not asked")
    if place.trouble is None:
        return ok(f"CT {read.ct} is on this host")
    if any(words in place.trouble.message for words in _NO_CT):
        return bad(f"CT {read.ct} is not on this host", place.trouble.hint)
    return unknown(place.trouble.message, place.trouble.hint)


def running(read: Readings) -> Verdict:
    """Whether it runs."""
    place = read.container
    if place is None or place.status is None:
        return unknown("its status was not told")
    if place.status == "running":
        return ok("running")
    return bad(place.status, f"`pct start {read.ct}` on the host")


def unfrozen(read: Readings) -> Verdict:
    """Whether it is not held still."""
    place = read.container
    if place is None or place.is_frozen is None:
        return unknown("lxc-info did not say (it may want root)")
    if not place.is_frozen:
        return ok("not frozen")
    if place.lock:
        return bad(f"frozen by a {place.lock}", "it goes on by itself when that ends")
    return bad("frozen, and nothing in it answers", f"`lxc-unfreeze -n {read.ct}` on the host")


def unlocked(read: Readings) -> Verdict:
    """Whether nothing of Proxmox holds it."""
    place = read.container
    if place is None or place.status is None:
        return unknown("its lock was not told")
    if place.lock is None:
        return ok("not locked")
    fix = f"wait for it to end; `pct unlock {read.ct}` only if nothing is running"
    return warn(f"locked ({place.lock}): what runs goes on, no start of the container meanwhile", fix)


def enter(read: Readings) -> Verdict:
    """Whether a command runs inside."""
    entered = read.entered
    where = "in the container" if read.ct is not None else "there"
    if entered is None:
        return unknown(f"no command was tried {where}")
    if entered.trouble is not None:
        # A connection that is lost on the way says nothing of the container.
        return _judged(entered.trouble, is_bad=entered.trouble.kind in _REFUSALS)
    return ok(f"a command runs {where}")


def first_byte(read: Readings) -> Verdict:
    """How long each answer takes."""
    entered = read.entered
    if entered is None or entered.seconds is None:
        return unknown("not measured")
    parts = [f"{entered.seconds * 1000:.0f} ms"]
    if read.login.round_trip_s is not None and read.hop is not None:
        parts.append(f"{read.login.round_trip_s * 1000:.0f} ms of it to the host and back")
    seen = ", ".join(parts)
    if entered.seconds > SLOW_S:
        return warn(seen, "the host is loaded or far; a watch keeps one channel open and is not hurt by it")
    return ok(seen)
