import dataclasses
import inspect
import io
from pathlib import Path

import pytest

from trainer import config as schema
from trainer.config import Config
from trainer.errors import ConfigInvalid
from trainer.settings import BUNDLED, load


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", ["tiny.toml", "tiny", "fast.toml"])
def test_a_bundled_config_is_found_by_its_name(name):
    assert load(name, []).total_steps > 0


def test_every_bundled_config_is_valid():
    for path in BUNDLED.glob("*.toml"):
        load(str(path), [])


def test_a_path_is_read_and_what_it_leaves_out_keeps_its_default(tmp_path):
    config = load(write(tmp_path, "total_steps = 7\n[optim]\nlr = 1e-4\n"), [])
    assert (config.total_steps, config.optim.lr, config.optim.clip) == (7, 1e-4, 1.0)


def test_a_dash_reads_standard_input_and_names_it_in_mistakes(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"total_steps = 7")))
    assert load("-", []).total_steps == 7
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"total_stepz = 7")))
    with pytest.raises(ConfigInvalid, match="standard input: total_stepz"):
        load("-", [])


def test_overrides_come_after_the_file_in_order_and_bare_words_are_strings():
    config = load("tiny", ["optim.lr=1e-3", "optim.schedule=wsd", "optim.lr=2e-3"])
    assert (config.optim.lr, config.optim.schedule) == (2e-3, "wsd")


def test_a_whole_number_will_do_for_a_fraction():
    assert load("tiny", ["loss.gamma=5"]).loss.gamma == 5.0


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("optim.lrr=1", ["optim.lrr", "did you mean lr?", "allowed: lr, min_lr_ratio"]),
        ("nonsense=1", ["nonsense", "unknown key", "allowed: total_steps"]),
        ("optim.lr=fast", ["optim.lr", "'fast'", "a number from 1e-08 to 1.0"]),
        ("optim.lr=nan", ["optim.lr", "nan", "out of range"]),
        ("optim.lr=2", ["optim.lr", "2.0", "out of range"]),
        ("total_steps=0", ["total_steps", "0", "from 1 to"]),
        ("total_steps=true", ["total_steps", "True", "a whole number"]),
        ("total_steps=1.5", ["total_steps", "1.5", "a whole number"]),
        ("optim.schedule=linear", ["optim.schedule", "'linear'", "cosine, wsd"]),
        ("optim=3", ["optim", "3", "not a table"]),
        ("total_steps.x=3", ["total_steps", "is a value, not a table"]),
        ("no-equals", ["no-equals", "not key=value"]),
        ("eval.new_tokens=10000", ["eval.prompt_tokens + eval.new_tokens", "data.context_tokens"]),
        (
            "data.context_tokens=32",
            ["eval.prompt_tokens + eval.new_tokens", "is over data.context_tokens, 32"],
        ),
        ("data.anchors=160", ["data.anchors", "160"]),
        ("draft.intermediate_size=64", ["draft.intermediate_size", "64", "allowed: 0"]),
    ],
)
def test_a_mistake_is_one_line_with_key_value_and_what_is_allowed(override, told):
    with pytest.raises(ConfigInvalid) as caught:
        load("tiny", [override])
    message = str(caught.value)
    assert "\n" not in message
    for part in told:
        assert part in message


def test_a_block_longer_than_a_window_is_refused():
    with pytest.raises(
        ConfigInvalid, match=r"draft\.block_size: 200 does not fit in data\.context_tokens, 160"
    ):
        load("tiny", ["draft.block_size=200", "eval.prompts=0"])


def test_a_mistake_in_a_file_names_the_file(tmp_path):
    with pytest.raises(ConfigInvalid, match=r"^mine\.toml: optim\.lr: 'x'"):
        load(write(tmp_path, "[optim]\nlr = 'x'\n"), [])


def test_broken_toml_names_file_and_line(tmp_path):
    with pytest.raises(ConfigInvalid, match=r"mine\.toml: not TOML: .*line 2"):
        load(write(tmp_path, "total_steps = 3\nlog_every = = 4\n"), [])


def test_a_missing_file_names_the_bundled_ones():
    with pytest.raises(
        ConfigInvalid, match=r"nowhere\.toml: no such file.*fast\.toml, .*seed-8gpu\.toml, tiny\.toml"
    ):
        load("nowhere.toml", [])


def test_every_field_is_documented():
    undocumented = []
    source = inspect.getsource(schema)
    for kind in vars(schema).values():
        if not dataclasses.is_dataclass(kind) or kind is Config:
            continue
        for field in dataclasses.fields(kind):
            line = next(
                i for i, text in enumerate(source.splitlines()) if text.startswith(f"    {field.name}: ")
            )
            if not source.splitlines()[line + 1].startswith('    """'):
                undocumented.append(f"{kind}.{field.name}")
    assert undocumented == []
