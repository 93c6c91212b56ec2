"""diff: what is told, in which order, and what is left out."""

from typing import Any

import pytest

from orchestrator.compare import GROUPS, Attempt, choose, compare, group_of, progressed

ENVIRONMENT: dict[str, Any] = {
    "schema": 1,
    "at": "2026-11-29T19:31:31.000000Z",
    "python": "3.12.3",
    "argv": ["-m", "trainer", "attempts/1"],
    "platform": "Linux",
    "torch": "2.11.0+cu130",
    "cuda": "13.0",
    "torch_build": {"git": "aaaa", "cudnn": 91002, "nccl": "2.27.3"},
    "driver": "580.65.06",
    "gpus": [{"name": "NVIDIA H200", "capability": "9.0"}, {"name": "NVIDIA H200", "capability": "9.0"}],
    "packages": {"transformers": "5.17.0", "triton": "3.5.0", "nvidia-cublas": "13.0.1", "tomli": None},
    "wheels": {"torch": "00" * 32, "triton": "11" * 32},
    "compile_cache": {
        "present": True,
        "files": 12,
        "bytes": 9000,
        "sha256": "22" * 32,
        "artifacts": ["33" * 32],
    },
    "code": {"sha256": "44" * 32, "files": {"loss.py": "aa", "train.py": "bb"}, "git": None},
    "config": {"optim": {"lr": 6e-4}, "data": {"short_buckets": [128, 256]}},
    "overrides": [],
    "corpus_sha256": "c1",
    "target_sha256": "t1",
    "env_names": ["HOME", "PATH"],
}
SPEC: dict[str, Any] = {
    "schema": 1, "run": "r", "attempt": 1, "kind": "trainer", "argv": ["python3", "attempts/1/config.toml"],
    "cwd": "/trainers/aa", "config": "tiny", "config_toml": "a = 1\n", "overrides": {"optim.lr": "1e-4"},
    "gpus": [0, 1], "trainer_sha256": "aa" * 32, "env_names": ["HF_TOKEN"], "python": "python3", "inject": [],
    "created_at": "2026-11-29T19:31:31.000000Z", "stop_grace_s": 30.0, "own_checkpoint_dir": None,
}  # fmt: skip


def attempt(number: int = 1, environment: Any = ENVIRONMENT, spec: Any = SPEC, **other: Any) -> Attempt:
    return Attempt(run="r", number=number, environment=environment, spec=spec, **other)


def changed(document: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**document, **fields}


def keys(old: Attempt, new: Attempt) -> list[tuple[str, str]]:
    return [(change.group, change.key) for change in compare(old, new).changes]


def test_an_attempt_does_not_differ_from_itself_nor_from_one_that_only_came_later():
    later = changed(ENVIRONMENT, at="2027-01-01T00:00:00.000000Z", argv=["-m", "trainer", "attempts/2"])
    relaunched = changed(
        SPEC, attempt=2, argv=["python3", "attempts/2/config.toml"], created_at="2027", by="watch"
    )
    assert compare(attempt(), attempt()).changes == ()
    assert compare(attempt(), attempt(2, later, relaunched)).changes == ()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"torch": "2.13.0"}, [("torch build", "torch")]),
        ({"wheels": {"torch": "99" * 32, "triton": "11" * 32}}, [("torch build", "wheels.torch")]),
        ({"torch_build": {"git": "aaaa", "cudnn": 91003, "nccl": "2.27.3"}}, [("CUDA", "torch_build.cudnn")]),
        ({"driver": "590.1"}, [("driver", "driver")]),
        ({"driver": None}, [("driver", "driver")]),
        ({"gpus": ENVIRONMENT["gpus"][:1]}, [("GPUs", "gpus.1.capability"), ("GPUs", "gpus.1.name")]),
        ({"packages": {**ENVIRONMENT["packages"], "tomli": "2.0"}}, [("packages", "packages.tomli")]),
        (
            {"packages": {**ENVIRONMENT["packages"], "nvidia-cublas": "1"}},
            [("CUDA", "packages.nvidia-cublas")],
        ),
        (
            {"compile_cache": {"present": False, "files": 0, "bytes": 0, "sha256": None, "artifacts": []}},
            [("compile cache", f"compile_cache.{name}") for name in ("present", "artifacts")],
        ),
        (
            {"code": {"sha256": "55" * 32, "files": {"loss.py": "ff", "train.py": "bb"}}},
            [("code", "code.sha256"), ("code", "code.files.loss.py")],
        ),
        (
            {"config": {"optim": {"lr": 1e-3}, "data": {"short_buckets": [128, 256]}}},
            [("configuration", "config.optim.lr")],
        ),
        ({"corpus_sha256": "c2"}, [("data", "corpus_sha256")]),
        ({"env_names": ["PATH", "HOME"]}, []),
        (
            {"env_names": ["HOME", "PATH", "NCCL_P2P_DISABLE"]},
            [("environment names", "env_names.NCCL_P2P_DISABLE")],
        ),
        ({"kernel": "6.9"}, [("machine", "kernel")]),
        ({"of_a_newer_trainer": 1}, [("other", "of_a_newer_trainer")]),
    ],
)
def test_a_change_is_told_in_its_group_and_nothing_else(fields, told):
    assert keys(attempt(), attempt(2, changed(ENVIRONMENT, **fields))) == told


