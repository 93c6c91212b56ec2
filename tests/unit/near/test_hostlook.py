"""The kernel's log asked for once, as `status` does."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.errors import GuestError, HostUnreachable
from orchestrator.observe.hostlook import kernel_events
from tests.builders import NOW
from tests.unit.near.test_hostways import TEXT, dmesg, entry


@dataclass(frozen=True)
class Said:
    stdout: bytes = b""
    stderr: bytes = b""
    exit_code: int | None = 0


class Host:
    becomes = False

    def __init__(self, *answers: Said | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[bool, tuple[str, ...]]] = []

    def ask_host(self, argv: tuple[str, ...], *, is_root: bool, timeout_s: float) -> Said:
        self.asked.append((is_root, argv))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


DENIED = Said(stderr=b"No journal files were opened due to insufficient permissions.\n", exit_code=1)


def test_the_journal_is_read_to_its_end_and_not_followed():
    host = Host(Said(entry(1) + entry(2, "vmbr0: port 2 entered disabled state") + entry(3)))
    assert [event.line.text for event in kernel_events(host, NOW)] == [TEXT, TEXT]
    ((_, argv),) = host.asked
    assert not {"-f", "--no-tail", "--follow"} & set(argv)


def test_a_journal_that_found_nothing_has_answered():
    host = Host(Said(exit_code=1))
    assert kernel_events(host, NOW) == ()
    assert len(host.asked) == 1


def test_where_the_journal_says_no_the_buffer_is_asked():
    host = Host(DENIED, Said(dmesg(1.0)))
    assert len(kernel_events(host, NOW)) == 1
    assert host.asked[1][1] == ("dmesg", "--time-format", "iso")


def test_a_host_that_does_not_answer_says_nothing():
    host = Host(HostUnreachable("gone"), GuestError("no dmesg"))
    assert kernel_events(host, NOW) == ()


def test_a_user_is_tried_after_root():
    host = Host(DENIED, DENIED, Said(entry(1)))
    host.becomes = True
    assert len(kernel_events(host, NOW)) == 1
    assert [is_root for is_root, _ in host.asked] == [True, True, False]
