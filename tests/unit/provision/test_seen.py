"""The look's lines: what they mean, and that nothing which a container says breaks the reader."""

from __future__ import annotations

import pytest

from orchestrator.provision.seen import Seen, VenvSeen, parse_seen, version_numbers

TEXT = """\
uid 0
machine x86_64
glibc glibc 2.36
apt /usr/bin/apt-get
free 1024
python 3.11.2
current venvs/0123456789abcdef
trainer yes
program tmux tmux 3.3a
module ensurepip
package ca-certificates ii
package zsh
stamp 0123456789abcdef {"packages": {"torch": "2.13.0"}}
has 0123456789abcdef {"torch": "2.13.0", "pip": "26.3"}
"""


def test_a_whole_look_is_read():
    assert parse_seen(TEXT) == Seen(
        uid=0,
        machine="x86_64",
        glibc="2.36",
        has_apt=True,
        free_bytes=1 << 20,
        python="3.11.2",
        programs={"tmux": "tmux 3.3a"},
        modules=frozenset({"ensurepip"}),
        packages=frozenset({"ca-certificates"}),
        venvs={
            "0123456789abcdef": VenvSeen(packages={"torch": "2.13.0"}, now={"torch": "2.13.0", "pip": "26.3"})
        },
        current="0123456789abcdef",
        has_trainer=True,
    )


def test_a_bare_container_has_nothing():
    seen = parse_seen("uid 0\nmachine x86_64\nglibc \napt \nfree x\npython \ncurrent \n")
    assert (seen.python, seen.minor, seen.current, seen.has_apt, seen.free_bytes) == (
        None,
        None,
        None,
        False,
        None,
    )


@pytest.mark.parametrize(
    "text",
    ["", "\n\n", "stamp", "stamp k", "stamp k [1]", "stamp k {", "has k {}", "program", "uid -1", "a\0b"],
)
def test_anything_else_counts_as_not_there(text):
    assert parse_seen(text).venvs == {}


def test_an_environment_whose_python_does_not_run_is_known_as_that():
    seen = parse_seen('stamp 0123456789abcdef {"packages": {}}\nhas 0123456789abcdef \n')
    assert seen.venvs["0123456789abcdef"].now is None


def test_versions_compare_as_numbers():
    assert version_numbers("tmux 3.3a") == (3, 3)
    assert version_numbers("3.10") > version_numbers("3.9.18")
    assert version_numbers(None) == version_numbers("next") == ()
