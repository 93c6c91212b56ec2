"""The documentation: whole, with commands that exist, right examples, and figures that were measured."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import typer
import yaml

from orchestrator import notify
from orchestrator.classify import xid
from orchestrator.classify.classes import describe
from orchestrator.classify.match import BY_NAME
from orchestrator.cli.app import EPILOG, run
from orchestrator.cli.idle import idle_parts
from orchestrator.cli.manpage import takes_value
from orchestrator.cli.settings import VARIABLES
from orchestrator.inventory import Inventory
from orchestrator.inventory.models import Container, Host
from orchestrator.types.failure import FailureClass
from scripts.docs import examples, failures, included, keys, verbs, xids
from scripts.docs.outside import asked_of_page, asked_of_site, asked_of_style
from scripts.docs.text import prose

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")
}
MADE = {**failures.pages(), **xids.pages(), **verbs.pages(), **keys.pages()}
TEXTS = {**WRITTEN, **MADE, "README.md": included.read("README.md")}
_USAGE: type[typer.BadParameter] = typer.BadParameter.__mro__[1]


class Block(NamedTuple):
    page: str
    language: str
    title: str
    text: str


def blocks(page: str, text: str) -> Iterator[Block]:
    """Yield the blocks of code of a page: fenced, or indented as in the README."""
    fenced = re.compile(r'^```(\w*)(?: title="([^"]*)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
    for language, title, body in fenced.findall(text):
        yield Block(page, language, title, body)
    for body in re.findall(r"(?:^    .*\n(?:[ ]*\n(?=    ))*)+", fenced.sub("", text), re.MULTILINE):
        yield Block(page, "", "", dedent(body))


BLOCKS = [block for page, text in TEXTS.items() for block in blocks(page, text)]


@pytest.mark.parametrize("failure", FailureClass)
def test_every_failure_has_a_page_with_its_text_meaning_and_remedy(failure):
    info, page = describe(failure), MADE[f"failures/{failure.value}.md"]
    assert page.startswith(f"# `{failure.value}`: {prose(info.title)}\n")
    for part in (info.sentence, info.not_proof[1:], failures.BOOK.rule(failure).why, *info.confirming):
        assert prose(part) in page
    for signature in BY_NAME.values():
        assert (signature.example in page) or signature.failure is not failure
    assert f"({failure.value}.md)" in MADE["failures/index.md"]


def test_a_class_with_logs_shows_one_that_is_it_and_one_that_is_not():
    page = MADE["failures/fx_trace_race.md"]
    assert "**This is it.**" in page
    assert "So: dead, `fx_trace_race`." in page
    assert "**This is not.**" in page
    # What proves an OOM of the container stands in no log of its own.
    assert "Killed process 3309 (python3)" in MADE["failures/oom_host.md"].partition("## Two logs")[2]
    with_logs = [each for each in FailureClass if (examples.FOLDER / each.value).is_dir()]
    assert [each for each in with_logs if "## Two logs" not in MADE[f"failures/{each.value}.md"]] == []


def test_the_xid_page_has_every_code_of_the_catalogue():
    assert set(xids.CODES) == set(xid._TABLE)
    assert "| 79 | GPU has fallen off the bus | reboot the host |" in MADE[xids.PATH]


def test_no_class_is_left_out_of_the_navigation():
    assert sorted(each for found in failures.by_domain().values() for each in found) == sorted(FailureClass)


@pytest.mark.parametrize("words", verbs.VERBS)
def test_every_verb_has_a_reference_with_all_its_options(words):
    command, page = verbs.VERBS[words], MADE[verbs.path_of(words)]
    for param in command.params:
        for option in param.opts if param.param_type_name == "option" and not param.hidden else ():
            assert f"`{option}`" in page
    examples = (command.help or "").partition("Examples:")[2].strip().splitlines()
    assert all(line.strip() in page for line in examples)
    assert f"[{words}]" in MADE["verbs/index.md"]


def test_the_verbs_page_has_codes_variables_and_files():
    for code in re.findall(r"(\d+) ", EPILOG):
        assert f"| `{code}` |" in MADE["verbs/index.md"]
    assert "| `DFLASHCTL_RECORD` |" in MADE["verbs/index.md"]
    # The manual's words are these too, so a variable without any is without in both.
    assert [name for name in VARIABLES if f"| `{name}` |  |" in MADE["verbs/index.md"]] == []


def test_every_key_of_the_inventory_is_told_of():
    told = re.findall(r"^\| `(\w+)` \|", WRITTEN["docs/operations.md"], re.MULTILINE)
    for model in (Host, Container):
        assert set(model.model_fields) - {"name"} <= set(told)


def test_every_key_of_a_playbook_is_told_of_in_its_readme():
    told = included.read("playbooks/README.md")
    for _, model in keys.SECTIONS:
        for key in keys.keys_of(model):
            # A phase is told of by what it is: "stall limit of each phase".
            assert re.search(rf"\b{key}\b", told) or key in ("init", "load", "warmup", "compile"), key
            assert f"| `{key}` |" in MADE["playbook-keys.md"]


# By its first key. What is of other programs, or tested with its own verb, is read as YAML alone.
KINDS = {"urls": "notify.yaml", "hosts": "inventory", "scrape_configs": "prometheus.yml", "apt_wait": "steps"}
YAML = [
    block
    for block in BLOCKS
    if block.language == "yaml" or block.text.startswith(("extends:", "hosts:", "urls:"))
]


@pytest.mark.parametrize("block", YAML, ids=[f"{block.page}-{place}" for place, block in enumerate(YAML)])
def test_each_yaml_example_is_right(block, tmp_path, capsys):
    kind = KINDS.get(next(iter(yaml.safe_load(block.text))), "playbook")
    file = tmp_path / "dflashctl" / "notify.yaml"
    file.parent.mkdir()
    file.touch(mode=0o600)
    file.write_text(block.text, encoding="utf-8")
    assert block.title in (kind, "")
    if kind == "notify.yaml":
        assert notify.settings.load({"XDG_CONFIG_HOME": str(tmp_path)}).addresses
    elif kind == "inventory":
        assert Inventory.load([file.parent]).containers
    elif kind == "playbook":
        assert run(["playbook", "check", str(file), "--json"]) == 0
        # Nothing in it that can never happen, beside what the shipped one leaves to its reader's `allow`.
        assert set(json.loads(capsys.readouterr().out)["notes"]) <= set(idle_parts(failures.BOOK))


def test_there_are_yaml_examples_of_each_kind():
    told = [block.text for block in YAML]
    assert sum("extends: default" in text for text in told) >= 8
    assert any("hosts:" in text for text in told)
    assert any("urls:" in text for text in told)


def lines_of(text: str) -> Iterator[str]:
    """Yield the command lines of ours in some text: in blocks of code, and in code within a line."""
    mine = r"(?:\S*/)?dflashctl (?!:)[^`\n]+"
    yield from re.findall(rf"`({mine})`", text)
    for block in blocks("", text):
        for line in block.text.splitlines():
            if re.search(r"\S  [^\s#]", line) is not None:
                continue  # columns: a screen as it is seen, and no command
            if (found := re.match(rf"\s*(?:ExecStart=|\$ )?({mine})", line)) is not None:
                yield found.group(1)


def words_of(line: str) -> list[str]:
    """The words after the program's name, up to what belongs to the shell."""
    line = re.split(r"\s(?:\\?\||>|&&|;)\s", line)[0]  # in a table the bar is escaped
    return [word for word in shlex.split(line, comments=True)[1:] if word not in ("...", "\\")]


