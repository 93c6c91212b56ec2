"""The inventory that is shipped: empty as it is, and right once its comments are taken away."""

from pathlib import Path

import pytest

from orchestrator.inventory import Inventory, resolve

SHIPPED = Path(__file__).parents[2] / "inventory"


def test_it_declares_nothing():
    inventory = Inventory.load([SHIPPED])
    assert (inventory.hosts, inventory.containers) == ({}, {})
    assert len(inventory.sources) == 2


def test_its_examples_are_valid(tmp_path: Path):
    for path in SHIPPED.glob("*.yaml"):
        lines = path.read_text().splitlines()
        start = next(number for number, line in enumerate(lines) if line in ("# hosts:", "# containers:"))
        (tmp_path / path.name).write_text("\n".join(line.removeprefix("# ") for line in lines[start:]))
    inventory = Inventory.load([tmp_path])
    target = resolve(inventory, container="drafter")
    assert target.key == "10.1.2.6/200"
    assert [host.name for host in target.jumps] == ["bastion"]
    assert target.env_file == str(tmp_path / "drafter.env")


@pytest.mark.parametrize("path", sorted(SHIPPED.iterdir()), ids=lambda path: path.name)
def test_it_holds_data_only(path: Path):
    assert path.suffix == ".yaml"
