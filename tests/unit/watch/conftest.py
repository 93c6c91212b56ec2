from collections.abc import Iterator

import pytest

from orchestrator.record import Record
from tests.unit.watch.bench import Bench


@pytest.fixture
def record(tmp_path) -> Iterator[Record]:
    with Record.open(tmp_path / "record.sqlite3") as opened:
        yield opened


@pytest.fixture
def bench(record) -> Bench:
    return Bench(record)
