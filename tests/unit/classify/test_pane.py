"""What the last lines of a pane say, and that they say no more than they show."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from orchestrator.classify import LogScanner, diagnose_pane
from orchestrator.types.failure import Diagnosis, FailureClass, RunState
from orchestrator.types.seen import ExitRecord

_F = FailureClass
TEN_LINES = """\
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", line 1775, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", line 1786, in _call_impl
    return forward_call(*args, **kwargs)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/root/draft/modeling.py", line 214, in forward
    hidden_states = self.self_attn(
                    ^^^^^^^^^^^^^^^
"""
SOURCES_ONLY = """\
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    hidden_states = self.self_attn(
                    ^^^^^^^^^^^^^^^
"""
HEAD = "Traceback (most recent call last):\n"
RACE = "RuntimeError: Detected that you are using FX to symbolically trace a dynamo-optimized function.\n"
DENSE = '  File "/venv/torch/_higher_order_ops/flex_attention.py", line 391, in sdpa_dense\n    out = f()\n'
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 284.25 GiB.\n"
STEPS = "step 10 | loss 2.31 | lr 1e-4\nstep 20 | loss 2.29 | lr 1e-4\n"
PROMPT = "root@gpu-host:/workspace# \n"
SMI = "| N/A   52C    P0    {watts}W / 700W |  75790MiB / 143771MiB |    {busy}%      Default |\n"


def record(code: int | None = None, signal: int | None = None) -> ExitRecord:
    then = datetime(2000, 1, 1, tzinfo=timezone.utc)
    return ExitRecord(code=code, signal=signal, at=then, duration_s=1.0)


def pane(text: str, exit_record: ExitRecord | None = None) -> Diagnosis:
    scanner = LogScanner(truncated=True)
    scanner.feed(text.encode(), 0)
    return diagnose_pane(scanner.reading(), is_dead=False, exit_record=exit_record)


@pytest.mark.parametrize("text", [TEN_LINES, SOURCES_ONLY], ids=["frames", "sources"])
@pytest.mark.parametrize("exit_record", [None, record(1)], ids=["unknown", "one"])
def test_ten_lines_that_end_in_attention_say_what_they_show_and_how_to_see_the_rest(
    text: str, exit_record: ExitRecord | None
):
    found = pane(text, exit_record)
    assert "a crash in the draft model's attention; the exception line is cut off" in found.summary
    assert "likely fx_trace_race or an attention OOM" in found.summary
    assert "dflashctl logs" in found.summary
    assert found.failure is _F.FX_TRACE_RACE
    assert _F.OOM_DENSE_FALLBACK in found.also
    assert found.confidence < 0.5


@pytest.mark.parametrize(
    ("rest", "failure"), [(RACE, _F.FX_TRACE_RACE), (DENSE + OOM, _F.OOM_DENSE_FALLBACK), (OOM, _F.OOM_CUDA)]
)
def test_with_the_exception_in_view_it_is_exactly_what_it_was(rest: str, failure: FailureClass):
    found = pane(HEAD + TEN_LINES + rest, record(1))
    assert found.failure is failure
    assert "cut off" not in found.summary
    assert found.confidence > 0.5


def test_a_cut_in_the_dense_path_says_so():
    found = pane(TEN_LINES + DENSE, record(1))
    assert found.failure is _F.OOM_DENSE_FALLBACK
    assert "cut off" in found.summary


def test_carets_of_another_module_are_no_attention():
    found = pane(SOURCES_ONLY.replace("self.self_attn(", "self.norm("), record(1))
    assert found.failure is _F.PYTHON_EXCEPTION
    assert "cut off" in found.summary


def test_a_pane_of_a_run_that_steps_is_no_death():
    found = pane(STEPS)
    assert (found.state, found.failure) == (RunState.UNSUPERVISED, None)


@pytest.mark.parametrize(
    "line",
    ["ssh: connect to host 192.0.2.1 port 22: Connection refused", "no sessions", "CT 200 not running"],
)
def test_the_words_of_the_way_there_say_nothing_about_the_run(line: str):
    found = pane(STEPS + line + "\n", record(255))
    assert found.state is RunState.BLIND
    assert "says nothing about the run" in found.summary


def test_a_crash_after_the_connection_came_back_is_a_crash():
    text = "ssh: connect to host 192.0.2.1 port 22: Connection refused\n" + HEAD + TEN_LINES + OOM
    assert pane(text, record(1)).failure is _F.OOM_CUDA


def test_spinning_gpus_are_a_hang_and_working_ones_are_not():
    assert pane(STEPS + SMI.format(watts=118, busy=100) * 4).failure is _F.HANG
    assert pane(STEPS + SMI.format(watts=610, busy=100) * 4).failure is None
    assert pane(STEPS + SMI.format(watts=118, busy=0) * 4).failure is None
    mixed = SMI.format(watts=118, busy=100) + SMI.format(watts=650, busy=99)
    assert pane(STEPS + mixed).failure is None


def test_an_exit_of_0_with_its_summary_is_finished():
    found = pane(STEPS + "training complete\n" + PROMPT, record(0))
    assert (found.state, found.failure) == (RunState.FINISHED, _F.COMPLETED)


def test_an_exit_of_0_over_lost_numbers_is_not():
    lost = "step 30 | loss nan | lr 1e-4\nstep 40 | loss nan | lr 1e-4\n"
    assert pane(STEPS + lost + "training complete\n", record(0)).failure is _F.NAN_LOSS


def test_an_exit_of_0_of_a_pipe_does_not_hide_a_traceback():
    assert pane(STEPS + HEAD + TEN_LINES + OOM, record(0)).failure is _F.OOM_CUDA


def test_a_thread_that_died_of_a_run_that_went_on_to_its_end_is_no_death():
    refused = "requests.exceptions.ConnectionError: [Errno 111] Connection refused\n"
    thread = (
        "Exception in thread NetworkThread:\n" + HEAD + '  File "/srv/net.py", line 3, in send\n' + refused
    )
    after = STEPS.replace("step 1", "step 3").replace("step 2", "step 4")
    found = pane(STEPS + thread + after + "training complete\n", record(0))
    assert (found.state, found.failure) == (RunState.FINISHED, _F.COMPLETED)
    for text, code in ((thread + after, 0), (thread + "training complete\n", 0), (thread + after, 1)):
        assert pane(STEPS + text, record(code)).state is RunState.DEAD


def test_the_line_of_a_victim_is_shown_where_nothing_else_is():
    line = "ConnectionResetError: [Errno 104] Connection reset by peer"
    found = pane(STEPS + HEAD + '  File "/srv/net.py", line 3, in send\n' + line + "\n", record(1))
    assert [each.text for each in found.evidence] == ["exit code 1", line]
    assert "says why" in found.summary
    assert "log says why" not in found.summary


def test_the_last_line_is_quoted_where_nothing_is_known_and_a_step_is_none():
    assert (
        'the last line: "no data.path is given"' in pane(STEPS + "no data.path is given\n", record(1)).summary
    )
    assert "last line:" not in pane(STEPS, record(1)).summary


def test_killed_is_most_likely_the_oom_killer_and_may_be_a_person():
    found = pane(STEPS + "Killed\n" + PROMPT, record(signal=9))
    assert found.failure is _F.OOM_HOST
    assert _F.SIGNAL_EXIT in found.also
    assert found.confidence <= 0.6


def test_lost_numbers_of_a_living_run_are_told_and_the_run_is_not_called_dead():
    found = pane("".join(f"step {n} | loss nan | lr 1e-4\n" for n in range(5)))
    assert (found.state, found.failure) == (RunState.UNSUPERVISED, _F.NAN_LOSS)


BIG = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.50 GiB. GPU 0 has a total capacity of "
    "21.99 GiB of which 6.62 GiB is free. Including non-PyTorch memory, this process has 15.35 GiB memory in "
    "use. Of the allocated memory 6.15 GiB is allocated by PyTorch, and 8.71 GiB is reserved by PyTorch but "
    "unallocated.\n"
)
GLOO = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting "
    "15000ms for recv operation to complete\n"
)
PEER = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Read error [127.0.0.1]:60213: "
    "Connection reset by peer\n"
)
TABLE = (
    "W1129 17:49:46.1 14660 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -6)\n"
)
INNER = (
    '  File "/venv/lib/python3.12/site-packages/torch/_higher_order_ops/flex_attention.py", line 9, in {}\n'
)


def broken(text: str, width: int) -> str:
    lines = (line[at : at + width] for line in text.splitlines() for at in range(0, max(len(line), 1), width))
    return "\n".join(lines) + "\n"


# Between, the edge leaves `213: ` of the port at a line's start, which is how srun marks a rank.
@pytest.mark.parametrize("width", [*range(70, 97), *range(101, 133)])
@pytest.mark.parametrize(
    ("text", "failure"),
    [
        (HEAD + INNER.format("forward") + "    f()\n" + BIG, _F.OOM_FRAGMENTATION),
        (HEAD + INNER.format("sdpa_dense") + "    f()\n" + BIG, _F.OOM_DENSE_FALLBACK),
        (HEAD + INNER.format("backward") + "    f()\n" + GLOO, _F.NCCL_TIMEOUT),
        (HEAD + INNER.format("backward") + "    f()\n" + PEER, _F.SIGNAL_EXIT),
    ],
    ids=["fragments", "dense", "timeout", "victim"],
)
def test_lines_that_a_pane_broke_are_understood_without_its_width(
    text: str, failure: FailureClass, width: int
):
    shown = broken(text, width) + (TABLE if failure is _F.SIGNAL_EXIT else "")
    assert pane(shown, record(1)).failure is failure


LAUNCHER = """\
  File "/venv/lib/python3.11/site-packages/torch/distributed/run.py", line 803, in run
    elastic_launch(
  File "/venv/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 135, in __call__
    return launch_agent(self._config, self._entrypoint, list(args))
"""


def test_a_launchers_own_frames_are_a_wrapper_and_no_cause():
    assert pane(HEAD + LAUNCHER).failure is _F.TORCHRUN_WRAPPER


def test_a_program_that_a_launcher_runs_in_its_own_process_speaks_for_itself():
    own = '  File "/run/train.py", line 4, in <module>\n    main()\n'
    assert pane(HEAD + LAUNCHER + own).failure is _F.PYTHON_EXCEPTION


def test_carets_of_a_traceback_that_was_read_whole_are_no_crash():
    read = HEAD + '  File "/run/a.py", line 4, in f\n    g()\n    ^^^^^\n'
    assert pane(f"--- Logging error ---\n{read}TypeError: no\n").failure is None


def test_carets_before_newer_steps_are_no_crash():
    assert pane("    self.self_attn(\n    ^^^^^^^^^^^^^^^\n" + STEPS).failure is None


def test_a_trial_that_ended_before_newer_steps_is_no_end():
    trial = "`Trainer.fit` stopped: `max_steps=3` reached.\n"
    assert pane(trial + STEPS).state is RunState.UNSUPERVISED
    assert pane(STEPS + trial + PROMPT).failure is _F.COMPLETED


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (["@  WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!  @", "Host key verification failed."], 1),
        (
            [
                "trying to acquire lock...",
                "can't lock file '/run/lock/lxc/pve-config-110.lock' - got timeout",
            ],
            1,
        ),
        (
            [
                "kex_exchange_identification: read: Connection reset by peer",
                "Connection reset by 1.2.3.4 port 22",
            ],
            0,
        ),
        (["free(): double free detected in tcache 2", "Aborted (core dumped)"], 0),
    ],
)
def test_what_is_shown_is_the_line_that_says_most(lines: list[str], shown: int):
    assert pane(STEPS + "\n".join(lines) + "\n" + PROMPT).evidence[0].text == lines[shown]
