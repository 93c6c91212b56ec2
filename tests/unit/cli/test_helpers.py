"""The pure helpers of the command line."""

from __future__ import annotations

import io
import json
from datetime import timedelta

import pytest

from orchestrator.cli import app, context, options, reaching, specifying
from orchestrator.errors import ConfigError, NotFound
from orchestrator.inventory import Inventory, resolve
from orchestrator.sizes import parse_size, size_text
from orchestrator.types.failure import RunState


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (15 << 30, "15.0 GiB"),
        (3 << 40, "3.0 TiB"),
        (5000 << 40, "5000.0 TiB"),
    ],
)
def test_a_size_is_told_in_the_largest_unit_that_leaves_a_whole_part(count, text):
    assert size_text(count) == text


def test_a_size_is_read_as_it_is_written():
    assert [parse_size(text) for text in ("12", "1 KiB", " 500MiB", "2 GiB")] == [
        12,
        1024,
        500 << 20,
        2 << 30,
    ]
    for text in ("", "2 GB", "1.5 GiB", "-1", "GiB"):
        with pytest.raises(ValueError, match="write bytes, or a whole number of KiB"):
            parse_size(text)


@pytest.mark.parametrize(("text", "gpus"), [(None, None), ("0", (0,)), ("0,2, 3", (0, 2, 3)), ("", ())])
def test_a_list_of_gpus_is_read(text, gpus):
    assert specifying.parse_gpus(text) == gpus


def test_a_wrong_list_of_gpus_is_told():
    with pytest.raises(ConfigError, match="--gpus 'all'"):
        specifying.parse_gpus("all")


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30.0), ("10m", 600.0), ("2h", 7200.0)])
def test_a_duration_is_read(text, seconds):
    assert options.seconds(text) == seconds


def test_a_wrong_duration_is_told_with_what_is_allowed():
    with pytest.raises(ConfigError, match="'soon' is no duration; write"):
        options.seconds("soon")


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "5 s"), (119, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h")]
)
def test_an_age_is_told_in_one_unit(monkeypatch, seconds, text):
    now = context.SETTINGS.clock.now()

    class Still:
        def now(self):
            return now

    monkeypatch.setattr(context.SETTINGS, "clock", Still())
    assert context.age_text(now - timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 processes"), (1, "1 process"), (2, "2 processes")])
def test_one_is_told_as_one(count, text):
    assert context.counted(count, "process", "processes") == text


def test_the_name_of_a_bundled_config_is_no_file_and_a_file_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert specifying.read_config("tiny") == ("tiny", None)
    (tmp_path / "my.toml").write_text("steps = 3\n")
    assert specifying.read_config("my.toml") == ("my.toml", "steps = 3\n")


def test_a_command_of_ones_own_takes_nothing_that_is_for_the_bundled_trainer():
    target = resolve(Inventory(), host="10.1.2.6", ct=200)
    spec = specifying.make_spec("b32", target, None, [], [], ["sh", "x.sh"], {"A": "1"}, [])
    assert (spec.command, spec.config, spec.env_names) == (("sh", "x.sh"), None, ("A",))
    with pytest.raises(ConfigError, match="bundled trainer only"):
        specifying.make_spec("b32", target, None, ["steps=3"], [], ["sh", "x.sh"], {}, [])


def test_an_environment_is_read_from_names_and_files_and_never_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setenv("FROM_HERE", "1")
    path = tmp_path / "env"
    path.write_text("# tokens\nexport A='x y'\n\nB=2\n")
    assert specifying.read_env(["FROM_HERE"], [path]) == {"FROM_HERE": "1", "A": "x y", "B": "2"}
    with pytest.raises(ConfigError) as caught:
        specifying.read_env(["A=s3cret"], [])
    assert "s3cret" not in str(caught.value)


def test_an_unknown_key_is_accepted_by_the_very_command_with_the_option_before_the_double_dash(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/dflashctl", "launch", "--host", "h", "--", "sh", "-c", "a b"])
    said = reaching.connect_options(accept_new_host_key=False).accept_command
    assert said == "`dflashctl launch --host h --accept-new-host-key -- sh -c 'a b'`"


def test_a_verb_of_the_record_names_the_one_that_accepts_keys(monkeypatch):
    monkeypatch.setattr("sys.argv", ["dflashctl", "status"])
    target = resolve(Inventory(), host="me@10.1.2.6:2222", ct=200, known_hosts="/k")
    said = reaching.known_options(target).accept_command
    where = "--host 10.1.2.6 --user me --port 2222 --known-hosts /k"
    assert said == f"`dflashctl inventory scan {where} --accept-new-host-key`"
    assert reaching.known_options(resolve(Inventory(), host="local")).accept_command is None


def test_a_login_that_nobody_named_is_root_and_one_that_was_named_stays(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for given, user in (("10.1.2.6", "root"), ("me@10.1.2.6", "me")):
        found = reaching.with_login(resolve(Inventory(), host=given, ct=200))
        assert found.host is not None
        assert found.host.user == user


def test_an_error_is_an_object_for_a_program_and_one_harmless_line_for_a_person(monkeypatch):
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    app._tell(["ps", "--json"], "not_found", "no\nrun", "do this")
    assert json.loads(out.getvalue())["error"] == {
        "code": "not_found",
        "message": "no\nrun",
        "hint": "do this",
    }
    assert err.getvalue() == ""
    app._tell(["launch", "--", "--json"], "not_found", "no\n\x1b]52;c;x\x07run", "do this")
    assert err.getvalue() == "dflashctl: no; run; do this\n"


class Row:
    def __init__(self, name: str, host: str = "10.1.2.6", ct: int = 200) -> None:
        target = resolve(Inventory(), host=host, ct=ct)
        self.name, self.target, self.target_key, self.state = name, target.to_json(), target.key, RunState.NEW


class Shelf:
    """A record that holds these runs."""

    def __init__(self, *rows: Row) -> None:
        self._rows = list(rows)

    def runs(self) -> list[Row]:
        return self._rows


def find(*rows: Row, **words):
    return context.find_run(Shelf(*rows), words.pop("name", None), **words)  # type: ignore[arg-type]


def test_the_only_run_needs_no_name_and_two_do():
    assert find(Row("a")).name == "a"
    with pytest.raises(ConfigError, match=r"a at 10\.1\.2\.6/200, b at 10\.1\.2\.6/200; name it"):
        find(Row("a"), Row("b"))
    with pytest.raises(NotFound, match="dflashctl launch"):
        find()


def test_a_run_is_found_by_name_and_place():
    rows = Row("a"), Row("a", ct=201), Row("a", host="10.1.2.7")
    assert find(*rows, name="a", host="10.1.2.7").target_key == "10.1.2.7/200"
    assert find(*rows, ct=201).target_key == "10.1.2.6/201"
    with pytest.raises(ConfigError, match="more than one run"):
        find(*rows, name="a")
    with pytest.raises(NotFound, match="no run 'b' in the record; runs: a"):
        find(*rows, name="b")
