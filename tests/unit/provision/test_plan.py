"""From what was seen to what is done: each step fine, lacking or blocked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.provision.form import Provision
from orchestrator.provision.lock import parse_lock
from orchestrator.provision.plan import (
    Blocked,
    Fine,
    Lacking,
    Source,
    Wishes,
    installs,
    judge,
    must_rebuild,
    torch_index,
    venv_key,
)
from orchestrator.provision.seen import Seen, VenvSeen

BOOK = Provision.model_validate(
    {
        "steps": [
            {
                "name": "python",
                "why": "The guest runs by it.",
                "check": {"program": "python3", "at_least": "3.10", "module": "ensurepip"},
                "apt": ["python3", "python3-venv"],
            },
            {
                "name": "tmux",
                "why": "Runs live in it.",
                "check": {"program": "tmux", "at_least": "3.2"},
                "apt": ["tmux"],
            },
            {
                "name": "certs",
                "why": "For an index over https.",
                "apt": ["ca-certificates"],
            },
            {
                "name": "venv",
                "why": "The packages.",
                "venv": {"requirements": ["torch", "numpy>=1.26"], "lock": "a.lock", "imports": ["torch"]},
            },
            {"name": "trainer", "why": "The trainer itself.", "trainer": "bundled"},
            {
                "name": "own",
                "why": "A step of one's own.",
                "check": {"run": ["test", "-e", "/data"]},
                "run": ["mkdir", "/data"],
            },
        ]
    }
)
PYTHON, TMUX, CERTS, VENV, TRAINER, OWN = BOOK.steps
LOCK = parse_lock(
    'torch==2.13.0\nnumpy==2.2.6; python_version == "3.10"\nnumpy==2.4.6; python_version == "3.11"\n', "a"
)
WISHES = Wishes(source=Source(label="PyPI"), lock=LOCK, trainer="ab" * 32, state_dir="/s")
PACKAGES = {"torch": "2.13.0", "numpy": "2.4.6"}
assert VENV.venv is not None
READY = Seen(
    uid=0,
    has_apt=True,
    python="3.11.2",
    programs={"tmux": "tmux 3.3a"},
    modules=frozenset({"ensurepip"}),
    packages=frozenset({"ca-certificates"}),
    has_trainer=True,
    commands={"own": True},
)
KEY = venv_key(VENV.venv, READY, WISHES) or ""
assert KEY
READY = replace(READY, venvs={KEY: VenvSeen(packages=PACKAGES, now=PACKAGES)}, current=KEY)
BARE = Seen(uid=0, has_apt=True)
HOUSE = Source(
    label="wheelhouse x", wheels=("pip-26.3-py3-none-any.whl", "torch-2.13.0-cp311-cp311-linux_x86_64.whl")
)


def test_a_ready_container_needs_nothing():
    assert [type(judge(step, READY, WISHES)) for step in BOOK.steps] == [Fine] * 6


def test_a_bare_one_needs_every_step_and_each_says_what_it_does():
    verdicts = [judge(step, BARE, WISHES) for step in BOOK.steps]
    assert [type(verdict) for verdict in verdicts] == [Lacking] * 6
    assert [verdict.does for verdict in verdicts if isinstance(verdict, Lacking)] == [
        "apt-get install python3 python3-venv",
        "apt-get install tmux",
        "apt-get install ca-certificates",
        "make one with torch, numpy>=1.26 (PyPI)",
        "send it to /s/trainers",
        "run mkdir /data",
    ]


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({"python": None}, "there is no python3"),
        ({"modules": frozenset()}, "its Python has no ensurepip"),
        ({"programs": {}}, "there is no tmux"),
        ({"packages": frozenset()}, "ca-certificates not installed"),
        ({"has_trainer": False}, "abababababab is not there"),
        ({"commands": {"own": False}}, "`test -e /data` does not end with 0"),
        ({"current": None}, f"/s/venvs/{KEY} is not the one in use"),
        ({"venvs": {}}, "not there"),
        ({"venvs": {KEY: VenvSeen(packages=PACKAGES, now=None)}}, f"/s/venvs/{KEY}: its Python does not run"),
        (
            {"venvs": {KEY: VenvSeen(packages=PACKAGES, now={"torch": "2.13.0"})}},
            f"/s/venvs/{KEY}: numpy is not as it was installed",
        ),
    ],
)
def test_one_thing_that_is_lacking_is_one_step(change, seen):
    found = [judge(step, replace(READY, **change), WISHES) for step in BOOK.steps]
    lacking = [verdict for verdict in found if isinstance(verdict, Lacking)]
    assert lacking[0].seen == seen
    expected = 2 if change == {"python": None} else 1
    assert len(lacking) == expected, "without a Python the environment cannot be looked at either"


def test_what_somebody_added_to_the_environment_is_theirs():
    there = VenvSeen(packages=PACKAGES, now={**PACKAGES, "wandb": "1"})
    assert isinstance(judge(VENV, replace(READY, venvs={KEY: there}), WISHES), Fine)
    assert VENV.venv is not None
    assert not must_rebuild(VENV.venv, replace(READY, venvs={KEY: there}), WISHES)


@pytest.mark.parametrize(
    ("step", "change", "wish", "fix"),
    [
        (TMUX, {"programs": {"tmux": "tmux 2.8"}}, {}, "newer release"),
        (TMUX, {"programs": {}, "has_apt": False}, {}, "install there what Debian calls tmux"),
        (TMUX, {"programs": {}, "uid": 1000}, {}, "sudo apt-get install tmux"),
        (PYTHON, {"python": "3.9.2"}, {}, "newer"),
    ],
)
def test_what_apt_cannot_mend_is_blocked_with_the_remedy(step, change, wish, fix):
    verdict = judge(step, replace(READY, **change), replace(WISHES, **wish))
    assert isinstance(verdict, Blocked), verdict
    assert fix in verdict.fix


def test_a_wheelhouse_with_pip_needs_no_ensurepip():
    wishes = replace(WISHES, source=HOUSE)
    assert isinstance(judge(PYTHON, replace(READY, modules=frozenset()), wishes), Fine)
    assert isinstance(judge(PYTHON, replace(READY, modules=frozenset()), WISHES), Lacking)


def test_another_lock_source_or_python_is_another_environment():
    assert VENV.venv is not None
    keys = {
        venv_key(VENV.venv, READY, WISHES),
        venv_key(VENV.venv, replace(READY, python="3.13.1"), WISHES),
        venv_key(VENV.venv, READY, replace(WISHES, source=HOUSE)),
        venv_key(VENV.venv, READY, replace(WISHES, lock=parse_lock("torch==2.12.0\n", "a"))),
    }
    assert len(keys) == 4
    assert venv_key(VENV.venv, replace(READY, python="3.11.9"), WISHES) == KEY


def test_torch_has_its_own_index_and_brings_nothing_else_from_there():
    assert VENV.venv is not None
    own = Source(label="cpu", torch_index=torch_index("cpu"), index="https://mirror/simple")
    assert installs(VENV.venv, own) == [
        {"requirements": ["pip"], "index": "https://mirror/simple", "no_deps": False},
        {"requirements": ["torch"], "index": "https://download.pytorch.org/whl/cpu", "no_deps": True},
        {"requirements": ["torch", "numpy>=1.26"], "index": "https://mirror/simple", "no_deps": False},
    ]
    assert [call["requirements"] for call in installs(VENV.venv, HOUSE)] == [
        ["pip"],
        ["torch", "numpy>=1.26"],
    ]
    without = replace(HOUSE, wheels=HOUSE.wheels and HOUSE.wheels[1:])
    assert [call["requirements"] for call in installs(VENV.venv, without)] == [["torch", "numpy>=1.26"]]
