"""What is new in one attempt: log and metrics bytes by offset, its small files when they change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import wire
from orchestrator.guest import exits, files
from orchestrator.guest.masked import MaskedFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.guest.masks import RunMasks
    from orchestrator.guest.paths import RunDir

LOG_PIECE_BYTES = 128 << 10
METRICS_PIECE_BYTES = 64 << 10
# File name -> line type: a line of type "error" is the guest's own refusal.
SMALL_FILES = {
    "heartbeat": "heartbeat",
    "environment": "environment",
    "error": "last_words",
    "result": "result",
}

Line = tuple[str, dict[str, Any]]


class AttemptFeed:
    """Reads one attempt; `turn` gives at most one piece of each file, so that no run starves another."""

    def __init__(
        self, run: RunDir, number: int, masks: RunMasks, log_offset: int = 0, metrics_offset: int = 0
    ) -> None:
        self.run = run
        self.masks = masks
        self.number = number
        self.dir = run.attempt(number)
        self.log_offset = log_offset
        self.metrics_offset = metrics_offset
        self.is_drained = False  # all that was there at the last turn has been given
        self.has_ended = False  # exit.json is there
        self.is_final = False  # who looks once waits for no line's end
        self._stamps: dict[str, files.Stamp | None] = {}
        self._paths = {name: str(self.dir / f"{name}.json") for name in SMALL_FILES}
        self._exit: dict[str, Any] | None = None
        self._exit_stamp: files.Stamp | None = None
        self._log_path = self.dir / "log"
        self._is_anew = False  # the next piece is of a log that was emptied
        self._log = MaskedFile(self._log_path, masks.current)
        self._metrics = self.dir / "metrics.jsonl"

    @property
    def has_more(self) -> bool:
        """The last turn gave only a piece of what can be given now."""
        return not self.is_drained and not self._log.is_holding

    def turn(self) -> Iterator[Line]:
        """Give what is new. exit.json is looked at first and given last, after every byte before it."""
        self._look_for_exit()
        yield from self._log_piece()
        yield from self._metrics_piece()
        for name in SMALL_FILES:
            yield from self._small(name)
        self.is_drained = self._is_at_end()
        if self._exit is not None and self.is_drained:
            value, self._exit = self._exit, None
            yield "exit", self._with_value(value)

    def _fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {"run": self.run.name, "attempt": self.number, **fields}

    def _with_value(self, value: dict[str, Any]) -> dict[str, Any]:
        return self._fields({"value": files.fit(self.masks.current().json(value))})

    def _look_for_exit(self) -> None:
        found = files.stamp(self.dir / exits.NAME)
        if found is None or found == self._exit_stamp:
            return
        self._exit_stamp = found
        self._exit = files.read_json(self.dir / exits.NAME)
        self.has_ended = True

    def _is_at_end(self) -> bool:
        is_log_read = self.log_offset >= files.size_of(self._log_path)
        # A last line without its end is no line and is not waited for.
        rest = files.read_piece(self._metrics, self.metrics_offset, METRICS_PIECE_BYTES)
        return is_log_read and b"\n" not in rest

    def _log_piece(self) -> Iterator[Line]:
        size = files.size_of(self._log_path)
        if size == self.log_offset:
            return
        if size < self.log_offset and size > 0:  # somebody emptied it; what is there now is new
            self.log_offset, self._is_anew = 0, True
        piece = self._log.piece(self.log_offset, LOG_PIECE_BYTES, is_final=self.is_final or self.has_ended)
        if piece:
            offset, self.log_offset = self.log_offset, self.log_offset + len(piece)
            fields = {"offset": offset, "data": wire.pack_bytes(piece)}
            yield "log", self._fields({**fields, "anew": True} if self._is_anew else fields)
            self._is_anew = False

    def _metrics_piece(self) -> Iterator[Line]:
        size = files.size_of(self._metrics)
        if size == self.metrics_offset:
            return
        if size < self.metrics_offset and size > 0:
            self.metrics_offset = 0
        piece = files.read_piece(self._metrics, self.metrics_offset, METRICS_PIECE_BYTES)
        end = piece.rfind(b"\n") + 1
        if end == 0:
            if len(piece) < METRICS_PIECE_BYTES:
                return
            end = len(piece)  # no line of ours is that long: skip it
        offset, self.metrics_offset = self.metrics_offset, self.metrics_offset + end
        found = (files.parse_object(line) for line in piece[:end].splitlines())
        masker = self.masks.current()
        lines = [masker.json(value) for value in found if value is not None]
        yield "metrics", self._fields({"offset": offset, "next_offset": self.metrics_offset, "lines": lines})

    def _small(self, name: str) -> Iterator[Line]:
        found = files.stamp(self._paths[name])
        if found is None or found == self._stamps.get(name):
            return
        self._stamps[name] = found
        value = files.read_json(Path(self._paths[name]))
        if value is not None:
            yield SMALL_FILES[name], self._with_value(value)