def test_the_most_suspicious_comes_first_with_both_values():
    new = changed(
        ENVIRONMENT, kernel="6.9", env_names=[], config={}, driver="1.0", torch="2.13.0", corpus_sha256="c2"
    )
    changes = compare(attempt(), attempt(2, new)).changes
    order = [GROUPS.index(change.group) for change in changes]
    assert order == sorted(order)
    assert (changes[0].key, changes[0].old, changes[0].new) == ("torch", "2.11.0+cu130", "2.13.0")
    assert changes[-1].group == "machine"


def test_without_an_environment_what_was_asked_for_is_compared_and_that_is_said():
    spec = changed(SPEC, config_toml="a = 2\n# a remark\n", overrides={"optim.lr": "1e-3"}, env_names=[])
    found = compare(attempt(), attempt(2, None, spec))
    assert [(change.group, change.key) for change in found.changes] == [
        ("configuration", "asked config_toml.a = 1"),
        ("configuration", "asked config_toml.a = 2"),
        ("configuration", "asked overrides.optim.lr"),
        ("environment names", "asked env_names.HF_TOKEN"),
    ]
    assert found.notes == ("r/2 left no environment.json: only what was asked for is compared",)
    assert compare(attempt(), attempt()).notes == ()


def test_a_change_that_the_trainer_told_better_is_not_told_twice():
    spec = changed(SPEC, overrides={"optim.lr": "1e-3"}, config_toml="b = 1\n")
    assert keys(attempt(), attempt(2, ENVIRONMENT, spec)) == []


def test_another_command_or_trainer_was_asked_for():
    spec = changed(SPEC, trainer_sha256="bb" * 32, gpus=[0], command=["train"], python="/opt/python")
    assert keys(attempt(), attempt(2, ENVIRONMENT, spec)) == [
        ("GPUs", "asked gpus"),
        ("code", "asked trainer_sha256"),
        ("configuration", "asked command"),
        ("machine", "asked python"),
    ]


def test_a_document_of_any_shape_is_compared_without_an_error():
    deep: Any = 1
    for _ in range(500):
        deep = {"x": deep, "y": [deep]} if isinstance(deep, int) else {"x": deep}
    odd = {
        "torch": ["2.11"],
        "gpus": "none",
        "packages": [],
        "config": deep,
        "env_names": [1, None, "PATH"],
        "": {},
    }
    assert compare(attempt(), attempt(2, odd)).changes
    assert compare(attempt(2, odd), attempt(2, odd)).changes == ()


def test_every_group_that_a_key_can_have_is_in_the_order():
    for key in ("environment.torch", "environment.x", "run.gpus", "run.config", "environment.config.a.b"):
        assert group_of(key) in GROUPS
    assert group_of("run.created_at") is None


def several(*good: bool) -> dict[int, Attempt]:
    return {n: attempt(n, made_progress=is_good) for n, is_good in enumerate(good, 1)}


@pytest.mark.parametrize(
    ("attempts", "newest", "chosen"),
    [
        (several(True, True, False, False), None, (2, 4)),
        (several(True, True, True), None, (2, 3)),
        (several(False, False), None, (1, 2)),
        (several(True, False, False, True), 3, (1, 3)),
        (several(True), None, None),
        (several(True, True), 1, None),
        (several(True, True), 7, None),
        ({}, None, None),
    ],
)
def test_the_last_good_attempt_is_set_against_the_newest(attempts, newest, chosen):
    found = choose(attempts, newest)
    assert (None if found is None else tuple(each.number for each in found)) == chosen


@pytest.mark.parametrize(
    ("heartbeat", "has_result", "is_good"),
    [
        (None, True, True),
        ({"step": 5, "resumed_from_step": None}, False, True),
        ({"step": 81, "resumed_from_step": 80}, False, True),
        ({"step": 80, "resumed_from_step": 80}, False, False),
        ({"step": 0}, False, False),
        ({"step": "many"}, False, False),
        (None, False, False),
    ],
)
def test_progress_is_a_step_of_its_own_or_the_end(heartbeat, has_result, is_good):
    assert progressed(heartbeat, has_result=has_result) is is_good
