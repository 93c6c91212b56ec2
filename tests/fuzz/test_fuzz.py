"""A few seconds of what `python -m tests.fuzz` does for an hour."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.properties import check_attempt, check_bare_log, check_messages


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_no_log_and_no_readings_break_the_core_or_make_it_act_without_proof(data: st.DataObject):
    check_attempt(data)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_no_bare_log_breaks_its_judge(data: st.DataObject):
    check_bare_log(data)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_nothing_that_a_container_sends_breaks_the_core(data: st.DataObject):
    check_messages(data)
