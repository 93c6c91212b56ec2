"""wheels and venv: the near half against the real guest as it travels, with real wheels and a real pip."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator.connection import GuestClient, LocalShell
from orchestrator.errors import ConfigError, GuestRefused
from orchestrator.guest import venvhold
from orchestrator.inventory import Target
from orchestrator.provision.form import Venv
from orchestrator.provision.lock import parse_lock
from orchestrator.provision.wheelhouse import Wheelhouse, check_fit, read_wheelhouse, send, write_manifest
from tests import wheels

if TYPE_CHECKING:
    from pathlib import Path

KEY = "0123456789abcdef"


def quiet(_: object) -> None:
    """Nobody looks."""


@pytest.fixture
def client(tmp_path: Path) -> GuestClient:
    return GuestClient(LocalShell(), Target(host=None, ct=None, state_dir=str(tmp_path / "state")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "house"
    made.mkdir()
    wheels.make(made, "alpha", "1.0", {"alpha_data.bin": bytes(range(256)) * 1000})
    wheels.make(made, "beta", "2.0")
    return made


def request(**more: Any) -> dict[str, Any]:
    call = {"requirements": ["alpha", "beta"], "index": None, "no_deps": False}
    body = {"key": KEY, "installs": [call], "constraints": "alpha==1.0\nbeta==2.0\n", "imports": ["alpha"]}
    return {**body, "wheelhouse": True, "facts": {"source": "test"}, **more}


def ask(client: GuestClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Ask for an environment, listening to the end: without a listener nothing is made."""
    stream = client.watch(body, verb="venv")
    said = []
    try:
        while not stream.is_ended:
            if (message := stream.read(120)) is not None:
                said.append(message)
    finally:
        stream.close()
    return said


def test_wheels_go_on_where_they_were_cut_and_are_checked_whole(client, folder, tmp_path):
    house = read_wheelhouse(folder, quiet)
    there = tmp_path / "state" / "wheelhouse" / KEY
    assert send(client, KEY, house, quiet) == house.num_bytes
    assert {path.name for path in there.iterdir()} == set(house.names)
    assert send(client, KEY, house, quiet) == 0

    alpha = house.files[0]
    half = alpha.size // 2
    (there / alpha.path.name).unlink()
    part = there / f".{alpha.path.name}.{alpha.sha256[:16]}.part"
    part.write_bytes(alpha.path.read_bytes()[:half])
    assert send(client, KEY, house, quiet) == alpha.size - half
    assert hashlib.sha256((there / alpha.path.name).read_bytes()).hexdigest() == alpha.sha256
    assert not part.exists()

    (there / alpha.path.name).unlink()
    part.write_bytes(bytes(half))
    with pytest.raises(GuestRefused) as caught:
        send(client, KEY, house, quiet)
    assert caught.value.reason == "checksum"
    assert not part.exists(), "wrong bytes are not taken up again"
    assert send(client, KEY, house, quiet) == alpha.size


