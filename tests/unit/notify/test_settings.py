"""Who is told: the file's form, its errors with their line, and that no error shows an address."""

from __future__ import annotations

from datetime import time
from typing import TYPE_CHECKING

import pytest

from orchestrator.errors import ConfigError
from orchestrator.notify.message import Kind, Severity
from orchestrator.notify.settings import DEADMAN_URL, URLS, Settings, load
from orchestrator.notify.targets import build

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SECRET = "T0pSecretWord"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "dflashctl" / "notify.yaml"
    path.parent.mkdir()
    return path


def read(file: Path, text: str, mode: int = 0o600, env: Mapping[str, str] | None = None) -> Settings:
    file.write_text(text)
    file.chmod(mode)
    return load({"XDG_CONFIG_HOME": str(file.parent.parent), **(env or {})})


def test_without_a_file_nobody_is_told(file):
    assert not load({"XDG_CONFIG_HOME": str(file.parent.parent)}).is_on


def test_all_that_a_file_may_say(file):
    settings = read(
        file,
        f"urls:\n  - json://127.0.0.1/{SECRET}\n  - ntfys://{SECRET}\n"
        f"deadman_url: https://127.0.0.1/{SECRET}\ndeadman_every: 30s\nblind_after: 5m\n"
        "rate: {messages: 3, per: 1h}\nquiet: {from: 22:00, to: 07:30, passes: error}\n"
        "severity: {finished: off, death: urgent}\n",
    )
    assert [address.origin for address in settings.addresses] == ["notify.yaml:2", "notify.yaml:3"]
    assert settings.quiet is not None
    assert (settings.quiet.begin, settings.quiet.end) == (time(22), time(7, 30))
    assert settings.quiet.passes is Severity.ERROR
    assert (settings.rate.messages, settings.rate.per_s, settings.blind_after_s) == (3, 3600.0, 300.0)
    assert settings.severity == {Kind.FINISHED: None, Kind.DEATH: Severity.URGENT}
    assert settings.deadman is not None
    assert settings.deadman_every_s == 30.0
    assert SECRET not in repr(settings)


def test_a_path_that_cannot_be_looked_at_is_an_error_with_its_name(file):
    file.symlink_to(file)
    with pytest.raises(ConfigError, match=r"notify\.yaml: cannot be read"):
        load({"XDG_CONFIG_HOME": str(file.parent.parent)})


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o666])
def test_a_file_that_others_may_read_is_refused_with_the_remedy(file, mode):
    with pytest.raises(ConfigError, match=rf"others may read it \(mode 0{mode:o}\).*chmod 600"):
        read(file, f"urls: [json://127.0.0.1/{SECRET}]\n", mode)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"urls: json://{SECRET}\n", "notify.yaml:1: urls: not a list"),
        (f"url: [json://{SECRET}]\n", 'notify.yaml:1: url: unknown key; did you mean "urls"?'),
        (f"blind_after: 5m\n{SECRET}://x: 1\n", "notify.yaml:2: unknown key"),
        (f"urls: [{{slack: {SECRET}}}]\n", "not a text"),
        (f"- json://{SECRET}\n", "not a mapping"),
        (f"deadman_url: ftp://{SECRET}\n", "notify.yaml:1: no URL that can be pinged"),
        (f"deadman_url: [{SECRET}]\n", "notify.yaml:1: no URL that can be pinged"),
        ("rate: {messages: 0}\n", "notify.yaml:1: rate.messages: 0 is not allowed"),
        ("blind_after: 5m\nquiet: {from: 25:00, to: 7:00}\n", "notify.yaml:2: quiet.from"),
        ("quiet: {from: 22:00}\n", 'the key "to" is missing'),
        ("quiet: {from: 22:00, to: 7:00, passes: loud}\n", "'urgent'"),
        ("severity: {deaths: error}\n", "'death'"),
        ("blind_after: 600\n", "blind_after: 600 is not allowed"),
    ],
)
def test_an_error_names_file_line_and_key_and_never_an_address(file, text, said):
    with pytest.raises(ConfigError) as raised:
        read(file, text)
    assert said in str(raised.value)
    assert SECRET not in str(raised.value)


def test_two_urls_on_one_line_have_names_of_their_own(file):
    settings = read(file, "urls: [json://127.0.0.1/a, json://127.0.0.1/b]\n")
    assert [a.origin for a in settings.addresses] == ["notify.yaml:1 no. 1", "notify.yaml:1 no. 2"]


def test_the_environment_takes_the_place_of_the_files_urls(file):
    given = "json://127.0.0.1/a?x=1,2, ntfys://topic json://127.0.0.1/b"
    settings = read(file, "urls: [json://127.0.0.1/c]\nblind_after: 5m\n", env={URLS: given})
    assert [a.secret for a in settings.addresses] == [
        "json://127.0.0.1/a?x=1,2", "ntfys://topic", "json://127.0.0.1/b",
    ]  # fmt: skip
    assert settings.addresses[1].origin == f"{URLS} no. 2"
    assert settings.blind_after_s == 300.0


def test_a_dead_man_of_the_environment_that_is_no_url_is_refused_without_showing_it():
    with pytest.raises(ConfigError) as raised:
        load({"XDG_CONFIG_HOME": "/nonexistent", DEADMAN_URL: SECRET})
    assert SECRET not in str(raised.value)
    assert DEADMAN_URL in str(raised.value)


@pytest.mark.parametrize(("kind", "instead"), [("http", "json://"), ("https", "jsons://")])
def test_a_web_address_is_told_which_kinds_send_to_one(kind, instead):
    settings = load({"XDG_CONFIG_HOME": "/nonexistent", URLS: f"{kind}://127.0.0.1:9/{SECRET}"})
    with pytest.raises(ConfigError) as raised:
        build(settings.addresses)
    assert f"write {instead}HOST/PATH" in str(raised.value.hint)
    assert SECRET not in str(raised.value)


def test_an_address_that_apprise_does_not_know_is_named_by_its_place_alone(caplog, capfd):
    settings = load({"XDG_CONFIG_HOME": "/nonexistent", URLS: f"foo://{SECRET}"})
    with pytest.raises(ConfigError) as raised:
        build(settings.addresses)
    assert f"{URLS} no. 1: no address that apprise knows, of the kind foo://" in str(raised.value)
    out, err = capfd.readouterr()
    assert SECRET not in str(raised.value) + out + err + caplog.text
