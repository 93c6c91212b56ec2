from dataclasses import replace

import pytest

from orchestrator.errors import ConfigError
from orchestrator.launch import (
    RunSpec,
    check_run_name,
    difference,
    parse_env_file,
    parse_setting,
    spec_document,
    spec_from_document,
    start_request,
    trainer_argv,
)

SPEC = RunSpec(
    run="b32",
    config="tiny",
    overrides=(("optim.lr", "3e-4"),),
    inject=("fx-trace@10",),
    env_names=("HF_TOKEN",),
)


@pytest.mark.parametrize("name", ["../x", "a/b", "a\nb", "", "-x", ".x", "a" * 65, "a..b", "a b"])
def test_a_name_that_could_leave_its_folder_or_break_a_line_is_refused(name):
    with pytest.raises(ConfigError):
        check_run_name(name)


@pytest.mark.parametrize("name", ["dflash", "b32", "qwen3-8b.v2", "A_1"])
def test_an_ordinary_name_is_kept(name):
    assert check_run_name(name) == name


def test_the_bundled_trainer_is_started_with_its_config_and_changes():
    assert trainer_argv(SPEC, "/s/runs/b32/attempts/1") == (
        "python3", "-m", "trainer", "--config", "tiny", "--set", "optim.lr=3e-4", "--inject", "fx-trace@10",
    )  # fmt: skip


def test_a_config_text_of_the_users_own_is_read_from_the_attempts_folder():
    spec = RunSpec(run="b32", config="my.toml", config_toml="steps = 3")
    assert "/s/runs/b32/attempts/2/config.toml" in trainer_argv(spec, "/s/runs/b32/attempts/2")


def test_a_command_is_run_as_it_was_given():
    assert trainer_argv(RunSpec(run="x", command=("torchrun", "a b.py")), "/a") == ("torchrun", "a b.py")


def test_a_relaunch_rebuilds_the_very_spec_from_run_json():
    document = spec_document(SPEC, state_dir="/s", attempt=3, created_at="t")
    assert spec_from_document(document) == SPEC


def test_run_json_names_variables_and_never_holds_their_values():
    request = start_request(SPEC, state_dir="/s", attempt=1, created_at="t", env={"HF_TOKEN": "hf_secret"})
    assert "hf_secret" not in str(request["spec"])
    assert request["env"] == {"HF_TOKEN": "hf_secret"}


def test_a_relaunch_keeps_the_values_that_are_there():
    assert start_request(SPEC, state_dir="/s", attempt=2, created_at="t", env=None)["env"] is None


def test_a_rung_replaces_a_key_and_the_difference_says_so():
    changed = SPEC.with_changes([("optim.lr", "1e-4"), ("block.size", "8")])
    assert difference(SPEC, changed) == (("block.size", "(config)", "8"), ("optim.lr", "3e-4", "1e-4"))


def test_run_json_that_is_not_ours_is_an_error_not_a_launch():
    with pytest.raises(ConfigError, match=r"run\.json"):
        spec_from_document({"run": "x"})


def test_settings_keep_equals_signs_in_their_value():
    assert parse_setting("a.b=c=d") == ("a.b", "c=d")
    with pytest.raises(ConfigError, match="key=value"):
        parse_setting("nokey")


def test_an_env_file_is_read_as_people_write_it():
    text = "# token\nexport HF_TOKEN='a=b'\n\nWANDB_MODE=offline\n"
    assert parse_env_file(text, "env") == {"HF_TOKEN": "a=b", "WANDB_MODE": "offline"}


def test_a_wrong_env_line_is_named_without_its_secret():
    with pytest.raises(ConfigError) as caught:
        parse_env_file("A=1\nhf_verysecret\n", "env")
    assert "line 2" in str(caught.value)
    assert "verysecret" not in str(caught.value)


def test_the_patterns_of_names_to_mask_travel_with_the_run():
    spec = replace(SPEC, mask=("LICEN*", "!CACHE_KEY"))
    document = spec_document(spec, state_dir="/s", attempt=1, created_at="t")
    assert document["mask"] == ["LICEN*", "!CACHE_KEY"]
    assert spec_from_document(document).mask == spec.mask
