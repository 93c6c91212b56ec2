"""From the guest's JSON to the frozen vocabulary. Pure; what is malformed becomes Blind, never Absent."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.types import (
    Absent,
    Blind,
    ExitRecord,
    Gpu,
    Heartbeat,
    LastWords,
    Liveness,
    Phase,
    Present,
    Reading,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")


def instant(text: str) -> datetime:
    """Return an aware UTC time of RFC 3339 text.

    Raises:
        ValueError: It is none.
    """
    # Python 3.10's fromisoformat does not know the Z.
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(timezone.utc)


def reading(value: Any, make: Callable[[Mapping[str, Any]], T], what: str) -> Reading[T]:  # noqa: ANN401
    """Return Present of what `make` builds, Absent for null, Blind for what is not the contract's."""
    if value is None:
        return Absent()
    try:
        return Present(make(value))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return Blind(f"{what} is not what DESIGN.md says: {error!r}")


def heartbeat(value: Mapping[str, Any]) -> Heartbeat:
    """Return heartbeat.json."""
    return Heartbeat(
        phase=Phase(value["phase"]),
        step=int(value["step"]),
        at=instant(value["at"]),
        total_steps=value.get("total_steps"),
        loss=value.get("loss"),
        tokens_per_s=value.get("tokens_per_s"),
        step_s=value.get("step_s"),
        recompiles=int(value.get("recompiles") or 0),
        skipped_steps=int(value.get("skipped_steps") or 0),
        rollbacks=int(value.get("rollbacks") or 0),
        peak_memory_bytes=value.get("peak_memory_bytes"),
        resumed_from_step=value.get("resumed_from_step"),
        checkpoint_step=value.get("checkpoint_step"),
    )


def exit_record(value: Mapping[str, Any]) -> ExitRecord:
    """Return exit.json."""
    return ExitRecord(
        code=value["code"],
        signal=value["signal"],
        at=instant(value["at"]),
        duration_s=float(value["duration_s"]),
        error=value.get("error"),
        oom_kills=value.get("oom_kills"),
    )


def last_words(value: Mapping[str, Any]) -> LastWords:
    """Return error.json."""
    return LastWords(
        exception=str(value["exception"]),
        message=str(value["message"]),
        traceback=str(value.get("traceback") or ""),
        rank=int(value.get("rank") or 0),
        phase=value.get("phase"),
        step=value.get("step"),
        kind=value.get("kind"),
    )


def liveness(value: Mapping[str, Any]) -> Liveness:
    """Return the `alive` part of a `run` message."""
    return Liveness(
        lock_held=bool(value["lock_held"]),
        pids=tuple(int(pid) for pid in value["pids"]),
        supervisor=bool(value["supervisor"]),
        session=value["session"] is not False,  # null: tmux could not be asked, which proves nothing
    )


def gpus(message: Mapping[str, Any]) -> Reading[tuple[Gpu, ...]]:
    """Return the GPUs of a `gpu` message: no driver at all is Absent, one that does not answer is Blind."""
    if message.get("source") == "none":
        return Absent()
    if message.get("source") is None:
        return Blind(str(message.get("problem") or "no NVML and no nvidia-smi"))
    return reading(message.get("gpus"), lambda rows: tuple(_gpu(row) for row in rows), "the GPU reading")


def _gpu(row: Any) -> Gpu:  # noqa: ANN401
    return Gpu(
        index=int(row["index"]),
        uuid=row.get("uuid"),
        name=row.get("name"),
        memory_used_bytes=row.get("memory_used_bytes"),
        memory_total_bytes=row.get("memory_total_bytes"),
        utilization_pct=row.get("utilization_pct"),
        power_w=row.get("power_w"),
        temperature_c=row.get("temperature_c"),
        pids=tuple(int(process["pid"]) for process in row.get("processes") or ()),
        problem=row.get("problem"),
        pci=row.get("pci"),
        recovery=row.get("recovery"),
        ecc_uncorrected=row.get("ecc_uncorrected"),
        remap_pending=row.get("remap_pending"),
        remap_failed=row.get("remap_failed"),
    )
