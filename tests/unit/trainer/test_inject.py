import pytest

from trainer.errors import ConfigInvalid
from trainer.heartbeat import Phase
from trainer.inject import Failure, Injection, due, parse


@pytest.mark.parametrize("failure", list(Failure))
def test_every_class_is_read_with_its_step(failure):
    assert parse(f"{failure.value}@12") == Injection(failure, 12, None, 0, always=False)


def test_a_phase_and_a_rank_are_read():
    assert parse("sigkill@warmup:3!") == Injection(Failure.SIGKILL, None, Phase.WARMUP, 3, always=True)


def test_an_exclamation_mark_means_every_attempt():
    assert parse("nan@3!").always


@pytest.mark.parametrize(
    "spec",
    ["nan", "nan@", "nan@0", "nan@-1", "nan@x", "@3", "nan@3?", "nan@3:", "nan@3:x", "nan@dinner", "nan@3\n"],
)
def test_another_form_is_refused_with_the_form(spec):
    with pytest.raises(ConfigInvalid, match=r"CLASS@STEP"):
        parse(spec)


def test_an_unknown_class_is_refused_with_the_known_ones():
    with pytest.raises(ConfigInvalid, match=r"'flood'.*fx-trace.*hang"):
        parse("flood@3")


ONCE, ALWAYS = parse("nan@3"), parse("exit@4!")


def test_the_first_attempt_gets_all():
    assert due([ONCE, ALWAYS], {"DFLASHCTL_ATTEMPT": "1"}) == [ONCE, ALWAYS]


def test_an_attempt_started_by_hand_gets_all():
    assert due([ONCE, ALWAYS], {}) == [ONCE, ALWAYS]


def test_a_later_attempt_gets_only_those_marked_so():
    assert due([ONCE, ALWAYS], {"DFLASHCTL_ATTEMPT": "2"}) == [ALWAYS]
