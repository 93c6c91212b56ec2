"""The playbook's file: what it may say, and what is said about what it may not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator.errors import Exit, PlaybookError
from orchestrator.playbook import Bounds, load, parse, shipped
from orchestrator.types.decision import ActKind
from orchestrator.types.failure import FailureClass

if TYPE_CHECKING:
    from pathlib import Path

RULE = "rules:\n  hang:\n    act: relaunch\n    attempts: 1\n    why: A deadlock does not end by itself.\n"

LADDER = """rules:
  hang:
    act: relaunch_with
    why: A deadlock does not end by itself.
    ladder: [{{why: Something else may not., {}}}]
"""


def own(text: str, name: str = "mine.yaml") -> str:
    with pytest.raises(PlaybookError) as caught:
        parse(f"extends: default\n{text}", name)
    assert caught.value.exit_code is Exit.USAGE
    return str(caught.value)


def test_the_shipped_playbook_has_a_rule_and_a_reason_for_every_class():
    playbook = load(shipped())
    assert set(playbook.rules) == set(FailureClass)
    for rule in playbook.rules.values():
        assert rule.why.endswith(".")
        assert len(rule.why) > 30


def test_the_shipped_playbook_never_relaunches_what_is_over_or_alive():
    playbook = load(shipped())
    for failure in (FailureClass.COMPLETED, FailureClass.HEALTHY, FailureClass.KILLED_BY_USER):
        assert playbook.rule(failure).act is ActKind.NONE


def test_the_shipped_playbook_never_repeats_a_dense_fallback_as_it_was():
    assert load(shipped()).rule(FailureClass.OOM_DENSE_FALLBACK).act is ActKind.CALL


def test_the_shipped_playbook_has_the_documented_waits():
    assert load(shipped()).backoff_s == (15, 30, 60, 120, 300, 600)


def test_one_rule_and_one_limit_may_be_overridden():
    base = load(shipped())
    mine = parse(f"extends: default\nlimits: {{train: 2m}}\ngpu_floor_bytes: 512 MiB\n{RULE}", "mine.yaml")
    assert mine.rule(FailureClass.HANG).attempts == 1
    assert mine.rule(FailureClass.NAN_LOSS) == base.rule(FailureClass.NAN_LOSS)
    assert (mine.limits.train_s, mine.limits.eval_s) == (120, base.limits.eval_s)
    assert mine.gpu_floor_bytes == 512 << 20
    assert mine.source == "mine.yaml"


def test_no_silence_is_a_hang_by_the_shipped_playbook_and_one_may_be_named():
    assert load(shipped()).limits.silence_s is None
    mine = parse("extends: default\nlimits: {silence: 1h30m}\n", "mine.yaml")
    assert (mine.limits.silence_s, mine.limits.train_s) == (5400, load(shipped()).limits.train_s)
    assert mine.limits_for(2.0).silence_s == 5400


def test_a_ladder_keeps_its_order_and_its_words():
    text = """
rules:
  oom_cuda:
    act: relaunch_with
    why: The GPU was full, and less may fit.
    backoff: [1s]
    ladder:
      - why: Half the windows in a step.
        set: {b.two: 2, a.flag: false, c.text: word, d.rate: 0.5}
