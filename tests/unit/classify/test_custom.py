"""Rules of the user's own: what a death was, and never that there was one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.classify import CustomReader, Limits, LogScanner, diagnose
from orchestrator.classify.custom import MAX_LINE_BYTES
from orchestrator.decide import decide
from orchestrator.errors import PlaybookError
from orchestrator.playbook import Playbook, parse
from orchestrator.types.decision import ActKind, History
from orchestrator.types.failure import Diagnosis, FailureClass, RunState
from tests.transcripts.runner import NOW, snapshot

BOOK = """\
extends: default
custom:
  - name: lustre_stall
    regex: 'LustreError: .*timed out'
    class: io_error
    label: Lustre did not answer
    act: relaunch
    attempts: 3
    why: The servers come back by themselves.
  - name: license
    regex: '(?i)license (server|file) .*expired'
    act: call
    why: A person has to renew the licence.
"""
LINE = "LustreError: 11-0: lustre-OST0003 timed out\n"
LICENSE = "error: License server says: expired\n"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def steps(first: int, last: int, rank: str = "") -> str:
    return "".join(f"{rank}step {n} | loss 2.5\n" for n in range(first, last + 1))


def book(text: str = BOOK) -> Playbook:
    return parse(text, "book.yaml")


def look(log: str, rules: Playbook, *, chunk: int = 1 << 16, **data) -> Diagnosis:
    reader, raw = CustomReader(rules.custom), log.encode()
    for start in range(0, len(raw), chunk):
        reader.feed(raw[start : start + chunk], start)
    seen = snapshot({"log": log, "kind": "command", "exit": {"code": 1}, **data})
    return diagnose(replace(seen, log=replace(seen.log, custom=reader.matches())), Limits())


def act(diagnosis: Diagnosis, rules: Playbook) -> ActKind:
    return decide(diagnosis, rules, History(), snapshot({"exit": {"code": 1}}), NOW, 0.0).kind


def test_it_names_a_death_and_its_act_is_what_is_done():
    rules = book()
    found = look(steps(1, 9) + LINE + "giving up\n", rules)
    assert (found.state, found.failure) == (RunState.DEAD, FailureClass.IO_ERROR)
    assert found.evidence[0].offset == len(steps(1, 9))
    assert found.evidence[0].signature == "custom:lustre_stall"
    assert "Lustre did not answer" in found.summary
    assert found.fingerprint == "custom:lustre_stall"
    assert act(found, rules) is ActKind.RELAUNCH  # io_error itself calls a person
    assert rules.rule(FailureClass.IO_ERROR).act is ActKind.CALL


def test_without_a_class_the_catalogues_stays_and_the_act_is_the_rules():
    rules = book()
    found = look(LICENSE + OOM, rules)
    assert found.failure is FailureClass.OOM_CUDA
    assert found.evidence[1].text.startswith("torch.OutOfMemoryError")
    assert act(found, rules) is ActKind.CALL


def test_of_several_the_first_of_the_playbook_decides():
    assert look(LICENSE + LINE, book()).fingerprint == "custom:lustre_stall"


@pytest.mark.parametrize("liveness", ["alive", "unsupervised", "blind"])
def test_a_living_or_unseen_run_stays_what_it_is(liveness):
    log = LINE * 3
    rules = book()
    seen = snapshot({"log": log, "kind": "command", "liveness": liveness})
    reader = CustomReader(rules.custom)
    reader.feed(log.encode(), 0)
    matched = replace(seen, log=replace(seen.log, custom=reader.matches()))
    assert matched.log.custom
    assert diagnose(matched, Limits()) == diagnose(seen, Limits())


@pytest.mark.parametrize(
    ("data", "state"),
    [
        ({"exit": {"code": 0}}, RunState.FINISHED),
        ({"exit": {"code": 75}, "stop_by": "user"}, RunState.STOPPED),
        ({"exit": {"signal": 15}, "container_restarted": True}, RunState.DEAD),
    ],
)
def test_a_finished_or_stopped_run_and_a_restarted_container_are_no_matter_of_rules(data, state):
    found = look(LINE, book(), **data)
    assert found.state is state
    assert not any(e.signature == "custom:lustre_stall" for e in found.evidence)


def test_what_the_run_went_on_from_is_not_why_it_died():
    found = look(steps(1, 5) + LINE + steps(6, 9) + OOM, book())
    assert found.failure is FailureClass.OOM_CUDA
    again = look(steps(1, 5) + LINE + steps(6, 9) + LINE, book())
    assert again.fingerprint == "custom:lustre_stall"
    assert again.evidence[0].offset == len(steps(1, 5) + LINE + steps(6, 9))


@pytest.mark.parametrize("hidden", ["\x1b[31m", "\x1b[0m", "\x1b]8;;x\x07", "\x1bM", "\0"])
def test_colours_within_a_rules_own_text_hide_nothing(hidden):
    log = steps(1, 3) + LINE.replace("treErr", f"tre{hidden}Err") + "end\n"
    assert look(log, book()).fingerprint == "custom:lustre_stall"


@pytest.mark.parametrize("data", [{"exit": {"signal": 2}}, {"log": "KeyboardInterrupt\n"}])
def test_a_run_that_a_person_ended_is_not_brought_back_by_a_rule(data):
    log = steps(1, 3) + LINE + data.get("log", "")
    found = look(log, book(), exit=data.get("exit", {"code": 1}))
    assert found.failure is FailureClass.KILLED_BY_USER
    assert act(found, book()) is ActKind.NONE


@pytest.mark.parametrize("line", ["KeyboardInterrupt\n", "Received SIGTERM: preempted\n"])
def test_a_rule_about_that_very_line_or_about_a_schedulers_end_holds(line):
    text = BOOK.replace("LustreError: .*timed out", "KeyboardInterrupt|SIGTERM")
    assert look(steps(1, 3) + line, book(text)).fingerprint == "custom:lustre_stall"


def test_a_ranks_line_is_survived_by_that_rank_only():
    line = "[rank1]: " + LINE
    assert look(line + steps(1, 5, "[rank0]: "), book()).fingerprint == "custom:lustre_stall"
    assert look(line + steps(1, 5, "[rank1]: "), book()).fingerprint != "custom:lustre_stall"


def test_steps_that_start_over_or_are_not_finite_are_no_progress():
    assert look(LINE + "step 7 | loss 2.5\n" * 9, book()).fingerprint == "custom:lustre_stall"
    lost = "".join(f"step {n} | loss nan\n" for n in range(9))
    assert look(LINE + lost, book()).fingerprint == "custom:lustre_stall"


@settings(deadline=None)
@given(st.integers(1, 40), st.booleans())
def test_chunks_and_a_missing_end_do_not_matter(chunk, has_end):
    log = steps(1, 3) + "x" * (MAX_LINE_BYTES + 9) + "\n" + LINE + "end"
    log = log if has_end else log + "\n" + LICENSE.strip()
    assert look(log, book(), chunk=chunk) == look(log, book())
    assert look(log, book()).evidence[0].offset == log.index("LustreError")


def test_a_gap_ends_a_line_and_keeps_offsets():
    reader = CustomReader(book().custom)
    reader.feed(b"LustreError: half", 0)
    reader.feed(b" timed out\n" + LINE.encode(), 5000)
    (match,) = reader.matches()
    assert match.evidence.offset == 5000 + len(" timed out\n")


def test_a_line_without_end_is_read_to_its_bound_and_not_kept():
    reader = CustomReader(book().custom)
    for place in range(200):
        reader.feed(b"x" * 8192, place * 8192)
        assert len(reader._partial) <= MAX_LINE_BYTES
    reader.feed(b"LustreError: timed out", 200 * 8192)
    assert reader.matches() == ()  # it stands past the bound of that line


def test_without_rules_nothing_is_read():
    reader = CustomReader()
    reader.feed(LINE.encode(), 0)
    assert reader.matches() == ()
    assert LogScanner().reading().custom == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("regex: 'a(?=b)'", "book.yaml:4: custom.0.regex"),
        ("regex: '(a'", "a ( without its )"),
        ("regex: x\n    class: oom", "custom.0.class"),
        ("regex: x\n    class: healthy", "it is no failure of a run"),
        ("regex: x\n    rexeg: y", 'did you mean "regex"'),
    ],
)
def test_a_wrong_rule_is_told_with_file_line_and_value(text, says):
    body = (
        "extends: default\ncustom:\n  - name: x\n    "
        + text
        + "\n    act: call\n    why: A person has to look at it.\n"
    )
    with pytest.raises(PlaybookError) as caught:
        book(body)
    assert says in caught.value.message


def test_names_are_given_once_and_acts_are_checked_as_for_a_class():
    twice = BOOK.replace("name: license", "name: lustre_stall")
    with pytest.raises(
        PlaybookError, match=r"book\.yaml:10: custom\.1\.name: \"lustre_stall\" is given twice"
    ):
        book(twice)
    with pytest.raises(PlaybookError, match='needs "attempts"'):
        book(BOOK.replace("    attempts: 3\n", ""))
    with pytest.raises(PlaybookError, match=r"custom\.0\.name"):
        book(BOOK.replace("name: lustre_stall", "name: Lustre Stall"))
