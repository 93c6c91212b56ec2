"""The near half of the wire."""

import io
import re
from typing import Any

import pytest

from orchestrator.connection import GuestClient, GuestFile
from orchestrator.connection.shell import Result
from orchestrator.errors import BlindError, GuestError, GuestRefused
from orchestrator.inventory import Target
from orchestrator.wire import Decoder, Encoder
from tests.unit.connection.fakes import FakeShell, result

GUEST = GuestFile(data=b"zip", sha256="ab" * 32)
PATH = f"/var/lib/dflashctl/guest/{GUEST.sha256}.pyz"
TARGET = Target(ct=200)


def lines(*messages: dict[str, Any]) -> bytes:
    encoder = Encoder()
    return b"".join(encoder.encode(message.pop("type"), message) for message in messages)


class Far:
    """The other side: whether the guest is there, and what it answers."""

    def __init__(self, *answers: Result, there: bool = True, push: Result | None = None) -> None:
        self.answers = list(answers)
        self.there = there
        self.push = push or result()
        self.stdin: list[bytes] = []
        self.shell = FakeShell(self.answer)
        self.client = GuestClient(self.shell, TARGET, guest=GUEST)

    def answer(self, argv: tuple[str, ...], stdin: bytes) -> Result:
        self.stdin.append(stdin)
        if argv[0] == "sha256sum":
            out = f"{GUEST.sha256}  {PATH}\n".encode()
            return result(0, out) if self.there else result(1, err=b"No such file")
        if argv[0] == "sh":
            self.there = self.push.is_success
            return self.push
        return self.answers.pop(0)

    @property
    def programs(self) -> list[str]:
        return [argv[0] for argv in self.shell.asked]


def test_the_argv_is_the_one_of_the_design():
    assert Far().client.argv("watch") == ("env", "LC_ALL=C.UTF-8", "python3", PATH, "watch")


def test_a_guest_that_is_there_is_not_sent_and_is_asked_for_once():
    far = Far(result(0, lines({"type": "a"})), result(0, lines({"type": "a"})))
    far.client.call("hello")
    far.client.call("hello")
    assert far.programs == ["sha256sum", "env", "env"]


def test_a_missing_guest_is_sent_over_stdin():
    far = Far(there=False)
    assert far.client.ensure() is True
    assert far.client.ensure() is False
    assert far.programs == ["sha256sum", "sh"]
    assert far.stdin[1] == b"zip"
    assert far.shell.asked[1][-2:] == ("/var/lib/dflashctl/guest", GUEST.sha256)


def test_a_guest_with_another_checksum_is_sent_again():
    far = Far()
    far.there = True
    far.shell.answer = lambda argv, stdin: result(0, b"00  x\n") if argv[0] == "sha256sum" else result()
    assert far.client.ensure() is True


def test_a_guest_that_was_cleaned_away_is_sent_again_and_asked_again():
    gone = result(2, err=b"python3: can't open file '/x.pyz': [Errno 2] No such file or directory\n")
    far = Far(result(0, lines({"type": "a"})), gone, result(0, lines({"type": "b"})))
    far.client.call("hello")
    far.there = False
    assert far.client.call("hello")[0]["type"] == "b"
    assert far.programs == ["sha256sum", "env", "env", "sha256sum", "sh", "env"]


def test_a_full_disk_refuses_the_guest():
    far = Far(there=False, push=result(1, err=b"cat: write error: No space left on device\n"))
    with pytest.raises(GuestRefused, match="no space for the guest in /var/lib/dflashctl/guest") as caught:
        far.client.ensure()
    assert caught.value.reason == "no_space"


def test_a_read_only_disk_is_blind_not_refused():
    far = Far(there=False, push=result(1, err=b"mkdir: cannot create directory: Read-only file system\n"))
    with pytest.raises(GuestError, match="Read-only file system; is the state directory"):
        far.client.ensure()


def test_a_request_is_one_line_and_names_the_state_directory():
    far = Far(result(0, lines({"type": "a", "x": 1}, {"type": "end"})))
    assert [message["type"] for message in far.client.call("look", {"run": "r"})] == ["a", "end"]
    sent = Decoder().decode(far.stdin[-1])
    assert (sent["type"], sent["run"], sent["state_dir"]) == ("look", "r", "/var/lib/dflashctl")


@pytest.mark.parametrize("payload", [b"x" * 200_000, io.BytesIO(b"x" * 200_000)])
def test_a_payload_follows_the_line_and_its_progress_is_told(payload):
    told: list[tuple[int, int]] = []
    far = Far(result(0, lines({"type": "installed"})))
    far.client.call("install", {}, payload=payload, size=200_000, progress=lambda *at: told.append(at))
    line, _, body = far.stdin[-1].partition(b"\n")
    assert Decoder().decode(line + b"\n")["type"] == "install"
    assert body == b"x" * 200_000
    assert told[-1] == (200_000, 200_000)
    assert sorted(told) == told


