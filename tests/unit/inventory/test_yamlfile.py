"""A wrong file is told by file, line, key, value and what is allowed."""

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field

from orchestrator.errors import ConfigError, InventoryError
from orchestrator.yamlfile import Document, parse, read, show, validate


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    limit: int = Field(default=1, ge=1, description="1 or more")


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    rules: dict[str, Inner] = {}
    steps: list[Inner] = []


def refuse(text: str) -> str:
    document = parse(text, "f.yaml")
    with pytest.raises(ConfigError) as caught:
        validate(Outer, document.data, document)
    return caught.value.message


def test_a_good_file_gives_its_model_and_lines():
    document = parse("name: a\nrules:\n  b:\n    limit: 2\n", "f.yaml")
    assert validate(Outer, document.data, document).rules["b"].limit == 2
    assert document.where(("rules", "b", "limit")) == "f.yaml:4: rules.b.limit"


def test_an_empty_file_is_an_empty_mapping():
    assert parse("# nothing\n", "f.yaml") == Document(path="f.yaml", data={}, lines={})


def test_a_wrong_value_is_told_with_line_key_value_and_what_is_allowed():
    message = refuse("name: a\nrules:\n  b:\n    limit: 0\n")
    assert message.startswith("f.yaml:4: rules.b.limit: 0 is not allowed: ")
    assert message.endswith("allowed: 1 or more")


def test_an_unknown_key_is_told_with_the_nearest_known_one():
    message = refuse("name: a\nsteps:\n- {}\n- limt: 3\n")
    assert message == (
        'f.yaml:4: steps.1.limt: unknown key with the value 3; did you mean "limit"?; allowed: limit'
    )


def test_every_wrong_thing_is_told_at_once():
    assert refuse("rules:\n  b:\n    limit: x\n").splitlines() == [
        'f.yaml:1: the key "name" is missing',
        'f.yaml:3: rules.b.limit: "x" is not allowed: input should be a valid integer; allowed: 1 or more',
    ]


def test_a_key_given_twice_is_told_with_both_lines():
    with pytest.raises(ConfigError, match=r"f.yaml:3: a\.b: the key is given twice; it stands on line 2"):
        parse("a:\n  b: 1\n  b: 2\n", "f.yaml")


def test_the_same_key_in_two_places_is_fine():
    assert parse("a:\n  b: 1\nc:\n  b: 2\n", "f.yaml").data == {"a": {"b": 1}, "c": {"b": 2}}


def test_broken_yaml_is_told_with_its_line_and_the_class_asked_for():
    with pytest.raises(InventoryError, match=r"f.yaml:2: not valid YAML"):
        parse("a: 1\n  b: 2\n", "f.yaml", InventoryError)


@pytest.mark.parametrize(("char", "name"), [("\a", "U+0007"), ("\0", "U+0000"), ("\ufffe", "U+FFFE")])
def test_a_character_that_yaml_does_not_take_is_told_with_its_line(char, name):
    with pytest.raises(InventoryError) as caught:
        parse(f"a: 1\nb: 2{char}\n", "f.yaml", InventoryError)
    assert str(caught.value).startswith(f"f.yaml:2: not valid YAML: the character {name} ")


def test_a_python_object_in_a_file_is_refused():
    with pytest.raises(ConfigError, match="not valid YAML"):
        parse("a: !!python/object/apply:os.system [ls]\n", "f.yaml")


def test_a_missing_file_and_one_that_is_not_utf8_are_told(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9\n")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 3"):
        read(tmp_path / "latin.yaml")


def test_a_long_or_many_lined_value_stays_on_one_line():
    shown = show("a\n" * 200)
    assert "\n" not in shown
    assert len(shown) == 80
