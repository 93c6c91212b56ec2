"""pct's texts, told from the command's own."""

import pytest

from orchestrator.connection.container import ContainerShell, drop_locale_warnings
from orchestrator.connection.shell import Result
from orchestrator.errors import BlindError, ContainerUnavailable, GuestError, HostDenied
from tests.unit.connection.fakes import FakeShell, result

LOCALE = b"""\
perl: warning: Setting locale failed.
perl: warning: Please check that your locale settings:
\tLANGUAGE = (unset),
\tLC_ALL = "de_DE.UTF-8",
\tLANG = "en_US.UTF-8"
    are supported and installed on your system.
perl: warning: Falling back to the standard locale ("C").
"""


def run(answer: Result, ct: int = 200) -> Result:
    return ContainerShell(FakeShell(lambda *_: answer), ct).run(["prog"], timeout_s=1)


def test_the_argv_goes_behind_two_dashes():
    fake = FakeShell(lambda *_: result())
    ContainerShell(fake, 200, ("sudo", "-n")).run(["--help", "$x"], timeout_s=1)
    assert fake.asked == [("sudo", "-n", "pct", "exec", "200", "--", "--help", "$x")]


ATTACH = "lxc-attach: 200: ../src/lxc/attach.c: lxc_attach_run_command"
NAMED = [
    (
        "container '200' not running!\n",
        255,
        ContainerUnavailable,
        "200: the container is stopped; pct start 200",
    ),
    ("Error: container '200' not running!\n", 2, ContainerUnavailable, "stopped"),
    (
        "Configuration file 'nodes/pve/lxc/200.conf' does not exist\n",
        2,
        ContainerUnavailable,
        "no such container",
    ),
    ("CT is locked (backup)\n", 255, ContainerUnavailable, r"locked \(backup\)"),
    (
        "trying to acquire lock...\ncan't lock file '/run/lock/lxc/pve-config-200.lock' - got timeout\n",
        255,
        ContainerUnavailable,
        "configuration is locked",
    ),
    (
        "lxc-attach: 200: ../src/lxc/attach.c: 1: Failed to get init pid\n",
        1,
        ContainerUnavailable,
        "starting or",
    ),
    (
        "400 Parameter verification failed.\nvmid: type check failed\n",
        255,
        ContainerUnavailable,
        "refused the id",
    ),
    ("please run as root\n", 255, HostDenied, "needs root"),
    ("ipcc_send_rec[1] failed: Unknown error -1\n", 255, HostDenied, "become"),
    ("sudo: a password is required\n", 1, HostDenied, "a password is required"),
    ("bash: line 1: pct: command not found\n", 127, ContainerUnavailable, "there is no pct"),
    ("sh: 1: exec: pct: not found\n", 127, ContainerUnavailable, "Proxmox VE host"),
    ("fish: Unknown command: pct\n", 127, ContainerUnavailable, "there is no pct"),
    ("zsh:1: command not found: pct\n", 127, ContainerUnavailable, "there is no pct"),
    ("pct: Command not found.\n", 1, ContainerUnavailable, "there is no pct"),
    ("sudo: pct: command not found\n", 1, ContainerUnavailable, "there is no pct"),
    ("Unknown option: x\n400 unable to parse option\n", 255, GuestError, "did not take"),
    (
        f'{ATTACH}: 1845 No such file or directory - Failed to exec "python3"\n',
        127,
        GuestError,
        "python3 cannot be started: No such file or directory; `dflashctl provision` installs it",
    ),
    (
        f'{ATTACH}: 1845 Permission denied - Failed to exec "/x/y"\n',
        126,
        GuestError,
        "/x/y cannot be started: Permission denied; install y there",
    ),
]


@pytest.mark.parametrize(("stderr", "code", "error", "message"), NAMED)
def test_a_refusal_of_pct_is_told(stderr: str, code: int, error: type[BlindError], message: str):
    with pytest.raises(error, match=message) as caught:
        run(result(code, err=LOCALE + stderr.encode()))
    assert type(caught.value) is error
    assert str(caught.value).startswith("10.1.2.6/200: ")


@pytest.mark.parametrize(
    "ended",
    [
        result(1, err=b"CT 200 is fine\n"),
        result(255, err=b"boom\n"),
        result(0, err=b"container '200' not running!\n"),
        result(255, out=b"it ran\n", err=b"container '200' not running!\n"),
        result(255, err=b"container '201' not running!\n"),
        result(None, err=b"container '200' not running!\n"),
        result(2, err=b"Configuration file 'nodes/pve/lxc/2000.conf' does not exist\n"),
        result(1, err=b'lxc-attach: 200: x: 1 No such file - Failed to exec "x"\n'),
    ],
)
def test_what_the_command_itself_said_is_its_result(ended: Result):
    assert run(ended).stderr == ended.stderr


def test_perls_locale_warning_is_dropped_and_all_else_kept():
    assert drop_locale_warnings(b"a\n" + LOCALE + b"b") == b"a\nb"
    assert drop_locale_warnings(b"perl: warning: other\n") == b"perl: warning: other\n"
    assert run(result(0, err=LOCALE)).stderr == b""


def test_a_stream_tells_a_refusal_at_its_end():
    shell = ContainerShell(FakeShell(lambda *_: result(255, err=b"container '200' not running!\n")), 200)
    with pytest.raises(ContainerUnavailable, match="stopped"):
        shell.stream(["x"]).read_line(1)


def test_a_stream_that_spoke_ends_as_it_does():
    answer = result(255, out=b"line\n", err=b"container '200' not running!\n")
    stream = ContainerShell(FakeShell(lambda *_: answer), 200).stream(["x"])
    assert [stream.read_line(1), stream.read_line(1)] == [b"line\n", b""]
    assert stream.exit_code == 255
