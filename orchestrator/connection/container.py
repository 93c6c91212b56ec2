"""ContainerShell: a container, by `pct exec` over the shell of its host.

pct passes argv and stdin through untouched, and speaks only by text: its exit code is Perl's errno or 255,
which the command inside may have given as well. The texts are those of pve-container 6.1 and lxc 6.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.connection.shell import Result, Shell, Stdin, Stream, check_argv, printable
from orchestrator.errors import BlindError, ContainerUnavailable, GuestError, HostDenied

if TYPE_CHECKING:
    from collections.abc import Sequence

SUDOERS = "USER ALL=(root) NOPASSWD: /usr/sbin/pct"


class _Text(NamedTuple):
    """One text that means that nothing ran inside. `{what}` is the group of that name, `{ct}` the id."""

    pattern: re.Pattern[str]
    error: type[BlindError]
    message: str
    hint: str


def _text(pattern: str, error: type[BlindError], message: str, hint: str) -> _Text:
    return _Text(re.compile(pattern, re.MULTILINE), error, message, hint)


_GONE = "`pct list` there shows its containers; one that was migrated is on another host of the cluster"
_ROOT = f'log in as root, or set `become: [sudo, -n]` for the host; sudoers: "{SUDOERS}"'
_TEXTS = (
    _text(
        r"^Configuration file '(\S*/)?{ct}\.conf' does not exist",
        ContainerUnavailable,
        "no such container",
        _GONE,
    ),
    _text(
        r"^(Error: )?container '{ct}' not running!",
        ContainerUnavailable,
        "the container is stopped",
        "pct start {ct}",
    ),
    _text(r"^CT {ct} not running", ContainerUnavailable, "the container is stopped", "pct start {ct}"),
    _text(
        r"^CT is locked \((?P<what>[^)]*)\)",
        ContainerUnavailable,
        "the container is locked ({what})",
        "wait for it to end; `pct unlock {ct}` only if nothing is running",
    ),
    _text(
        r"^can't lock file '(?P<what>[^']*)' - got timeout",
        ContainerUnavailable,
        "the container's configuration is locked ({what})",
        "another task holds it; try again when it is done",
    ),
    _text(
        r"Failed to get (init pid|attach context)|Failed to attach to",
        ContainerUnavailable,
        "the container cannot be entered: it is starting or stopping",
        "`pct status {ct}` on the host says which; try again",
    ),
    _text(r"^vmid: (?P<what>.*)", ContainerUnavailable, "pct refused the id: {what}", "ids begin at 100"),
    _text(r"please run as root|ipcc_send_rec", HostDenied, "pct needs root there", _ROOT),
    _text(r"^sudo: (?P<what>.*(password|terminal|askpass).*)", HostDenied, "sudo said: {what}", _ROOT),
    _text(r"not (allowed to execute|in the sudoers file)", HostDenied, "sudo does not allow pct", _ROOT),
    _text(
        r"pct: ([Cc]ommand )?not found|Unknown command:? '?pct|command not found: pct",
        ContainerUnavailable,
        "there is no pct",
        "is it a Proxmox VE host? /usr/sbin must be on the PATH of a non-interactive login",
    ),
    _text(
        r"^Unknown option: (?P<what>.*)|^400 (unable to parse option|not enough arguments)",
        GuestError,
        "pct did not take the command line",
        "this pct is older or newer than those that dflashctl knows; please report it",
    ),
)
_NOT_STARTED = re.compile(r'lxc-attach: .*?: \d* ?(?P<why>[^:]*?) - Failed to exec "(?P<program>.*)"')
_LOCALE_START = re.compile(rb"^perl: warning: Setting locale failed\.")
_LOCALE_END = re.compile(rb"^perl: warning: Falling back to ")


class ContainerShell:
    """Runs an argv in a container; owns the host's shell and closes it."""

    def __init__(self, inner: Shell, ct: int, become: Sequence[str] | None = None) -> None:
        self.name = f"{inner.name}/{ct}"
        self.ct = ct
        self._inner = inner
        self._prefix = (*(become or ()), "pct", "exec", str(ct), "--")

    def argv(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return what runs on the host for `argv` in the container."""
        return (*self._prefix, *check_argv(argv))

    def run(self, argv: Sequence[str], *, stdin: Stdin = None, timeout_s: float) -> Result:
        """See `Shell.run`.

        Raises:
            ContainerUnavailable: Stopped, missing or locked.
            GuestError: The program is not in the container.
            HostDenied: pct or sudo refused us.
        """
        result = self._inner.run(self.argv(argv), stdin=stdin, timeout_s=timeout_s)
        stderr = drop_locale_warnings(result.stderr)
        if result.exit_code not in (0, None) and not result.stdout:
            explain(self.name, self.ct, result.exit_code, stderr.decode("utf-8", "replace"))
        return Result(
            argv=tuple(argv),
            exit_code=result.exit_code,
            stdout=result.stdout,
            stderr=stderr,
            duration_s=result.duration_s,
        )

    def stream(self, argv: Sequence[str]) -> Stream:
        """See `Shell.stream`; pct's refusals come from the first `read_line`."""
        return _ContainerStream(self.name, self.ct, self._inner.stream(self.argv(argv)))

    def close(self) -> None:
        """See `Shell.close`."""
        self._inner.close()


class _ContainerStream:
    """A host's stream that tells pct's words from the command's."""

    def __init__(self, name: str, ct: int, inner: Stream) -> None:
        self._name = name
        self._ct = ct
        self._inner = inner
        self._is_started = False

    def read_line(self, timeout_s: float) -> bytes | None:
        """See `Stream.read_line`."""
        line = self._inner.read_line(timeout_s)
        if line:
            self._is_started = True
        elif line == b"" and not self._is_started:
            code = self._inner.exit_code
            if code not in (0, None):
                explain(self._name, self._ct, code, self.stderr_tail())
        return line

    def send(self, data: bytes) -> None:
        """See `Stream.send`."""
        self._inner.send(data)

    def close_stdin(self) -> None:
        """See `Stream.close_stdin`."""
        self._inner.close_stdin()

    def stderr_tail(self) -> str:
        """See `Stream.stderr_tail`."""
        return drop_locale_warnings(self._inner.stderr_tail().encode()).decode("utf-8", "replace")

    @property
    def exit_code(self) -> int | None:
        """See `Stream.exit_code`."""
        return self._inner.exit_code

    def close(self) -> None:
        """See `Stream.close`."""
        self._inner.close()


def explain(name: str, ct: int, exit_code: int | None, stderr: str) -> None:
    """Return if the command itself ended so; pure.

    Raises:
        BlindError: It never ran, and why.
    """
    if exit_code in (126, 127) and (match := _NOT_STARTED.search(stderr)):
        raise not_started(name, match["program"], match["why"].strip())
    for text in _TEXTS:
        match = re.search(text.pattern.pattern.replace("{ct}", str(ct)), stderr, re.MULTILINE)
        if match is not None:
            what = printable(match.groupdict().get("what") or "")
            message = text.message.format(what=what, ct=ct)
            raise text.error(f"{name}: {message}", hint=text.hint.replace("{ct}", str(ct)))


def not_started(name: str, program: str, why: str) -> GuestError:
    """Return the error for a program that could not be started, with the fix."""
    if re.fullmatch(r"(.*/)?python3?(\.\d+)?", program):
        fix = "is guest_python right in the inventory?"
        if "/" not in program:
            fix = "`dflashctl provision` installs it (apt install python3)"
    else:
        fix = f"install {program.rsplit('/', 1)[-1]} there, or give its full path"
    program, why = printable(program), printable(why)
    return GuestError(f"{name}: {program} cannot be started: {why or 'not found'}", hint=fix)


def drop_locale_warnings(stderr: bytes) -> bytes:
    """Return stderr without what Perl says when ssh carried a locale that the host has not."""
    kept: list[bytes] = []
    is_inside = False
    for line in stderr.splitlines(keepends=True):
        if _LOCALE_START.match(line):
            is_inside = True
        if not is_inside:
            kept.append(line)
        elif _LOCALE_END.match(line):
            is_inside = False
    return b"".join(kept)
