"""A secret that everybody could read is refused before anything is reached, and never shown."""

from __future__ import annotations

import pytest

from orchestrator.cli.secrets import check_secrets
from orchestrator.errors import ConfigError
from orchestrator.launch import RunSpec

TOKEN = "hf_" + "aB3dE6gH9" * 4


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"command": ("train.py", "--hub", TOKEN)}, "-- COMMAND"),
        ({"command": ("train.py", "--api-key", "abc123def")}, "-- COMMAND"),
        ({"command": ("sh", "-c", "HF_TOKEN=abcdefgh exec train")}, "-- COMMAND"),
        ({"command": ("train.py", "value-of-mine-1")}, "-- COMMAND: it holds the value of MY_TOKEN"),
        ({"overrides": (("data.path", "https://me:pa55word@host/data"),)}, "--set data.path"),
        ({"config": "my.toml", "config_toml": f"a = 1\ntoken = '{TOKEN}'\n"}, "--config my.toml: line 2"),
    ],
)
def test_a_secret_in_what_everybody_can_read_is_refused_without_being_shown(fields, where):
    env = {"MY_TOKEN": "value-of-mine-1", "SHORT_KEY": "train"}
    with pytest.raises(ConfigError) as caught:
        check_secrets(RunSpec(run="r", **fields), env)
    assert where in str(caught.value)
    assert "--env NAME" in str(caught.value.hint)
    for secret in (TOKEN, "abc123def", "abcdefgh", "value-of-mine-1", "pa55word"):
        assert secret not in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"command": ("sh", "-c", 'echo "got ${#MY_TOKEN} letters"; HF_TOKEN=$MY_TOKEN train')},
        {
            "command": (
                "torchrun",
                "train.py",
                "--mask-token",
                "151669",
                "--max-tokens",
                "4096",
                "--key",
                "-x",
            )
        },
        {"overrides": (("target.mask_token", "151669"), ("data.path", "https://host/data"))},
        {"config": "my.toml", "config_toml": "mask_token = 151669 # the tokenizer's\n"},
        {"command": ("train.py", "train")},
    ],
)
def test_what_only_speaks_of_tokens_is_not_refused(fields):
    check_secrets(RunSpec(run="r", **fields), {"MY_TOKEN": "value-of-mine-1", "SHORT_KEY": "train"})
