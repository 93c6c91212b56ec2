"""Options and inventory -> Target."""

import json
from typing import Any

import pytest

from orchestrator.errors import ConfigError, NotFound
from orchestrator.inventory import Container, Host, Inventory, Target, resolve

PVE1 = Host(name="pve1", address="10.1.2.6", become=("sudo", "-n"), user="admin")
DRAFTER = Container(
    name="drafter", host="pve1", ct=200, python="/venv/bin/python", config="tiny", gpus=(0, 1), mask=("LIC*",)
)
SPARE = Container(name="spare", host="pve1", ct=201)


def inventory(*containers: Container) -> Inventory:
    return Inventory(hosts={"pve1": PVE1}, containers={each.name: each for each in containers})


def test_host_and_ct_need_no_inventory():
    target = resolve(Inventory(), host="10.1.2.6", ct=200)
    assert target.key == "10.1.2.6/200"
    assert target.state_dir == "/var/lib/dflashctl"
    assert target.host == Host(name="10.1.2.6", address="10.1.2.6")


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"host": "local"}, "local"),
        ({"host": "local", "ct": 200}, "local/200"),
        ({"host": "10.1.2.6", "ct": 200, "user": "root", "port": 22}, "10.1.2.6/200"),
        ({"host": "10.1.2.6", "ct": 200, "user": "user", "port": 2222}, "user@10.1.2.6:2222/200"),
        ({"host": "user@10.1.2.6:2222", "ct": 200}, "user@10.1.2.6:2222/200"),
        ({"host": "[fe80::1]:2222", "ct": 200}, "[fe80::1]:2222/200"),
        ({"host": "10.1.2.6"}, "10.1.2.6"),
    ],
)
def test_the_key_is_stable(options: dict[str, Any], key: str):
    assert resolve(Inventory(), **options).key == key


def test_the_key_does_not_depend_on_the_name_given():
    listed = inventory(DRAFTER)
    keys = {
        resolve(listed, container="drafter").key,
        resolve(listed, host="pve1", ct=200).key,
        resolve(listed, host="10.1.2.6", ct=200).key,
        resolve(listed, host="pve1").key,
        resolve(listed, ct=200).key,
        resolve(listed).key,
    }
    assert keys == {"admin@10.1.2.6/200"}


def test_host_and_ct_take_the_inventorys_defaults():
    target = resolve(inventory(DRAFTER, SPARE), host="10.1.2.6", ct=200)
    assert (target.container, target.python, target.config, target.gpus) == (
        "drafter",
        "/venv/bin/python",
        "tiny",
        (0, 1),
    )
    assert (target.become, target.mask) == (("sudo", "-n"), ("LIC*",))


def test_an_option_wins_over_the_inventory():
    target = resolve(inventory(DRAFTER), container="drafter", python="/other", config="h200", gpus=())
    assert (target.python, target.config, target.gpus) == ("/other", "h200", ())


def test_local_without_a_container_keeps_its_state_at_home():
    assert resolve(Inventory(), host="local").state_dir == "~/.local/state/dflashctl/guest"
    assert resolve(Inventory(), host="local", ct=200).state_dir == "/var/lib/dflashctl"


def test_a_host_with_several_containers_needs_a_ct():
    with pytest.raises(ConfigError, match=r"several containers on it \(drafter, spare\); give --ct"):
        resolve(inventory(DRAFTER, SPARE), host="pve1")
    assert resolve(inventory(DRAFTER, SPARE), host="pve1", host_only=True).ct is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"no host given.*containers: drafter, spare"),
        ({"ct": 300}, r"no host given"),
        ({"host": "pve1", "ct": 20}, r"--ct: 20 is no container id"),
        ({"container": "drafter", "ct": 200}, r"leave out --host and --ct"),
        ({"host": "pve1", "ct": 200, "state_dir": "~/x"}, r'--state-dir: "~/x" is not allowed'),
        ({"host": "pve1", "ct": 200, "state_dir": "x"}, r"begins with /"),
        ({"host": "pve1", "ct": 200, "checkpoint_dir": "x"}, r"--checkpoint-dir"),
        ({"host": "pve1", "ct": 200, "port": 0}, r"--port: 0 is not allowed; allowed: 1 to 65535"),
        ({"host": "pve1", "ct": 200, "user": "-x"}, r'--user: "-x"'),
    ],
)
def test_options_that_do_not_fit_are_told(options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        resolve(inventory(DRAFTER, SPARE), **options)


def test_an_unknown_container_is_told_with_the_known_ones():
    with pytest.raises(NotFound, match=r'"draftr" is not in the inventory \(containers: drafter\)'):
        resolve(inventory(DRAFTER), container="draftr")


def test_a_target_survives_the_record():
    jump = Host(name="bastion", address="10.1.2.1")
    for target in (
        Target(),
        resolve(inventory(DRAFTER), container="drafter", known_hosts="/k"),
        Target(host=PVE1, jumps=(jump,), ct=200),
    ):
        assert Target.from_json(json.loads(json.dumps(target.to_json()))) == target


def test_a_record_of_a_later_version_is_readable_and_a_broken_one_is_told():
    assert Target.from_json({"ct": 200, "later": 1}) == Target(ct=200)
    with pytest.raises(ConfigError, match="not readable"):
        Target.from_json({"host": {"address": 7}})


def test_a_relative_python_is_of_the_folder_one_stands_in_and_only_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    empty = Inventory.load([])
    assert resolve(empty, host="local", python=".venv/bin/python").python == f"{tmp_path}/.venv/bin/python"
    assert resolve(empty, host="local", python="python3.12").python == "python3.12"
    with pytest.raises(ConfigError, match="--python"):
        resolve(empty, host="10.1.2.6", ct=200, python="venv/bin/python")


def test_files_of_this_machine_mean_the_same_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    target = resolve(Inventory.load([]), host="10.1.2.6", ct=200, identity="key", known_hosts="./known")
    assert target.host is not None
    assert target.host.identity == str(tmp_path / "key")
    assert target.known_hosts == str(tmp_path / "known")
