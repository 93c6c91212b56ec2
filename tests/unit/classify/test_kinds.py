"""Every kind of text that a class is known by is given that class, and scary words of a living run none."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.classify import LogScanner, diagnose_pane
from orchestrator.classify.classes import Domain, domain
from orchestrator.types.failure import Diagnosis, FailureClass, RunState
from orchestrator.types.seen import ExitRecord

KINDS: dict[str, list[dict[str, Any]]] = yaml.safe_load(
    (Path(__file__).parent / "kinds.yaml").read_text(encoding="utf-8")
)
HEALTHY = [case["text"] for case in KINDS["healthy"]]
FAILING = [(name, case) for name, cases in KINDS.items() if name != "healthy" for case in cases]
IDS = [f"{name}-{number}" for number, (name, _) in enumerate(FAILING)]
HEAD = 'Traceback (most recent call last):\n  File "/run/train.py", line 88, in <module>\n    main()\n'


def text_of(case: dict[str, Any]) -> str:
    return (HEAD if case.get("raised") else "") + str(case["text"])


def steps(first: int, last: int) -> str:
    return "".join(f"step {step} | loss {9 - step / 100:.2f} | lr 1e-4\n" for step in range(first, last, 10))


def pane(text: str, status: int | None = None) -> Diagnosis:
    scanner = LogScanner(truncated=True)
    scanner.feed(text.encode(), 0)
    record = None
    if status is not None:
        signal = status - 128 if 128 < status < 193 else None
        code = None if signal is not None else status
        then = datetime(2000, 1, 1, tzinfo=timezone.utc)
        record = ExitRecord(code=code, signal=signal, at=then, duration_s=1.0)
    return diagnose_pane(scanner.reading(), is_dead=False, exit_record=record)


@pytest.mark.parametrize(("name", "case"), FAILING, ids=IDS)
def test_each_kind_of_text_is_given_its_class(name: str, case: dict[str, Any]):
    found = pane(text_of(case), case["exit"])
    assert found.failure is FailureClass(name), found.summary
    is_transport = domain(FailureClass(name)) is Domain.TRANSPORT
    assert (found.state is RunState.BLIND) is is_transport


# Of another rank than the one whose steps are seen, progress proves nothing; nor of a race of threads.
SURVIVABLE = [
    case for name, case in FAILING if not case["text"].startswith("[rank") and name != "fx_trace_race"
]


@pytest.mark.parametrize("case", SURVIVABLE, ids=range(len(SURVIVABLE)))
def test_a_run_that_went_on_got_over_it(case: dict[str, Any]):
    found = pane(steps(0, 200) + text_of(case) + steps(200, 400))
    allowed = {FailureClass.RECOMPILE_LIMIT, FailureClass.CUDA_INIT}  # warned of before it comes
    assert found.failure is None or found.failure in allowed, found.summary
    assert found.state in (RunState.UNSUPERVISED, RunState.HEALTHY)


@pytest.mark.parametrize("line", HEALTHY)
@pytest.mark.parametrize("before", ["", steps(0, 50)], ids=["first", "between"])
def test_scary_words_of_a_run_that_goes_on_mean_nothing(line: str, before: str):
    found = pane(f"{before}{line}{steps(50, 100)}")
    assert found.failure is None, found.summary


@pytest.mark.parametrize("line", HEALTHY)
def test_the_last_line_of_a_living_pane_proves_no_end(line: str):
    assert pane(f"{steps(0, 50)}{line}").state is not RunState.DEAD


@given(st.lists(st.sampled_from(HEALTHY), max_size=12), st.integers(0, 10))
def test_no_mixture_of_scary_words_is_an_alarm(lines: list[str], at: int):
    text = "".join(f"{line}{steps(10 * place, 10 * place + 10)}" for place, line in enumerate(lines, at))
    found = pane(text)
    assert found.failure is None, found.summary
