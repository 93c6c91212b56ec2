from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.serve.stage import Stage, staged

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def stage(tmp_path) -> Iterator[Stage]:
    with staged(tmp_path) as made:
        yield made
