"""Write a run down for a replay or a bug report: from the record, and from the container if it is reached.

Secrets are masked in the container, and once more here. Of a log its head, its tail and what surrounds the
evidence are kept, with their offsets; the rest is left out unless all of it is asked for.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.clock import timestamp
from orchestrator.connection import list_files, read_files
from orchestrator.errors import GuestError, GuestRefused
from orchestrator.masking import Masker
from orchestrator.replay.recording import META, SCHEMA
from orchestrator.wire import unpack_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime
    from pathlib import Path

    from orchestrator.connection import GuestClient
    from orchestrator.replay.known import Known

MAX_METRICS_BYTES = 4 << 20  # of a longer file the record's own rows are kept
MAX_STACK_BYTES = 4 << 20
READ_TIMEOUT_S = 60.0
LOOK_TIMEOUT_S = 30.0


@dataclass(kw_only=True)
class _Far:
    """What the container answered."""

    documents: dict[int, dict[str, dict[str, Any]]] = field(default_factory=dict)  # attempt -> file -> object
    sizes: dict[str, int] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    hello: dict[str, Any] = field(default_factory=dict)


class Recorder:
    """Writes one run into one folder."""

    def __init__(self, known: Known, into: Path, *, whole: bool = False) -> None:
        self._known = known
        self._into = into
        self._whole = whole
        self._masker = Masker()

    def write(self, client: GuestClient | None, unreached: str | None, now: datetime) -> None:
        """Write everything. Without a `client`, what the record knows, and `unreached`: why no more.

        Raises:
            GuestRefused: The container has no such run.
            BlindError: The way there broke.
        """
        far = self._ask(client) if client is not None else _Far()
        numbers = sorted({*far.documents, *(row.n for row in self._known.attempts)})
        for number in numbers:
            self._attempt(number, far)
            if client is not None:
                self._big_files(client, number, far)
        self._lines(self._into / "events.jsonl", self._known.event_lines())
        meta = {
            "schema": SCHEMA,
            "run": self._known.run,
            "recorded_at": timestamp(now),
            "unreached": unreached,
            "kernel_problem": self._known.kernel_problem,
            "alive": far.run.get("alive"),
            "stop": far.run.get("stop"),
            "checkpoint_step": far.run.get("checkpoint_step"),
            "container": {key: far.hello.get(key) for key in ("boot_id", "pid1_start_ticks")},
            "attempts": [self._known.row(row) for row in self._known.attempts],
        }
        self._json(self._into / META, meta)

    def _ask(self, client: GuestClient) -> _Far:
        run, far = self._known.run, _Far()
        for file in list_files(client, run, "attempts"):
            far.sizes[file.path] = file.size
        for path, data in read_files(client, run, "attempts", suffix=".json").items():
            _, number, *rest = path.split("/")
            if number.isdecimal() and len(rest) == 1 and isinstance(value := _parsed(data), dict):
                far.documents.setdefault(int(number), {})[rest[0]] = value
        look = client.call("look", {"run": run, "log_bytes": 0, "gpus": False}, timeout_s=LOOK_TIMEOUT_S)
        far.run = next((message for message in look if message["type"] == "run"), {})
        far.hello = client.call("hello", {}, timeout_s=LOOK_TIMEOUT_S)[0]
        return far

    def _attempt(self, number: int, far: _Far) -> None:
        folder = self._into / "attempts" / str(number)
        row = next((row for row in self._known.attempts if row.n == number), None)
        documents: dict[str, Any] = {}
        if row is not None:
            documents = {"run.json": row.spec, "environment.json": row.environment}
        documents.update(far.documents.get(number, {}))
        for name, value in documents.items():
            if value is not None:
                self._json(folder / name, value)
        self._lines(folder / "gpus.jsonl", self._known.gpu_lines(number))
        self._lines(folder / "kernel.jsonl", self._known.kernel_lines(number))

    def _big_files(self, client: GuestClient, number: int, far: _Far) -> None:
        base = f"attempts/{number}"
        if f"{base}/metrics.jsonl" in far.sizes:
            self._metrics(client, number, far.sizes[f"{base}/metrics.jsonl"])
        for path, bytes_ in far.sizes.items():
            if path.startswith(f"{base}/stacks/") and bytes_ <= MAX_STACK_BYTES:
                for name, data in read_files(client, self._known.run, path).items():
                    self._bytes(self._into / name, data)
        if (size := far.sizes.get(f"{base}/log", 0)) > 0:
            self._log(client, number, size)

    def _log(self, client: GuestClient, number: int, size: int) -> None:
        folder = self._into / "attempts" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        windows = [(0, size)] if self._whole else self._known.windows(number, size)
        pieces = []
        with (folder / "log").open("wb") as file:
            for begin, end in windows:
                done = 0
                for data in self._read_log(client, number, begin, end):
                    file.write(self._masker.mask(data, is_cut=True))
                    done += len(data)
                pieces.append({"at": begin, "bytes": done})
        self._json(folder / "log.json", {"size": size, "pieces": pieces})

    def _metrics(self, client: GuestClient, number: int, size: int) -> None:
        path = f"attempts/{number}/metrics.jsonl"
        if size <= MAX_METRICS_BYTES:
            try:
                self._bytes(self._into / path, read_files(client, self._known.run, path)[path])
            except GuestRefused as refusal:
                if refusal.reason != "checksum":  # it grew meanwhile
                    raise
            else:
                return
        self._lines(self._into / path, self._known.metric_lines(number))

    def _read_log(self, client: GuestClient, number: int, begin: int, end: int) -> Iterator[bytes]:
        """Yield the log's bytes from `begin` to `end`; fewer, if it became shorter."""
        request = {"run": self._known.run, "attempt": number, "offset": begin, "limit": end - begin}
        stream = client.watch(request, verb="tail")
        at = begin
        try:
            while at < end and (message := stream.read(READ_TIMEOUT_S)) is not None:
                if message["type"] != "log":
                    break
                data = unpack_bytes(message["data"])
                if message["offset"] != at:
                    raise GuestError(
                        f"{client.name}: guest tail: byte {message['offset']} where {at} was due"
                    )
                yield data[: end - at]
                at += len(data)
        finally:
            stream.close()

    def _json(self, path: Path, value: Mapping[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        body = json.dumps(self._masker.json(dict(value)), indent=1, default=str)
        path.write_text(body + "\n", encoding="utf-8")

    def _lines(self, path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
        lines = [json.dumps(self._masker.json(dict(row)), default=str) for row in rows]
        if lines:
            self._bytes(path, ("\n".join(lines) + "\n").encode())

    def _bytes(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self._masker.mask(data))


def _parsed(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
