"""When a message may go: once, not too many, not at night. Nothing is dropped silently."""

from __future__ import annotations

from datetime import datetime, time, timedelta, timezone

import pytest

from orchestrator.notify.message import Key, Kind, Message, Severity
from orchestrator.notify.policy import MAX_HELD, Policy, QuietHours, Rate

UTC = timezone.utc
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
NIGHT = QuietHours(time(22), time(7), Severity.URGENT, UTC)


def message(
    kind: Kind = Kind.DEATH,
    attempt: int = 1,
    run: str = "dflash",
    severity: Severity = Severity.ERROR,
    hour: int = 12,
) -> Message:
    when = NOON.replace(hour=hour)
    return Message(
        kind=kind, severity=severity, at=when, run=run, target="pve/200", attempt=attempt,
        title=f"{run} ({attempt}) {kind.value}", body="b", keys=(Key("pve/200", run, attempt, kind),),
    )  # fmt: skip


def test_the_same_thing_goes_once():
    policy = Policy(Rate())
    assert policy.admit(message(), NOON) is not None
    assert policy.admit(message(), NOON + timedelta(days=2)) is None
    assert policy.tick(NOON + timedelta(days=3)) is None, "a repetition is not held for a summary either"


@pytest.mark.parametrize("other", [message(attempt=2), message(run="b32"), message(kind=Kind.HANG)])
def test_another_attempt_run_or_kind_is_another_thing(other):
    policy = Policy(Rate())
    policy.admit(message(), NOON)
    assert policy.admit(other, NOON) is not None


def test_what_another_watch_told_is_not_told_again():
    assert Policy(Rate(), told=message().keys).admit(message(), NOON) is None


def test_more_than_the_rate_is_held_and_told_as_one_summary():
    policy = Policy(Rate(3, 600))
    went = [policy.admit(message(run=f"r{n}"), NOON + timedelta(seconds=n)) for n in range(8)]
    assert [each is not None for each in went] == [True] * 3 + [False] * 5
    assert policy.tick(NOON + timedelta(seconds=599)) is None
    summary = policy.tick(NOON + timedelta(seconds=600))
    assert summary is not None
    assert summary.kind is Kind.SUMMARY
    assert summary.title.startswith("5 messages since")
    assert all(f"r{n} (1) death" in summary.body for n in range(3, 8))
    assert len(summary.keys) == 5
    assert policy.tick(NOON + timedelta(seconds=601)) is None


def test_a_flood_of_lesser_messages_does_not_stand_before_an_urgent_one():
    policy = Policy(Rate(2, 600))
    for number in range(5):
        policy.admit(message(run=f"r{number}"), NOON)
    urgent = [message(Kind.NEEDS_PERSON, n, severity=Severity.URGENT) for n in range(3)]
    assert [policy.admit(each, NOON) is not None for each in urgent] == [True, True, False]


def test_room_comes_back_with_time():
    policy = Policy(Rate(1, 600))
    policy.admit(message(), NOON)
    assert policy.admit(message(attempt=2), NOON + timedelta(seconds=600)) is not None


def test_a_clock_that_was_set_back_holds_nothing_up():
    policy = Policy(Rate(1, 600))
    policy.admit(message(), NOON)
    assert policy.admit(message(attempt=2), NOON - timedelta(hours=5)) is not None


@pytest.mark.parametrize(("hour", "is_held"), [(21, False), (22, True), (3, True), (6, True), (7, False)])
def test_at_night_only_what_is_grave_passes(hour, is_held):
    now = NOON.replace(hour=hour)
    policy = Policy(Rate(), NIGHT)
    assert (policy.admit(message(), now) is None) is is_held
    assert policy.admit(message(kind=Kind.NEEDS_PERSON, severity=Severity.URGENT), now) is not None


def test_quiet_hours_may_be_by_day():
    quiet = QuietHours(time(12), time(13), Severity.ERROR, UTC)
    assert quiet.holds(NOON)
    assert not quiet.holds(NOON.replace(hour=13))


def test_quiet_hours_are_of_the_wall_clock_where_the_watch_runs():
    tokyo = timezone(timedelta(hours=9))
    quiet = QuietHours(time(22), time(7), Severity.URGENT, tokyo)
    assert quiet.holds(NOON.replace(hour=14)), "23:00 there"
    assert not quiet.holds(NOON.replace(hour=23)), "08:00 there"


def test_what_the_night_held_is_one_summary_in_the_morning_the_gravest_first():
    policy = Policy(Rate(), NIGHT)
    policy.admit(message(kind=Kind.RECOVERED, severity=Severity.INFO, hour=2), NOON.replace(hour=2))
    policy.admit(message(kind=Kind.HANG, hour=3), NOON.replace(hour=3))
    assert policy.tick(NOON.replace(hour=6)) is None
    summary = policy.tick(NOON.replace(hour=7))
    assert summary is not None
    assert summary.severity is Severity.ERROR
    assert summary.body.index("hang") < summary.body.index("recovered")


def test_one_that_was_held_alone_goes_as_it_is():
    policy = Policy(Rate(), NIGHT)
    policy.admit(message(), NOON.replace(hour=2))
    assert policy.tick(NOON.replace(hour=8)) == message()


def test_a_watch_that_ends_tells_what_it_holds():
    policy = Policy(Rate(), NIGHT)
    assert policy.flush(NOON) is None
    policy.admit(message(), NOON.replace(hour=2))
    assert policy.flush(NOON.replace(hour=3)) == message()
    assert policy.flush(NOON.replace(hour=3)) is None


def test_what_is_too_much_to_hold_is_counted():
    policy = Policy(Rate(1, 600))
    for number in range(MAX_HELD + 11):
        policy.admit(message(run=f"r{number}"), NOON)
    summary = policy.tick(NOON + timedelta(hours=1))
    assert summary is not None
    assert summary.title.startswith(f"{MAX_HELD + 10} messages")
    assert f"and {MAX_HELD + 10 - 29} more" in summary.body


def test_a_kind_may_be_made_graver_or_switched_off():
    policy = Policy(Rate(), NIGHT, {Kind.DEATH: Severity.URGENT, Kind.FINISHED: None})
    assert policy.admit(message(), NOON.replace(hour=2)) is not None
    assert policy.admit(message(kind=Kind.FINISHED), NOON) is None
    assert policy.flush(NOON) is None
