"""A Tab as the shells press it: hosts, containers and runs, from files alone, at once, and never an error."""

from __future__ import annotations

import socket
import sqlite3
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer

from orchestrator import __version__
from orchestrator.cli import ASKED, app, main, verbtree
from orchestrator.cli.tabbing import TREE, Node
from orchestrator.record import Record
from orchestrator.types.failure import RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Tab = Callable[..., list[str]]

ROOT = Path(__file__).resolve().parents[3]
TYPER = typer.main.get_command(app.app)
INVENTORY = """\
hosts:
  pve: {address: 10.1.2.6}
  other: {address: 10.1.2.7}
containers:
  trainer: {host: pve, ct: 200}
  second: {host: other, ct: 201}
  here: {host: local}
"""
RUNS = (("b32", "10.1.2.6/200"), ("b64", "10.1.2.7/201"), ("a-b", "local"), ("far", "root@10.1.2.9:2222/300"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an inventory and a record of four runs, in force."""
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "a.yaml").write_text(INVENTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DFLASHCTL_RECORD", str(tmp_path / "r.sqlite3"))
    monkeypatch.delenv("DFLASHCTL_INVENTORY", raising=False)
    with Record.open(tmp_path / "r.sqlite3") as record:
        for name, key in RUNS:
            record.save_run(name, {}, key, {}, datetime(2026, 11, 29, tzinfo=timezone.utc))
    return tmp_path


def asks(line: str, shell: str, action: str = "get-args") -> dict[str, str]:
    """What a shell puts into the environment when Tab is pressed at the end of a line."""
    own = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": action},
    }[shell]
    return {ASKED: f"complete_{shell}", **own}


@pytest.fixture
def press(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, object]]:
    """Ask as a shell does: the program, or typer alone; what came and with which exit code."""

    def press(
        line: str, shell: str = "bash", *, action: str = "get-args", by_typer: bool = False
    ) -> tuple[str, object]:
        with monkeypatch.context() as env:
            for name, value in asks(line, shell, action).items():
                env.setenv(name, value)
            with pytest.raises(SystemExit) as end:
                TYPER([], prog_name="dflashctl") if by_typer else main()
        shown = capsys.readouterr()
        assert shown.err == ""
        return shown.out, end.value.code or 0

    return press


@pytest.fixture
def tab(press) -> Tab:
    """What a shell is given, a line each."""

    def lines(line: str, shell: str = "bash") -> list[str]:
        return [each for each in press(line, shell)[0].splitlines() if each]

    return lines


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("dflashctl status ", {"b32", "b64", "a-b", "far"}),
        ("dflashctl logs b", {"b32", "b64"}),
        ("dflashctl playbook explain f", {"far"}),
        ("dflashctl status --host 10.1.2.7 ", {"b64"}),
        ("dflashctl status --ct 200 ", {"b32"}),
        ("dflashctl status --host ", {"pve", "other", "local", "root@10.1.2.9:2222"}),
        ("dflashctl launch --host p", {"pve"}),
        ("dflashctl launch --ct ", {"200", "201", "300"}),
        ("dflashctl launch --host other --ct ", {"201"}),
        ("dflashctl launch --host 10.1.2.6 --ct ", {"200"}),
        ("dflashctl launch --container ", {"trainer", "second", "here"}),
        ("dflashctl inventory check t", {"trainer"}),
        ("dflashctl status x", set()),
    ],
)
def test_names_are_those_of_the_inventory_and_the_record(home, tab, line, found):
    assert set(tab(line)) == found


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_is_given_them_in_its_own_form(home, tab, shell):
    text = "\n".join(tab("dflashctl logs b", shell))
    assert "b32" in text
    assert "b64" in text
    assert "far" not in text
    assert ("at 10.1.2.6/200" in text) == (shell != "bash")


def test_the_options_before_the_verb_say_which_files_are_meant(home, tab, tmp_path):
    with Record.open(tmp_path / "other.sqlite3") as record:
        record.save_run("mine", {}, "local", {}, datetime(2026, 11, 29, tzinfo=timezone.utc))
    assert tab(f"dflashctl --record {tmp_path}/other.sqlite3 status ") == ["mine"]
    assert tab(f"dflashctl --inventory {tmp_path}/none launch --container ") == []


def test_a_removed_run_is_not_offered(home, tab):
    with Record.open(home / "r.sqlite3") as record:
        (row,) = [row for row in record.runs() if row.name == "b32"]
        record.remove_run(row.id, datetime(2026, 11, 30, tzinfo=timezone.utc))
    assert "b32" not in tab("dflashctl status ")


def damaged(home: Path, damage: str) -> None:
    """Damage the record or the inventory."""
    record, inventory = home / "r.sqlite3", home / "inventory" / "a.yaml"
    texts = {
        "no yaml": b"hosts: [",
        "other yaml": "hosts: {pve: 3, '\x85': {}}\ncontainers: [1]\n---\nmore".encode(),
        "binary": bytes(range(256)),
    }
    if damage in texts:
        inventory.write_bytes(texts[damage])
    elif damage == "no database":
        record.write_bytes(b"not a database" * 100)
    else:
        record.unlink()
        if damage == "a folder":
            record.mkdir()
        if damage == "another database":
            with sqlite3.connect(record) as other:
                other.execute("CREATE TABLE runs (x)")


@pytest.mark.parametrize(
    "damage",
    ["absent", "no database", "another database", "a folder", "no yaml", "other yaml", "binary"],
)
def test_what_cannot_be_read_completes_to_nothing_without_an_error(home, tab, damage):
    damaged(home, damage)
    is_record = damage not in ("no yaml", "other yaml", "binary")
    assert (tab("dflashctl status ") == []) == is_record
    assert ("pve" in tab("dflashctl status --host ")) == is_record
    assert (tab("dflashctl launch --container ") == []) != is_record
    if damage == "absent":
        assert not (home / "r.sqlite3").exists(), "a Tab must not make a record"


def test_no_host_is_asked(home, tab, monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("a Tab must not reach the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    for line in ("dflashctl status ", "dflashctl launch --host ", "dflashctl launch --host pve --ct "):
        assert tab(line)


def test_names_that_a_shell_would_read_as_more_are_left_out(home, tab):
    (home / "inventory" / "a.yaml").write_text("hosts: {'$(reboot)': {address: x}, 'a b': {}, fine: {}}\n")
    assert "fine" in tab("dflashctl launch --host ")
    assert not any("reboot" in each or " " in each for each in tab("dflashctl launch --host "))


def test_it_takes_no_time_with_many_runs_and_hosts(home, tab):
    hosts = "".join(f"  h{n}: {{address: 10.0.{n // 256}.{n % 256}}}\n" for n in range(500))
    boxes = "".join(f"  c{n}: {{host: h{n}, ct: {n + 100}}}\n" for n in range(500))
    (home / "inventory" / "a.yaml").write_text(f"hosts:\n{hosts}containers:\n{boxes}")
    with sqlite3.connect(home / "r.sqlite3") as record:
        columns = "name, target_key, target, spec, created_at, state, gpu_interval_s"
        rows = [
            (f"r{n}", "local", "{}", "{}", f"2026-11-29 00:00:{n % 60:02}", RunState.NEW.value, 1.0)
            for n in range(2000)
        ]
        record.executemany(f"INSERT INTO runs ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    tab("dflashctl status ")
    began = time.process_time()  # this process's own, as the machine may be busy
    assert len(tab("dflashctl status ")) == 500
    assert len(tab("dflashctl launch --host h ")) >= 0
    assert time.process_time() - began < 0.4


HEAVY = {
    "typer", "click", "rich", "pydantic", "sqlalchemy", "paramiko", "orchestrator.cli.app",
    "orchestrator.inventory", "orchestrator.record",
}  # fmt: skip


def loaded_by(home: Path, *words: str, **env: str) -> tuple[bytes, set[str]]:
    """What a start of the program says, and the modules it loads."""
    code = (
        f"import sys; sys.argv[1:] = {list(words)!r}; from orchestrator.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "sys.stderr.write(' '.join(sys.modules))"
    )
    env = {"DFLASHCTL_RECORD": str(home / "r.sqlite3"), "PYTHONPATH": str(ROOT), **env}
    done = subprocess.run([sys.executable, "-c", code], cwd=home, env=env, capture_output=True, check=True)
    return done.stdout, set(done.stderr.decode().split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("line", "answer", "more"),
    [
        ("dflashctl status b", b"b64", {"yaml"}),
        ("dflashctl launch --host p", b"pve", set()),
        ("dflashctl lau", b"launch", {"yaml", "sqlite3"}),
        ("dflashctl status --j", b"--json", {"yaml", "sqlite3"}),
    ],
)
def test_a_tab_loads_none_of_what_a_verb_needs(home, shell, line, answer, more):
    said, loaded = loaded_by(home, **asks(line, shell))
    assert answer in said
    assert not loaded & (HEAVY | more)


def test_the_version_is_told_without_the_verbs(home):
    said, loaded = loaded_by(home, "--version")
    assert said.decode() == f"dflashctl {__version__}\n"
    assert not loaded & HEAVY


@pytest.mark.parametrize("verb", ["launch", "relaunch"])
def test_a_configuration_is_a_bundled_one_or_a_file_here(home, press, verb):
    (home / "my.toml").touch()
    (home / "notes.txt").touch()
    said, _ = press(f"dflashctl {verb} --config ")
    assert {"tiny", "fast", "my.toml"} <= set(said.split())
    assert "notes.txt" not in said
    assert press(f"dflashctl {verb} --config my")[0].split() == ["my.toml"]
    assert press(f"dflashctl {verb} --config some/")[0].split() == []


def test_what_a_tab_knows_of_the_verbs_is_what_they_are():
    message = "run `python -m orchestrator.cli.verbtree`"
    assert TREE.read_text(encoding="utf-8") == verbtree.text(verbtree.tree()), message


def lines_of(node: Node, path: str = "dflashctl") -> Iterator[str]:
    """Lines that a Tab may be pressed at, of every verb: each option's value, and what is half typed."""
    yield from (f"{path} ", f"{path} -", f"{path} --", f"{path} --n", f"{path} x", f"{path} -- ")
    for option in node["options"]:
        for name in option["names"]:
            yield from (f"{path} {name} ", f"{path} {name} b", f"{path} {name}=", f"{path} {name}")
    for name, verb in node.get("verbs", {}).items():
        yield from (f"{path} {name}", f"{path} {name[:1]}")
        yield from lines_of(verb, f"{path} {name}")


ODD = (
    "dflashctl", "dflashctl bogus ", "dflashctl bogus st", "dflashctl --bogus st", "dflashctl --record",
    "dflashctl -v status b", "dflashctl -vv --no-color status ", "dflashctl --record /nowhere status ",
    "dflashctl status --json --j", "dflashctl status b32 ", "dflashctl status b32 --host ",
    "dflashctl status --bogus b", "dflashctl logs -fn 3 b", "dflashctl logs -n3 b", "dflashctl logs -f b",
    "dflashctl logs --tail=3 b", "dflashctl logs -xf b", "dflashctl logs b32 --", "dflashctl logs -- b",
    "dflashctl status --host 10.1.2.7 --ct 201 ", "dflashctl status --ct ", "dflashctl status 'b",
    'dflashctl status "b', "dflashctl status b\\", "dflashctl cache", "dflashctl cache s",
    "dflashctl cache bogus ", "dflashctl playbook explain b32 ", "dflashctl playbook --help explain ",
    "dflashctl --inventory . launch -c ", "dflashctl launch -c here --", "dflashctl launch --set a=b --set c",
    "dflashctl man ", "dflashctl man status ", "dflashctl --version ", "dflashctl --help ",
    "dflashctl launch --host=p", "dflashctl launch -H p", "dflashctl launch -Hp", "dflashctl rm b32 b64 ",
)  # fmt: skip


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_tab_is_answered_as_typer_answers_it(home, press, shell):
    every = [*dict.fromkeys([*lines_of(verbtree.tree()), *ODD])]
    if shell != "bash":
        every = every[::7] + list(ODD)
    assert len(every) > 100
    for line in every:
        mine, theirs = press(line, shell), press(line, shell, by_typer=True)
        # Typer breaks a long text where its line of 80 columns ends.
        assert "".join(mine[0].split()) == "".join(theirs[0].split()), line
        assert mine[1] == theirs[1]


@pytest.mark.parametrize("line", ["dflashctl status ", "dflashctl status nothing", "dflashctl lau"])
def test_fish_is_told_whether_there_are_words_or_files(home, press, line):
    assert press(line, "fish", action="is-args") == press(line, "fish", action="is-args", by_typer=True)


@pytest.mark.parametrize("asked", ["complete_powershell", "source_bash", "nonsense"])
def test_what_another_asks_is_left_to_typer(home, asked):
    _, loaded = loaded_by(home, _DFLASHCTL_COMPLETE=asked, _TYPER_COMPLETE_ARGS="dflashctl lau")
    assert "typer" in loaded
