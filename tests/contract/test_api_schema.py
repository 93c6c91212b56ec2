"""The JSON API as an interface: what others have built upon changes knowingly, or not at all.

After a change that was meant, `python -m tests.contract.test_api_schema` writes the document anew.
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.serve import models
from tests.unit.serve.stage import staged

FILE = Path(__file__).with_name("openapi.json")


@cache
def document() -> dict[str, Any]:
    """The API as it is served, without the program's version."""
    with tempfile.TemporaryDirectory() as home, staged(Path(home)) as stage:
        answer = stage.client().get("/api/v1/openapi.json")
    found: dict[str, Any] = answer.json()
    del found["info"]["version"]
    return found


def test_the_api_is_the_one_that_was_promised():
    known = json.loads(FILE.read_text(encoding="utf-8"))
    assert document() == known, (
        "the API changed: if it was meant, tell it in the changelog and write the file anew; "
        "what takes something away or gives it another meaning needs a new SCHEMA_VERSION"
    )


def test_every_answer_has_its_model_and_every_field_a_type():
    found = document()
    schemas = found["components"]["schemas"]
    for name in ("Fleet", "RunDetail", "Curves", "GpuHistory", "Lines", "Session", "Accepted", "Refusal"):
        assert name in schemas
    for name, schema in schemas.items():
        if name in vars(models):
            assert schema["additionalProperties"] is False, name
            assert schema["description"], name
            assert set(schema["required"]) == set(schema["properties"]), name
    for path, methods in found["paths"].items():
        for method, each in methods.items():
            assert each["summary"], f"{method} {path}"
            assert "401" in each["responses"], f"{method} {path}"


if __name__ == "__main__":
    FILE.write_text(json.dumps(document(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