LINES = sorted({line for text in TEXTS.values() for line in lines_of(text) if "[OPTIONS]" not in line})


def refused(words: list[str]) -> str | None:
    """Say why the command line cannot be read, or None."""
    command: Any = verbs.ROOT
    words = [word for word in words if word not in ("--help", "VERB")]
    while hasattr(command, "commands") and words:
        options = {
            option: param for param in command.params for option in (*param.opts, *param.secondary_opts)
        }
        if words[0] in options:
            words = words[2 if takes_value(options[words[0]]) else 1 :]
        elif words[0] in command.commands:
            command, words = command.commands[words[0]], words[1:]
        else:
            return f"no such verb or option: {words[0]}"
    try:
        command.make_context("dflashctl", words) if words else None
    except _USAGE as error:
        return error.format_message()
    return None


@pytest.mark.parametrize("line", LINES)
def test_each_command_line_of_the_documentation_can_be_read(line):
    assert refused(words_of(line)) is None


def test_a_command_line_that_cannot_be_read_is_refused():
    assert len(LINES) > 100
    for line in (
        "dflashctl lunch",
        "dflashctl watch --observe",
        "dflashctl launch --ct two",
        "dflashctl rules shew x",
    ):
        assert refused(words_of(line)) is not None


@pytest.mark.parametrize("page", ["docs/fx-race.md", "docs/limits.md"])
def test_each_figure_stands_in_the_results(page):
    results = " ".join(included.read("benchmarks/RESULTS.md").replace(",", "").split())
    figures = re.findall(r"\d+(?:\.\d+)?(?= s\b| times\b| steps\b)|\d+ of \d+", WRITTEN[page])
    figures += re.findall(r"\d+ (?:attempts|deaths|watches|random)|\b0\.\d+", WRITTEN[page])
    assert len(figures) > 4
    assert [figure for figure in figures if figure.removesuffix(" random") not in results] == []


def test_what_is_asked_of_another_host_is_found():
    assert asked_of_page('<script src="https://cdn.example/x.js"></script>') == [
        "<script> https://cdn.example/x.js"
    ]
    assert asked_of_page('<link rel="stylesheet" href="//fonts.example/a.css">')
    assert asked_of_page('<link rel="preconnect" href="https://fonts.example">')
    assert asked_of_page("<style>@font-face{src:url(https://a.example/f.woff2)}</style>")
    assert asked_of_page('<p style="background:url(//a.example/x.png)">')
    assert asked_of_style("@import 'https://a.example/x.css';")


def test_what_is_ours_or_a_persons_own_click_is_not(tmp_path):
    (tmp_path / "index.html").write_text(
        '<link rel="canonical" href="https://a.example/"><a href="https://a.example">x</a><img src="x.png">'
        '<script src="assets/x.js"></script><style>p{background:url("data:image/svg+xml,<svg>")}</style>'
    )
    (tmp_path / "main.css").write_text("@font-face{src:url(f.woff2)}")
    assert list(asked_of_site(tmp_path)) == []
