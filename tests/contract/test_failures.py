"""Classify knows what the trainer says of its end; the trainer knows what the playbook changes."""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

import pytest

from orchestrator.classify import Limits, diagnose, title
from orchestrator.playbook import load, shipped
from orchestrator.types.failure import FailureClass
from orchestrator.types.seen import Absent, LastWords, Present
from orchestrator.types.snapshot import LogReading
from tests.builders import GONE, make_exit, make_snapshot
from trainer import errors
from trainer.config import Config

ENDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.TrainerError) and kind is not errors.TrainerError
]


def ended(code: int, words: LastWords | None) -> FailureClass | None:
    snapshot = make_snapshot(
        liveness=Present(GONE),
        exit=Present(make_exit(code)),
        last_words=Present(words) if words is not None else Absent(),
        log=LogReading(),
    )
    return diagnose(snapshot, Limits()).failure


@pytest.mark.parametrize("kind", [e.kind for e in ENDS if e.kind is not None])
def test_every_kind_of_the_trainer_is_a_class_of_its_own(kind: str):
    words = LastWords(exception="trainer.errors.Anything", message="m", kind=kind)
    assert ended(1, words) not in (None, FailureClass.PYTHON_EXCEPTION, FailureClass.UNKNOWN)


@pytest.mark.parametrize("end", [e for e in ENDS if e.exit_code != 1], ids=lambda e: e.__name__)
def test_every_exit_code_of_the_trainer_tells_the_same_as_its_last_words(end: type[errors.TrainerError]):
    words = LastWords(exception=f"trainer.errors.{end.__name__}", message="m", kind=end.kind)
    assert ended(end.exit_code, None) is ended(end.exit_code, words)


def keys(table: type[Any], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for name, kind in get_type_hints(table).items():
        is_table = isinstance(kind, type) and dataclasses.is_dataclass(kind)
        found |= keys(kind, f"{prefix}{name}.") if is_table else {f"{prefix}{name}"}
    return found


def test_the_shipped_ladders_change_only_keys_that_the_trainer_has():
    playbook = load(shipped())
    changed = {key for rule in playbook.rules.values() for rung in rule.ladder for key in rung.keys}
    assert {"loss.chunk_tokens", "data.anchors"} <= changed | set(playbook.allow) <= keys(Config)
    assert "data.batch_rows" in keys(Config)  # the README's example


@pytest.mark.parametrize("failure", FailureClass, ids=lambda f: f.value)
def test_every_class_has_a_title_a_person_can_read(failure: FailureClass):
    assert title(failure)[0].islower()
