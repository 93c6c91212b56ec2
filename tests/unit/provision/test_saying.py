"""What apt and pip say: progress while they work, the reason and the remedy when they fail."""

from __future__ import annotations

import pytest

from orchestrator.provision.saying import Moment, Reader, why_apt, why_pip


def moments(*lines: str) -> list[Moment]:
    reader = Reader()
    return [moment for line in lines if (moment := reader.read(line)) is not None]


def test_apts_own_status_lines_are_the_bar_and_not_the_tail():
    reader = Reader()
    assert reader.read("dlstatus:1:23.5041:Retrieving file 1 of 5 (2s remaining)") == Moment(
        "downloading: Retrieving file 1 of 5 (2s remaining)", 23, 100
    )
    assert reader.read("pmstatus:tmux:66.6:Unpacking tmux (amd64)") == Moment(
        "Unpacking tmux (amd64)", 66, 100
    )
    assert reader.read("Setting up tmux (3.3a-3) ...") is None
    assert reader.tail() == ("Setting up tmux (3.3a-3) ...",)


def test_who_holds_apts_lock_is_told_while_we_wait():
    line = "Waiting for cache lock: Could not get lock /a. It is held by process 31 (apt-get)..."
    assert moments(line) == [Moment("waiting for the apt of process 31 (apt-get)")]


def test_pips_raw_bar_is_bytes_of_the_file_that_it_named():
    assert moments(
        "Collecting torch",
        "  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl.metadata (29 kB)",
        "Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (900.1 MB)",
        "Progress 1048576 of 900100000",
        "Installing collected packages: a, b, c",
    ) == [
        Moment("torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl"),
        Moment("torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl", 1048576, 900100000, is_bytes=True),
        Moment("Installing collected packages: a, b, c"),
    ]
    long = "Installing collected packages: " + ", ".join(f"package{n}" for n in range(58))
    assert moments(long) == [Moment("Installing collected packages, 58 of them")]


def test_only_the_last_lines_are_kept():
    reader = Reader()
    for number in range(1000):
        reader.read(f"line {number}")
    assert len(reader.lines) == Reader.KEEP
    assert reader.tail(2) == ("line 998", "line 999")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (apt)", "another apt"),
        ("Err:1 http://deb stable InRelease\n  Temporary failure resolving 'deb'", "reaches no mirror"),
        ("E: Unable to locate package python3", "do not have a package"),
        ("E: You don't have enough free space in /var/cache/apt/archives/.", "disk is full"),
        ("E: Failed to fetch http://x/a.deb  404  Not Found", "did not have what its list says"),
        ("W: GPG error: http://x InRelease: NO_PUBKEY 1", "not trusted"),
    ],
)
def test_why_apt_failed_has_a_remedy(line, what):
    found, fix = why_apt(("Reading package lists...", *line.splitlines()))
    assert what in found
    assert fix


def test_a_lock_that_is_held_is_the_reason_even_where_a_first_try_found_no_list():
    lines = ("E: Unable to locate package tmux", "E: Could not get lock /var/lib/apt/lists/lock.")
    assert why_apt(lines)[0] == "another apt or dpkg is at work there"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (
            "WARNING: Retrying ... NewConnectionError(': [Errno -2] Name or service not known')",
            "reaches no package",
        ),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "disk is full",
        ),
        ("ERROR: No matching distribution found for torch==2.13.0", "does not have a locked version"),
        ("ERROR: HTTP error 401 Client Error: Unauthorized for url", "refused the login"),
    ],
)
def test_why_pip_failed_has_a_remedy(line, what):
    found, fix = why_pip((line,))
    assert what in found
    assert fix


def test_what_nobody_knows_is_told_as_it_was_said():
    assert why_apt(("a", "E: something new", "b")) == ("E: something new", None)
    assert why_pip(()) == ("it said nothing", None)