def test_a_refusal_carries_its_code_and_its_hint():
    error = {
        "type": "error",
        "code": "no_tmux",
        "message": "tmux is not installed",
        "hint": "apt install tmux",
    }
    far = Far(result(3, lines(error)))
    with pytest.raises(GuestRefused, match=r"10\.1\.2\.6: tmux is not installed; apt install tmux") as caught:
        far.client.call("start")
    assert caught.value.reason == "no_tmux"


PROVISION = "`dflashctl provision` installs it (apt install python3)"
NO_PYTHON = "env: \u2018python3\u2019: No such file or directory\n".encode()
BROKEN = [
    (
        result(127, err=NO_PYTHON),
        f"python3 cannot be started: No such file or directory; {re.escape(PROVISION)}",
    ),
    (result(127, err=b"env: 'python3': No such file or directory\n"), "apt install python3"),
    (result(127, err=b"env: /opt/python3: No such file or directory\n"), "guest_python"),
    (
        result(1, err=b"Traceback\nKeyError: 'x'\n"),
        "ended with exit code 1 and no whole answer; it said: KeyError: 'x'",
    ),
    (result(None), "an unknown exit code"),
    (result(0), "exit code 0 and no whole answer"),
    (result(0, b"Welcome to this host\n"), "not JSON"),
    (result(0, lines({"type": "a"}) + lines({"type": "b"})), "line 0 where 1 was due"),
    (result(0, lines({"type": "a"}).replace(b'"schema":1', b'"schema":2')), "schema 2"),
    (result(1, lines({"type": "a"}), b"boom\n"), "exit code 1"),
]


@pytest.mark.parametrize(("answer", "message"), BROKEN)
def test_what_is_not_the_protocol_is_blind(answer: Result, message: str):
    with pytest.raises(GuestError, match=message) as caught:
        Far(answer).client.call("hello")
    assert isinstance(caught.value, BlindError)


def test_a_home_is_expanded_only_on_this_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/me")
    here = GuestClient(FakeShell(lambda *_: result()), Target(state_dir="~/s"), guest=GUEST)
    there = GuestClient(FakeShell(lambda *_: result()), Target(state_dir="~/s", ct=200), guest=GUEST)
    assert (here.state_dir, there.state_dir) == ("/home/me/s", "~/s")


def test_a_stream_gives_messages_until_its_end():
    far = Far(result(0, lines({"type": "hello"}, {"type": "bye"})))
    stream = far.client.watch({"runs": None})
    got = [stream.read(1), stream.read(1)]
    assert [message and message["type"] for message in got] == ["hello", "bye"]
    assert stream.read(1) is None
    assert stream.is_ended
    assert stream.read(1) is None


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (result(0, b"motd\n"), "not JSON"),
        (result(0, lines({"type": "a"})[:-5]), "cut short"),
        (result(1, err=b"boom\n"), "exit code 1 and no whole answer; it said: boom"),
        (result(0), "no whole answer"),
        (result(0, lines({"type": "hello"})), "no whole answer"),
        (result(None, lines({"type": "a"})), "unknown exit code"),
    ],
)
def test_a_stream_that_is_not_the_protocol_is_blind(answer: Result, message: str):
    stream = Far(answer).client.watch()
    with pytest.raises(GuestError, match=message):
        [stream.read(1) for _ in range(3)]


def test_a_stream_that_failed_asks_for_the_guest_again():
    far = Far(result(2, err=b"can't open file\n"), result(0, lines({"type": "bye"})))
    stream = far.client.watch()
    with pytest.raises(GuestError):
        stream.read(1)
    far.client.watch()
    assert far.programs == ["sha256sum", "env", "sha256sum", "env"]


def test_a_refusal_in_a_stream_is_raised():
    stream = Far(result(3, lines({"type": "error", "code": "not_found", "message": "no run"}))).client.watch()
    with pytest.raises(GuestRefused, match="no run"):
        stream.read(1)


def test_a_stream_that_we_closed_ends_quietly():
    stream = Far(result(None, lines({"type": "hello"}))).client.watch()
    stream.close()
    assert [stream.read(1) and "x", stream.read(1)] == ["x", None]
    assert stream.is_ended


def test_a_hostile_guest_cannot_reach_the_terminal():
    error = {"type": "error", "code": "x", "message": "\x1b]0;owned\x07" + "a" * 5000, "hint": "\x1b[2J"}
    with pytest.raises(GuestRefused) as caught:
        Far(result(3, lines(error))).client.call("look")
    with pytest.raises(GuestError) as crashed:
        Far(result(1, err=b"\x1b[2Jboom\x9b\n")).client.call("look")
    for text in (str(caught.value), str(crashed.value)):
        assert text.isprintable()
        assert len(text) < 700
