"""What `dflashctl cache` finds, gathered from every place, and told as a table or as an object."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from orchestrator.cli.context import SETTINGS, age_text, print_json
from orchestrator.cli.reaching import site_of
from orchestrator.cli.tables import print_table
from orchestrator.clock import timestamp
from orchestrator.errors import BlindError, GuestRefused
from orchestrator.sizes import size_text
from orchestrator.terminal import one_line

if TYPE_CHECKING:
    from orchestrator.compilecache import Artifact, Store
    from orchestrator.record import Record, RunRow

SHORT = 12  # characters of a fingerprint that a person is shown


def store_of(record: Record) -> Store:
    """Return what is kept on this machine, beside the record."""
    from orchestrator.compilecache import Store

    return Store.beside(record.path)


def collect(record: Record, rows: Sequence[RunRow], *, check: bool) -> list[dict[str, Any]]:
    """Return what each run has there, asked all at once, then what is kept here; a dictionary a place."""
    with ThreadPoolExecutor(max_workers=min(16, len(rows) or 1)) as pool:
        found = list(pool.map(lambda row: _there(row, check=check), rows))
    return found + kept(record, rows, check=check)


def _there(row: RunRow, *, check: bool) -> dict[str, Any]:
    from orchestrator.compilecache import far_artifacts

    place: dict[str, Any] = {"where": "container", "run": row.name, "target": row.target_key}
    site = site_of(row)
    try:
        return {**place, "artifacts": far_artifacts(site.client(), row.name, check=check), "problem": None}
    except (BlindError, GuestRefused) as error:
        return {**place, "artifacts": [], "problem": str(error)}
    finally:
        site.close()


def kept(record: Record, rows: Sequence[RunRow], *, check: bool) -> list[dict[str, Any]]:
    """Return what is kept here, a dictionary a place; `rows` are the runs that the record knows."""
    store = store_of(record)
    # A folder spells the target with other letters; where the run is known, its own name is shown.
    names = {(store.folder(row.target_key, row.name).parent.name, row.name): row.target_key for row in rows}
    return [
        {
            "where": "here",
            "run": run,
            "target": names.get((target, run), target),
            "artifacts": store.artifacts(target, run, check=check),
            "problem": None,
        }
        for target, run in store.places()
    ]


def body(artifact: Artifact) -> dict[str, Any]:
    """Return an artifact as `--json` shows it."""
    return {
        "fingerprint": artifact.fingerprint,
        "torch": artifact.torch,
        "device": artifact.device,
        "bytes": artifact.num_bytes,
        "sha256": artifact.sha256,
        "at": timestamp(artifact.at) if artifact.at else None,
        "compile_s": artifact.compile_s,
        "problem": artifact.problem,
    }


def tell(places: Sequence[dict[str, Any]], *, as_json: bool, verdict: str) -> None:
    """Print the places; `verdict` is the state of what has no problem."""
    if as_json:
        print_json({"places": [{**p, "artifacts": [body(a) for a in p["artifacts"]]} for p in places]})
        return
    rows = []
    for place in places:
        at = f"{place['target']}{' (kept here)' if place['where'] == 'here' else ''}"
        for each in place["artifacts"]:
            age = age_text(each.at) if each.at else ""
            cells = (place["run"], at, each.fingerprint[:SHORT], each.torch, each.device)
            state = each.problem or verdict
            rest = (size_text(each.num_bytes), age, state)
            rows.append([one_line(cell, 100) for cell in (*cells, *rest)])
        if place["problem"]:
            SETTINGS.err.print(
                f"{place['run']} at {place['target']}: {one_line(place['problem'])}", markup=False
            )
    if rows:
        titles = ("RUN", "AT", "FINGERPRINT", "TORCH", "GPU", "SIZE", "AGE", "STATE")
        print_table(titles, rows, elastic={"GPU": 8, "TORCH": 8, "STATE": 16, "AT": 10, "RUN": 12})
    else:
        text = (
            "no compile artifacts; the trainer saves them after its warm-up where inductor compiles (a GPU)"
        )
        SETTINGS.out.print(text, markup=False)
