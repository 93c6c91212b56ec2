"""What the files under inventory/ may say, and where they are looked for."""

from pathlib import Path

import pytest

from orchestrator.errors import ConfigError, InventoryError
from orchestrator.inventory import Inventory, find

GOOD = """\
hosts:
  pve1:
    address: 10.1.2.6
    user: admin
    port: 2222
    identity: keys/id
    host_key: SHA256:e+cQTxw0XDIxPcvBt6GRs1aM3hR8Xxqubm5aFwno3oc
    jump: bastion
    become: [sudo, -n]
  bastion: {address: 10.1.2.1}
containers:
  drafter: {host: pve1, ct: 200, gpus: [0, 1], env_file: drafter.env, mask: [LICENCE]}
  here: {host: local}
"""


def load(tmp_path: Path, **files: str) -> Inventory:
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return Inventory.load([tmp_path])


def test_a_full_inventory_loads(tmp_path: Path):
    inventory = load(tmp_path, all=GOOD)
    pve1 = inventory.hosts["pve1"]
    assert (pve1.user, pve1.port, pve1.become) == ("admin", 2222, ("sudo", "-n"))
    assert inventory.containers["drafter"].gpus == (0, 1)
    assert inventory.containers["drafter"].mask == ("LICENCE",)
    assert [host.name for host in inventory.jumps(pve1)] == ["bastion"]


def test_paths_of_this_machine_start_at_the_file(tmp_path: Path):
    inventory = load(tmp_path, all=GOOD)
    assert inventory.hosts["pve1"].identity == str(tmp_path / "keys/id")
    assert inventory.containers["drafter"].env_file == str(tmp_path / "drafter.env")


def test_files_of_a_folder_are_one_inventory(tmp_path: Path):
    inventory = load(
        tmp_path, a="containers:\n  c: {host: h, ct: 200}\n", b="hosts:\n  h: {address: 10.1.2.6}\n"
    )
    assert inventory.containers["c"].host == "h"
    assert [Path(source).name for source in inventory.sources] == ["a.yaml", "b.yaml"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hosts: {h: {address: 'a b'}}", r':1: hosts\.h\.address: "a b" is not allowed'),
        ("hosts: {h: {address: -oProxyCommand=x}}", r"hosts\.h\.address"),
        ("hosts: {h: {address: a, port: 70000}}", r"hosts\.h\.port: 70000 .*allowed: 1 to 65535"),
        ("hosts: {h: {address: a, port: '22'}}", r'hosts\.h\.port: "22" is not allowed'),
        ("hosts: {h: {address: a, host_key: MD5:aa}}", r"hosts\.h\.host_key.*SHA256"),
        ("hosts: {h: {adress: a}}", r'unknown key with the value "a"; did you mean "address"\?'),
        ("hosts: {h: {}}", r'hosts\.h: the key "address" is missing'),
        ("hosts: {local: {address: a}}", r'is not "local"'),
        ("hosts: {'a/b': {address: a}}", r"hosts\.a/b"),
        ("hosts: {h: {address: a, name: b}}", r"hosts\.h"),
        ("hosts: {7: {address: a}}", r"the name 7 is no text; put it in quotes"),
        ("hosts: [a]", r"allowed: name: \{key: value\}"),
        ("host: {}", r":1: host: unknown key with the value \{\}; allowed: hosts, containers"),
        ("[]", r"is no mapping"),
        ("containers: {c: {host: local, ct: 20}}", r"containers\.c\.ct: 20 .*100 or more"),
        ("containers: {c: {host: local, gpus: 0}}", r"containers\.c\.gpus: 0 .*\[0, 1\]"),
        ("containers: {c: {host: local, gpus: [0, 0]}}", r"stands once"),
        ("containers: {c: {host: local, state_dir: x}}", r"containers\.c\.state_dir: .x. .*absolute path"),
        ("containers: {c: {host: pve9, ct: 200}}", r'c\.host: "pve9" is not among the hosts \(local\)'),
        ("hosts: {a: {address: a, jump: b}, b: {address: b, jump: a}}", r"leads in a circle"),
        ("hosts: {a: {address: a, jump: 'x:y:z@'}}", r":1: hosts\.a\.jump: .* is no address"),
    ],
)
def test_a_wrong_entry_is_told(tmp_path: Path, text: str, message: str):
    with pytest.raises(InventoryError, match=message):
        load(tmp_path, bad=text)


def test_a_name_given_in_two_files_is_told_with_both_places(tmp_path: Path):
    text = "hosts: {h: {address: a}}"
    with pytest.raises(InventoryError, match=r"b\.yaml:1: hosts\.h: .*twice; it is at .*a\.yaml:1"):
        load(tmp_path, a=text, b=text)


def test_an_inventory_that_was_asked_for_must_exist(tmp_path: Path):
    with pytest.raises(InventoryError, match="no such file or folder"):
        Inventory.load(find(tmp_path / "none"))


def test_folders_are_looked_for_in_order(tmp_path: Path):
    here, home = tmp_path / "here", tmp_path / "home"
    env = {"XDG_CONFIG_HOME": str(home)}
    shipped = find(None, cwd=here, env=env)
    assert shipped[0].name == "inventory"
    for folder in (home / "dflashctl" / "inventory", here / "inventory"):
        folder.mkdir(parents=True)
        assert find(None, cwd=here, env=env) == shipped or find(None, cwd=here, env=env) != [folder]
        (folder / "hosts.yaml").write_text("")
        assert find(None, cwd=here, env=env) == [folder]
    assert find(tmp_path, cwd=here, env=env) == [tmp_path]


def test_a_host_is_found_by_name_by_address_and_made_from_an_address(tmp_path: Path):
    inventory = load(tmp_path, all=GOOD)
    assert inventory.host("pve1").name == "pve1"
    assert inventory.host("10.1.2.6").name == "pve1"
    assert inventory.host("root@10.1.2.6").user == "root"
    made = inventory.host("me@[fe80::1]:2200")
    assert (made.user, made.address, made.port) == ("me", "fe80::1", 2200)
    assert inventory.host("fe80::1").port is None


@pytest.mark.parametrize(
    "text", ["", "@a", "a:", "a:b", "-a", "a b", "[a", "[::1]22", "a:99999", "a\n", "$(a)"]
)
def test_what_is_no_address_is_refused(text: str):
    with pytest.raises(ConfigError, match=r"--host|--port"):
        Inventory().host(text)
