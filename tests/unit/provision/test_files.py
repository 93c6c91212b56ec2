"""The provision file and its lock: the shipped ones hold together, a mistake is told by line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from orchestrator.errors import ConfigError
from orchestrator.provision.files import load
from orchestrator.provision.lock import PYTHONS, canonical, parse_lock

if TYPE_CHECKING:
    from pathlib import Path

STEP = "- {name: a, why: A reason that is long enough., "


def test_the_shipped_steps_are_these_and_every_requirement_is_locked_for_every_python():
    book, lock = load(None)
    assert [step.name for step in book.steps] == ["python", "ensurepip", "tmux", "venv", "trainer"]
    (venv,) = (step.venv for step in book.steps if step.venv)
    assert lock is not None
    for python in PYTHONS[:5]:
        for each in (*venv.requirements, "pip", "setuptools", "sympy"):
            assert lock.version(each, python), f"{each} for {python}"


def test_the_locked_torch_is_one_that_the_trainer_knows():
    _, lock = load(None)
    assert lock is not None
    numbers = [int(part) for part in (lock.version("torch", "3.11") or "").split(".")[:2]]
    assert (2, 9) <= tuple(numbers) < (2, 15)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "apt: [tmux], chek: {program: a}}",
            r'book.yaml:2: steps.0.chek: unknown key .* did you mean "check"',
        ),
        ("apt: [tmux], trainer: bundled}", r"exactly one of apt, venv, trainer, run; it has apt, trainer"),
        ("apt: [-oDebug=1]}", r"'-oDebug=1' is no Debian package"),
        ("apt: [tmux], check: {at_least: '3'}}", r"at_least is a program's"),
        ("apt: [tmux], check: {}}", r"it checks nothing"),
        ("run: [mkdir, /a]}", r"run needs a check"),
        ("trainer: own}", r"bundled"),
        ("venv: {requirements: ['--index-url=x'], lock: a}}", r"no package's name"),
        ("venv: {requirements: [torch], lock: none.lock}}", r"none.lock: cannot be read: No such file"),
        ("apt: [tmux], why: again}", r"given twice"),
        ("apt: [tmux], check: {program: 'a; rm'}}", r"no name or version"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_its_place(tmp_path: Path, line, says):
    path = tmp_path / "book.yaml"
    path.write_text(f"steps:\n{STEP}{line}\n")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert re.search(says, caught.value.message), caught.value.message


def test_two_steps_of_one_name_are_refused(tmp_path: Path):
    path = tmp_path / "book.yaml"
    path.write_text(f"steps:\n{STEP}apt: [tmux]}}\n{STEP}apt: [zsh]}}\n")
    with pytest.raises(ConfigError, match="two steps are named a"):
        load(path)


def test_a_lock_has_exact_pins_only():
    lock = parse_lock('# why\nA_b==1.0\nc==2; python_version == "3.11"\n\n', "x.lock")
    assert (lock.version("a-B[extra]>=0", "3.10"), lock.version("c", "3.10"), lock.version("c", "3.11")) == (
        "1.0",
        None,
        "2",
    )
    assert canonical("Foo.Bar_baz[x]==1") == "foo-bar-baz"
    for line in ("torch>=2", "--index-url x", "torch", 'torch==2; sys_platform == "linux"'):
        with pytest.raises(ConfigError, match=r"x\.lock:1: .* is no pin"):
            parse_lock(line, "x.lock")
