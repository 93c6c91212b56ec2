"""Stacks in a sentence: both tools' forms, the main thread, and the rank that is elsewhere."""

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.classify.stacks import RankStack, main_frames, place, summarize

COLLECTIVE = """\
Thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/srv/trainer/parallel/failfast.py", line 90 in run

Current thread 0x00007f2 (most recent call first):
  File "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2806 in all_reduce
  File "/srv/trainer/parallel/group.py", line 47 in sum_over_drafters
  File "/srv/trainer/loop.py", line 120 in run
"""
READS = """\
Current thread 0x00007f2 (most recent call first):
  File "/srv/trainer/data/store.py", line 61 in read
  File "/srv/trainer/loop.py", line 118 in run
"""
SPY = """\
Python v3.11.2 (/usr/bin/python3.11)

Thread 41 (idle): "pt_autograd_0"
    run (threading.py:1)

Thread 40 (idle): "MainThread"
    wait (/usr/lib/python3.11/threading.py:324)
    sum_over_drafters (/srv/trainer/parallel/group.py:47)
    <module> (/srv/trainer/__main__.py:9)
"""


def ranks(*texts: str) -> list[RankStack]:
    return [RankStack(pid=100 + rank, rank=rank, text=text) for rank, text in enumerate(texts)]


def test_the_main_thread_is_the_last_of_faulthandler_s_and_the_named_one_of_py_spy_s():
    assert [frame.name for frame in main_frames(COLLECTIVE)] == ["all_reduce", "sum_over_drafters", "run"]
    assert [frame.name for frame in main_frames(SPY)] == ["wait", "sum_over_drafters", "<module>"]


def test_a_place_names_the_wait_and_the_program_s_own_line_that_led_to_it():
    assert place(main_frames(COLLECTIVE)) == "all_reduce, from sum_over_drafters (parallel/group.py:47)"
    assert place(main_frames(READS)) == "read (data/store.py:61)"
    assert place(main_frames("no stack at all")) == ""


def test_the_rank_that_is_elsewhere_is_named():
    told = summarize(ranks(COLLECTIVE, COLLECTIVE, READS, COLLECTIVE))
    assert told == (
        "ranks 0, 1, 3 in all_reduce, from sum_over_drafters (parallel/group.py:47); "
        "rank 2 in read (data/store.py:61). Rank 2 is where the others are not"
    )


def test_nobody_is_odd_where_all_wait_together_or_in_two_camps_or_are_two():
    assert "others" not in summarize(ranks(COLLECTIVE, COLLECTIVE, COLLECTIVE))
    assert "others" not in summarize(ranks(COLLECTIVE, COLLECTIVE, READS, READS))
    assert "others" not in summarize(ranks(COLLECTIVE, READS))


def test_who_gave_no_stack_is_said_and_makes_nobody_odd():
    told = summarize(ranks(COLLECTIVE, COLLECTIVE, READS, ""))
    assert "no stack of rank 3" in told
    assert "others" not in told


def test_eight_ranks_that_wait_together_are_one_part():
    assert summarize(ranks(*[COLLECTIVE] * 8)).startswith("ranks 0 to 7 in all_reduce")


@given(
    st.lists(st.text(alphabet=st.sampled_from('Thread 0x1f()"File, line:4in<>/\n'), max_size=300), max_size=9)
)
def test_any_text_gives_a_bounded_sentence(texts):
    assert len(summarize(ranks(*texts))) < 2000