def test_an_environment_is_whole_or_absent_and_the_link_names_the_last(client, folder, tmp_path):
    wheels.pips_own(folder)
    state = tmp_path / "state"
    send(client, KEY, read_wheelhouse(folder, quiet), quiet)
    left = state / "venvs" / KEY
    left.mkdir(parents=True)
    (left / "half").touch()  # as a killed pip leaves it

    with pytest.raises(GuestRefused) as caught:
        ask(client, request(imports=["gamma"]))
    assert caught.value.reason == "install_failed"
    assert "No module named 'gamma'" in caught.value.message
    assert not left.exists()
    (hello,) = client.call("hello", {})
    assert hello["venv_python"] is None

    *said, made = ask(client, request())
    assert made["packages"].items() >= {"alpha": "1.0", "beta": "2.0"}.items()
    assert {line["type"] for line in said} == {"said"}
    (hello,) = client.call("hello", {})
    assert hello["venv_python"] == made["python"] == f"{left}/bin/python"
    assert not (state / "wheelhouse" / KEY).exists()
    (again,) = ask(client, request())
    assert again["already"] is True

    held = subprocess.Popen([made["python"], "-c", "input()"], stdin=subprocess.PIPE)
    with pytest.raises(GuestRefused) as caught:
        ask(client, request(rebuild=True))
    held.communicate(b"\n")
    assert caught.value.reason == "in_use", "a run that lives keeps its environment"
    assert left.is_dir()

    with (state / "venvs" / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(GuestRefused) as caught:
            ask(client, request())
    assert caught.value.reason == "busy"
    assert "another provisioning is at work there" in caught.value.message

    (left / "dflashctl.json").unlink()
    (hello,) = client.call("hello", {})
    assert hello["venv_python"] is None, "without its stamp it is nobody's"


@pytest.mark.parametrize(
    ("verb", "wrong"),
    [
        ("venv", {"key": "../../etc"}),
        ("venv", {"installs": [{"requirements": ["--target=/"], "index": None}]}),
        ("venv", {"installs": []}),
        ("wheels", {"files": [{"name": "../x.whl", "size": 1, "sha256": "0" * 64}]}),
        ("wheels", {"files": [{"name": "x.sh", "size": 1, "sha256": "0" * 64}]}),
        ("wheels", {"files": [{"name": "x.whl", "size": 1, "sha256": "0" * 64, "offset": 2}]}),
        ("wheels", {"files": []}),
    ],
)
def test_what_would_reach_beyond_its_folder_is_refused(client, verb, wrong):
    with pytest.raises(GuestRefused) as caught:
        client.call(verb, request(**wrong), timeout_s=60)
    assert caught.value.reason == "bad_request"


def test_too_little_room_is_told_before_anything_is_made(client, tmp_path):
    with pytest.raises(GuestRefused) as caught:
        ask(client, request(min_free_bytes=1 << 60))
    assert caught.value.reason == "no_space"
    assert not (tmp_path / "state" / "venvs" / KEY).exists()


def test_a_wheel_that_is_damaged_here_is_told_as_that_and_not_sent_again(client, folder):
    house = read_wheelhouse(folder, quiet)
    write_manifest(folder, house, {"python": "3.11"})
    beta = folder / house.names[1]
    data = bytearray(beta.read_bytes())
    data[len(data) // 2] ^= 1
    beta.write_bytes(data)
    with pytest.raises(ConfigError, match=rf"{beta.name}: its sha256 is \w+, not the \w+ of wheelhouse"):
        send(client, KEY, read_wheelhouse(folder, quiet), quiet)


def test_a_wheelhouse_that_is_damaged_or_does_not_fit_is_refused_here(folder):
    house = read_wheelhouse(folder, quiet)
    venv = Venv(requirements=["alpha", "gamma"], lock="x")
    check_fit(house, venv, parse_lock("alpha==1.0\n", "x"), "3.11", needs_pip=False)
    for lock, python, needs_pip, says in (
        ("gamma==1.0\n", "3.11", False, "no wheel of gamma 1.0"),
        ("alpha==1.1\n", "3.11", False, "no wheel of alpha 1.1"),
        ("alpha==1.0\n", "3.11", True, "no ensurepip"),
    ):
        with pytest.raises(ConfigError, match=says):
            check_fit(house, venv, parse_lock(lock, "x"), python, needs_pip=needs_pip)
    with pytest.raises(ConfigError, match=r"is for Python 3\.12"):
        check_fit(Wheelhouse(house.files, "3.12"), venv, parse_lock("", "x"), "3.11", needs_pip=False)

    write_manifest(folder, house, {"python": "3.11"})
    assert read_wheelhouse(folder, quiet) == Wheelhouse(house.files, "3.11")
    (folder / house.names[0]).write_bytes(b"damaged")
    with pytest.raises(ConfigError, match=r"it has 7 bytes, not the \d+ of wheelhouse\.json"):
        read_wheelhouse(folder, quiet)
    (folder / house.names[0]).unlink()
    with pytest.raises(ConfigError, match=r"is in wheelhouse\.json and not there"):
        read_wheelhouse(folder, quiet)


def test_a_second_provisioning_is_told_whose_the_first_is_and_what_to_do(client, folder, tmp_path):
    house = read_wheelhouse(folder, quiet)
    state, who = tmp_path / "state", {"user": "ann", "host": "desk", "pid": 4711}
    with venvhold.hold(state, {"by": who}):
        for work in (
            lambda: ask(client, request()),
            lambda: send(client, KEY, house, quiet),
        ):
            with pytest.raises(GuestRefused) as caught:
                work()
            assert caught.value.reason == "busy"
            whose = f"at work there: of ann@desk (pid 4711), since {datetime.now(timezone.utc):%Y-}"
            assert whose in str(caught.value)
            assert f"process {os.getpid()} in the container" in str(caught.value)
            assert "end it where it runs" in (caught.value.hint or "")
    assert send(client, KEY, house, quiet) > 0
