"""A few seconds of what `python -m tests.fuzz` does for an hour."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.properties import check_attempt, check_bare_log


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_no_log_and_no_readings_break_the_core_or_make_it_act_without_proof(data: st.DataObject):
    check_attempt(data)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_no_bare_log_breaks_its_judge(data: st.DataObject):
    check_bare_log(data)