"""
    rule = parse(f"extends: default\n{text}", "mine.yaml").rule(FailureClass.OOM_CUDA)
    assert rule.ladder[0].changes == (
        ("b.two", "2"),
        ("a.flag", "false"),
        ("c.text", "word"),
        ("d.rate", "0.5"),
    )
    assert (rule.attempts, rule.backoff_s) == (1, (1.0,))


def test_a_shipped_rule_that_does_nothing_says_that_and_forbids_a_person_nothing():
    idle = [rule for rule in load(shipped()).rules.values() if rule.act is ActKind.NONE]
    assert len(idle) == 5
    assert [rule.why for rule in idle if not rule.why.startswith("Nothing to do, for ")] == []


def test_a_playbook_without_extends_must_have_every_rule():
    with pytest.raises(
        PlaybookError, match=r"mine.yaml:1: rules: no rule for fx_trace_race, .*extends: default"
    ):
        parse(RULE, "mine.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("backof: [1s]\n", 'mine.yaml:2: backof: unknown key with the value ["1s"]; did you mean "backoff"?'),
        ("backoff: [5]\n", "mine.yaml:2: backoff.0: 5 is not allowed: write a number and a unit"),
        ("backoff: []\n", "mine.yaml:2: backoff: [] is not allowed"),
        ("limits: {train: 5x}\n", 'mine.yaml:2: limits.train: "5x" is not allowed'),
        ("limits: {silence: 0s}\n", 'mine.yaml:2: limits.silence: "0s" is not allowed'),
        ("limits: {silence: 30}\n", "mine.yaml:2: limits.silence: 30 is not allowed"),
        ("limits: {quiet: 30m}\n", "mine.yaml:2: limits.quiet: unknown key"),
        ("jitter: 2\n", "mine.yaml:2: jitter: 2 is not allowed"),
        ("max_attempts_per_day: 0\n", "mine.yaml:2: max_attempts_per_day: 0 is not allowed"),
        ("max_attempts_per_day: true\n", "mine.yaml:2: max_attempts_per_day: true is not allowed"),
        ("gpu_floor_bytes: lots\n", 'mine.yaml:2: gpu_floor_bytes: "lots" is not allowed'),
        ("gpu_floor_bytes: 1 GB\n", "valid integer; allowed: bytes, or 512 MiB"),
        ("max_attempts_per_day: x\n", "allowed: 1 to 10000"),
        (
            "rules: {hang: 3}\n",
            "mine.yaml:2: rules.hang: 3 is not allowed: input should be a mapping of keys",
        ),
        ("crash_loop: {deaths: 1}\n", "mine.yaml:2: crash_loop.deaths: 1 is not allowed"),
        (
            RULE.replace("hang", "hangs"),
            'mine.yaml:3: rules.hangs: no such failure class; did you mean "hang"?; allowed: auth_error',
        ),
        (RULE.replace("relaunch", "retry"), 'mine.yaml:4: rules.hang.act: "retry" is not allowed'),
        (RULE.replace("    attempts: 1\n", ""), '"act: relaunch" needs "attempts"'),
        (RULE.replace("attempts: 1", "attempts: 0"), "mine.yaml:5: rules.hang.attempts: 0 is not allowed"),
        (RULE.replace("A deadlock does not end by itself.", "no"), "allowed: a sentence that says why"),
        (RULE.replace("relaunch", "call"), "belong to a relaunch"),
        (RULE.replace("relaunch", "relaunch_with"), '"ladder" belongs to "act: relaunch_with"'),
        (RULE + "    ladder: [{why: Another way to do it.}]\n", '"ladder" belongs to "act: relaunch_with"'),
        (RULE + "  hang:\n    act: none\n", "the key is given twice"),
        (RULE + "    do: [pray]\n", 'mine.yaml:7: rules.hang.do.0: "pray" is not allowed'),
        (RULE + "    then: wait\n", 'mine.yaml:7: rules.hang.then: "wait" is not allowed'),
        (
            RULE.replace("relaunch", "call").replace("    attempts: 1\n", "    do: [restore_cache]\n"),
            "a relaunch",
        ),
        ("allow: {a.b: {least: 1}}\n", "mine.yaml:2: allow.a.b.least: unknown key"),
        ("allow: {a.b: {minimum: 2, maximum: 1}}\n", "the minimum is over the maximum"),
        (LADDER.format("scale: {a: 0}"), "mine.yaml:6: rules.hang.ladder.0.scale.a: 0 is not allowed"),
        (LADDER.format("scale: {a: 2}, set: {a: 1}"), '"a" is both set and scaled'),
        (LADDER.format("env: {TORCH_COMPILE_DISABLE: 1}"), "switches compiling off"),
        ("rules: [\n", "mine.yaml:3: not valid YAML"),
    ],
)
def test_what_is_wrong_is_said_with_file_line_key_and_value(text: str, said: str):
    assert said in own(text)


def test_an_unknown_class_is_told_before_what_its_rule_lacks():
    said = own("rules:\n  oom_cudaa:\n    act: relaunch\n  3:\n")
    assert 'mine.yaml:3: rules.oom_cudaa: no such failure class; did you mean "oom_cuda"?' in said
    assert "mine.yaml:5: rules.3: no such failure class; allowed: " in said
    assert "why" not in said
    assert 'the key "why" is missing' in own("rules:\n  oom_cuda:\n    act: call\n")


def test_a_ladder_changes_single_values_under_real_names():
    ladder = "rules:\n  oom_cuda:\n    act: relaunch_with\n    why: Less may fit on the card.\n    ladder:\n"
    assert "a ladder changes single values" in own(ladder + "      - {why: Half of it all., set: {a: [1]}}\n")
    assert '"a b" is no key' in own(ladder + '      - {why: Half of it all., set: {"a b": 1}}\n')


TOKEN = "hf_" + "AbCdEfGhIj" * 3


@pytest.mark.parametrize(
    "change",
    [f"env: {{SOME: {TOKEN}}}", "env: {WANDB_API_KEY: some-words-1}", f"set: {{a.b: {TOKEN}}}",
     "set: {a.url: 'https://me:pa55word@example.org/x'}"],
)  # fmt: skip
def test_a_ladder_holds_no_secret_and_the_message_does_not_show_it(change: str):
    said = own(LADDER.format(change))
    assert "would be a secret" in said
    assert not any(secret in said for secret in (TOKEN, "some-words-1", "pa55word"))


@pytest.mark.parametrize(
    "change",
    ["env: {TOKENIZERS_PARALLELISM: 'false'}", "env: {HF_TOKEN_FILE: x}", "set: {data.max_tokens: 4096}"],
)
def test_a_change_that_is_no_secret_is_none(change: str):
    key = change.partition("{")[2].partition(":")[0]
    parse(f"extends: default\n{LADDER.format(change)}allow: {{{key}: {{}}}}\n", "mine.yaml")


def test_a_file_that_is_not_there_is_said(tmp_path: Path):
    with pytest.raises(PlaybookError, match=r"none\.yaml: cannot be read: No such file"):
        load(tmp_path / "none.yaml")


def test_a_playbook_in_the_working_directory_comes_before_the_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert load().source == str(shipped())
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "playbooks" / "default.yaml").write_text("extends: default\njitter: 0.5\n", encoding="utf-8")
    assert load().jitter == 0.5


def test_a_copy_of_the_shipped_playbook_may_not_extend_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "default.yaml"
    path.write_text("extends: default\n", encoding="utf-8")
    monkeypatch.setattr("orchestrator.playbook.shipped", lambda: path)
    with pytest.raises(PlaybookError, match="cannot extend itself"):
        load(path)


def test_the_example_of_the_readme_loads():
    text = (shipped().parent / "README.md").read_text(encoding="utf-8")
    example = text.split("```yaml\n", 1)[1].split("```", 1)[0]
    playbook = parse(example, "README.md")
    rule = playbook.rule(FailureClass.OOM_CUDA)
    assert [(rung.scales, rung.changes) for rung in rule.ladder] == [
        ((("data.batch_rows", 0.5),), ()),
        ((), (("data.batch_rows", "1"),)),
    ]
    assert playbook.allow["data.batch_rows"] == Bounds(minimum=1)
    assert playbook.allow["loss.chunk_tokens"] == Bounds(minimum=512)  # the shipped one's stays
