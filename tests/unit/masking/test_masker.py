"""Known values: in every form, wherever they are, however the text is cut into pieces."""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.masking import REACH, Masker, is_secret_name, secret_values

VALUE = "s3cret value/of mine"


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "hf_token", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "KEY", "SENTRY_DSN"]
)
def test_a_name_that_says_secret_is_one(name):
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM",
        "PATH",
        "CUDA_VISIBLE_DEVICES",
        "KEYBOARD",
        "MAX_TOKENS",
        "PAD_TOKEN_ID",
        "PWD",
    ],
)
def test_a_name_that_does_not_is_none(name):
    assert not is_secret_name(name)


def test_a_pattern_of_ones_own_adds_a_name_or_takes_one_away():
    assert is_secret_name("LICENCE", ["LICEN*"])
    assert not is_secret_name("CACHE_KEY", ["!CACHE_KEY"])
    assert is_secret_name("CACHE_KEY", ["!CACHE_KEY", "CACHE*"]), "the last pattern decides"


def test_values_that_are_words_or_numbers_are_no_secrets():
    env = {
        "A_TOKEN": "true",
        "B_TOKEN": "12345",
        "C_TOKEN": "disabled",
        "D_TOKEN": "abcdef",
        "PATH": "/usr/bin",
    }
    assert secret_values(env) == ("abcdef",)


def test_a_value_is_masked_plain_escaped_in_a_url_and_by_its_lines():
    value = 'one "two"\\c\n\u00e9 second line of it'
    masker = Masker([value])
    first = 'one "two"\\c'
    for shown in (
        first,
        "\u00e9 second line of it",
        json.dumps(first)[1:-1],
        "%C3%A9%20second%20line%20of%20it",
    ):
        masked = masker.text(f"<{shown}>")
        assert masked == "<" + "*" * len(shown.encode()) + ">"


def test_a_value_that_overlaps_itself_is_masked_whole():
    assert Masker(["abcabc"]).mask(b"xabcabcabcabcx") == b"x" + b"*" * 12 + b"x"
    assert Masker(["aaaaaa"]).mask(b"b" + b"a" * 100) == b"b" + b"*" * 100


def test_a_flag_in_an_argv_names_the_secret_that_follows_it():
    argv = ["train.py", "--api-key", "abc123def", "--steps", "100000", "--mask-token", "151669", "--password"]
    assert Masker().json({"argv": argv})["argv"] == [*argv[:2], "*" * 9, *argv[3:]]


def test_json_keeps_its_keys_its_numbers_and_its_shape():
    masker = Masker([VALUE])
    value = {"a": [f"got {VALUE}", 3, None, {"HF_TOKEN": "abcdefgh", "mask_token": "<mask>", "n": 1.5}]}
    assert masker.json(value) == {
        "a": [f"got {'*' * len(VALUE)}", 3, None, {"HF_TOKEN": "*" * 8, "mask_token": "<mask>", "n": 1.5}]
    }


names = st.sampled_from(["HF_TOKEN", "api_key", "password", "note", "--api-key", "mask_token", "secret"])
texts = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        [
            "train --api-key abc123def",
            "HF_TOKEN=abcdefgh",
            "password: hunter2",
            "hf_" + "a1B2" * 9,
            "redis://:s3cr3t@h/0",
            f"'{VALUE}'",
            "Authorization: Bearer abcdef0123456789abcdef",
        ]
    ),
)
values = st.recursive(
    st.one_of(
        texts,
        st.integers(-(10**6), 10**9 - 1),
        st.floats(allow_nan=False, allow_infinity=False, width=32),
        st.none(),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=4)),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(value=st.dictionaries(names, values, max_size=5), indent=st.sampled_from([None, 1]))
@example(value={"note": "train --api-key abc123def"}, indent=None)
@example(value={"password": 1.25e-17, "note": "--password x"}, indent=None)
def test_a_file_of_json_stays_json_when_its_bytes_are_masked(value, indent):
    data = json.dumps(value, indent=indent).encode()
    masked = json.loads(Masker([VALUE]).mask(data, is_cut=True))
    assert list(masked) == list(value)


words = st.text(alphabet=string.ascii_letters + string.digits + "._-+/=", min_size=6, max_size=60)


@settings(max_examples=300, deadline=None)
@given(before=st.binary(max_size=200), after=st.binary(max_size=200), value=words)
@example(before=b"s", after=b"sssss", value="ssssss")
def test_no_value_is_left_and_the_length_stays(before, after, value):
    data = before + value.encode() + after
    masked = Masker([value]).mask(data)
    assert value.encode() not in masked
    assert len(masked) == len(data)
    assert all(new in (old, ord("*")) for old, new in zip(data, masked, strict=True))
    assert masked.count(b"\n") == data.count(b"\n")


shown = st.sampled_from(
    [
        b"hf_" + b"a1B2" * 9,
        b"password: hunter2x",
        b"redis://:s3cr3t@h/0",
        VALUE.encode(),
        b"step 3/10 loss 2.5\n",
        b"0123456789abcdef" * 2 + b"01234567",
        *(b"\n", b"hf_", b"key ", b"wandb ", b"eyJ", b"://", b"\\n", b"github_pat_"),
    ]
)


@settings(max_examples=150, deadline=None)
@given(parts=st.lists(st.one_of(shown, st.binary(max_size=30)), max_size=30), at=st.integers(0, 2000))
def test_a_window_of_reach_bytes_on_either_side_sees_what_the_whole_text_shows(parts, at):
    """What makes masking by pieces right: no byte's masking depends on what is farther away."""
    pad = b"x y\n" * ((REACH + 4) // 4)
    data = b"".join(parts)
    at = min(at, len(data))
    masker = Masker([VALUE])
    whole = masker.mask(pad + data + pad)
    window = masker.mask((pad + data)[len(pad) + at - REACH - 1 :] + pad)
    assert whole[len(pad) + at :] == window[REACH + 1 :]
