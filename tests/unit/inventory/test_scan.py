"""`pct list` and `pct config`, as Proxmox prints them."""

from collections.abc import Sequence

import pytest
import yaml

from orchestrator.errors import CommandFailed, HostDenied
from orchestrator.inventory import Host, Inventory, Target
from orchestrator.inventory.scan import Answer, gpus_of, parse_config, parse_list, render, scan

LIST = """\
VMID       Status     Lock         Name                
200        running                 trainer             
201        stopped    backup       spare               
202        running    snapshot-delete spare2              
203        stopped                 a-name-longer-than-twenty-letters
1000000000 running                 big
"""  # noqa: W291
CONFIG = """\
arch: amd64
dev0: /dev/nvidia0,mode=0666
dev1: path=/dev/nvidia3,gid=44
dev2: /dev/nvidiactl
dev3: /dev/nvidia-uvm,mode=0666
hostname: trainer
lxc.cgroup2.devices.allow: c 195:* rwm
"""
OLD_CONFIG = """\
hostname: old
lxc.cgroup2.devices.allow: c 195:* rwm
lxc.mount.entry: /dev/nvidia1 dev/nvidia1 none bind,optional,create=file
lxc.mount.entry: /dev/nvidia10 dev/nvidia10 none bind,optional,create=file
lxc.mount.entry: /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file
lxc.mount.entry: /dev/nvidia-caps/nvidia-cap1 dev/nvidia-caps/nvidia-cap1 none bind
"""


def test_a_blank_lock_is_no_field():
    listed = parse_list(LIST)
    assert [(each.ct, each.status, each.lock, each.name) for each in listed] == [
        (200, "running", None, "trainer"),
        (201, "stopped", "backup", "spare"),
        (202, "running", "snapshot-delete", "spare2"),
        (203, "stopped", None, "a-name-longer-than-twenty-letters"),
        (1000000000, "running", None, "big"),
    ]


def test_a_host_without_containers_prints_nothing():
    assert parse_list("") == ()
    assert parse_list("VMID       Status     Lock         Name\n") == ()


def test_gpus_of_the_new_form_are_dev_lines():
    assert gpus_of(parse_config(CONFIG)) == ((0, 3), False)


def test_gpus_of_the_old_form_are_mount_entries():
    assert gpus_of(parse_config(OLD_CONFIG)) == ((1, 10), False)


def test_a_cgroup_rule_alone_passes_no_gpu_through():
    assert gpus_of(parse_config("lxc.cgroup2.devices.allow: c 195:* rwm\n")) == ((), False)


def test_a_description_that_speaks_of_a_gpu_is_none():
    assert gpus_of(parse_config("description: dev0%3A /dev/nvidia0\nnet0: name=eth0\n")) == ((), False)


def test_a_bound_dev_is_told():
    assert gpus_of(parse_config("lxc.mount.entry: /dev dev none rbind\n")) == ((), True)


def answers(texts: dict[tuple[str, ...], Answer]):
    def ask(argv: Sequence[str]) -> Answer:
        return texts[tuple(argv)]

    return ask


def ok(text: str) -> Answer:
    return Answer(exit_code=0, stdout=text, stderr="")


def test_a_scan_renders_what_the_inventory_loads(tmp_path):
    target = Target(host=Host(name="pve1", address="10.1.2.6"), become=("sudo", "-n"))
    ask = answers(
        {
            ("sudo", "-n", "pct", "list"): ok("".join(LIST.splitlines(keepends=True)[:3])),
            ("sudo", "-n", "pct", "config", "200"): ok(CONFIG),
            ("sudo", "-n", "pct", "config", "201"): ok("hostname: trainer\n"),
        }
    )
    text = render(target, scan(ask, target))
    assert "# 201 spare: stopped, locked (backup); no GPU passed through" in text
    assert yaml.safe_load(text) == {
        "hosts": {"pve1": {"address": "10.1.2.6"}},
        "containers": {
            "trainer": {"host": "pve1", "ct": 200, "gpus": [0, 1]},
            "ct201": {"host": "pve1", "ct": 201},
        },
    }
    (tmp_path / "scanned.yaml").write_text(text)
    assert Inventory.load([tmp_path]).containers["trainer"].gpus == (0, 1)


def test_a_scanned_entry_carries_the_identity_and_says_that_the_key_must_be_known():
    host = Host(name="pve1", address="10.1.2.6", identity="/home/me/key")
    text = render(Target(host=host), ())
    assert yaml.safe_load(text)["hosts"]["pve1"]["identity"] == "/home/me/key"
    assert "# the host's key must be in ~/.ssh/known_hosts, or its fingerprint in a line host_key" in text
    told = render(Target(host=host, known_hosts="/k"), ())
    assert "must be in /k, " in told
    assert "give --known-hosts /k again" in told


def test_a_scanned_entry_whose_key_is_pinned_or_that_needs_no_ssh_says_nothing_of_keys():
    pinned = Host(name="pve1", address="10.1.2.6", host_key="SHA256:" + "a" * 43)
    assert "must be" not in render(Target(host=pinned), ())
    assert "must be" not in render(Target(), ())


def test_a_scan_without_containers_says_so():
    text = render(Target(), scan(answers({("pct", "list"): ok("")}), Target()))
    assert "local has no containers" in text
    assert yaml.safe_load(text) is None


@pytest.mark.parametrize(
    ("stderr", "error"),
    [
        ("please run as root\n", HostDenied),
        ("ipcc_send_rec[1] failed: Unknown error -1\n", HostDenied),
        ("sudo: a password is required\n", HostDenied),
        ("bash: line 1: pct: command not found\n", CommandFailed),
        ("something else\n", CommandFailed),
    ],
)
def test_a_refused_scan_is_told(stderr: str, error: type[Exception]):
    ask = answers({("pct", "list"): Answer(exit_code=255, stdout="", stderr=stderr)})
    with pytest.raises(error, match=r"local: "):
        scan(ask, Target())
