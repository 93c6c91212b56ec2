"""From the guest's JSON to the frozen vocabulary. Pure; what is malformed becomes Blind, never Absent."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.types.seen import (
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
    except KeyError as error:
        return Blind(f"{what} has no {error}: written by another program, or damaged")
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        return Blind(f"{what} is not what it should be ({error}): written by another program, or damaged")


def number(value: Mapping[str, Any], key: str) -> float | None:
    """Return an optional number; one that is not finite is unknown.

    Raises:
        TypeError: It is something else.
    """
    found = value.get(key)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise TypeError(f"{key} is {found!r:.80}, not a number")
    return found if math.isfinite(found) else None


def finite(value: Mapping[str, Any], key: str) -> float:
    """Return a number that must be there.

    Raises:
        TypeError, ValueError: It is not there, something else, or not finite.
    """
    found = number(value, key)
    if found is None:
        raise ValueError(f"{key} is {value.get(key)!r:.80}, not a finite number")
    return found


def _count(value: Mapping[str, Any], key: str) -> int | None:
    """Return an optional whole number.

    Raises:
        TypeError: It is something else.
    """
    found = value.get(key)
    if found is None or (isinstance(found, int) and not isinstance(found, bool)):
        return found
    raise TypeError(f"{key} is {found!r:.80}, not a whole number")


def _text(value: Mapping[str, Any], key: str) -> str | None:
    found = value.get(key)
    return None if found is None else str(found)


def heartbeat(value: Mapping[str, Any]) -> Heartbeat:
    """Return heartbeat.json."""
    return Heartbeat(
        phase=Phase(value["phase"]),
        step=int(value["step"]),
        at=instant(value["at"]),
        total_steps=_count(value, "total_steps"),
        loss=_loss(value),
        tokens_per_s=number(value, "tokens_per_s"),
        step_s=number(value, "step_s"),
        recompiles=int(value.get("recompiles") or 0),
        skipped_steps=int(value.get("skipped_steps") or 0),
        rollbacks=int(value.get("rollbacks") or 0),
        peak_memory_bytes=_count(value, "peak_memory_bytes"),
        resumed_from_step=_count(value, "resumed_from_step"),
        checkpoint_step=_count(value, "checkpoint_step"),
    )


def _loss(value: Mapping[str, Any]) -> float | None:
    """Return the loss, which is the one number that may be none."""
    found = value.get("loss")
    return found if isinstance(found, float) else number(value, "loss")


def exit_record(value: Mapping[str, Any]) -> ExitRecord:
    """Return exit.json."""
    return ExitRecord(
        code=_count({"code": value["code"]}, "code"),
        signal=_count({"signal": value["signal"]}, "signal"),
        at=instant(value["at"]),
        duration_s=finite(value, "duration_s"),
        error=_text(value, "error"),
        oom_kills=_count(value, "oom_kills"),
        leftover=_pids(value.get("leftover")),
    )


def _pids(value: Any) -> tuple[int, ...]:  # noqa: ANN401
    """Return process ids; what is none says nothing, and takes nothing from the rest."""
    return tuple(pid for pid in value if isinstance(pid, int)) if isinstance(value, list) else ()


def last_words(value: Mapping[str, Any]) -> LastWords:
    """Return error.json."""
    return LastWords(
        exception=str(value["exception"]),
        message=str(value["message"]),
        traceback=str(value.get("traceback") or ""),
        rank=int(value.get("rank") or 0),
        phase=_text(value, "phase"),
        step=_count(value, "step"),
        kind=_text(value, "kind"),
    )


def liveness(value: Mapping[str, Any]) -> Liveness:
    """Return the `alive` part of a `run` message."""
    return Liveness(
        lock_held=bool(value["lock_held"]),
        pids=tuple(int(pid) for pid in value["pids"]),
        supervisor=bool(value["supervisor"]),
        session=value["session"] is not False,  # null: tmux could not be asked, which proves nothing
    )


def removal(alive: Any, newest: int | None) -> str:  # noqa: ANN401
    """Return what to say of a run whose directory was removed; `newest`: of another one, begun after it."""
    if newest is not None:
        return "its directory was removed, and another run of this name began there; watch that one anew"
    pids = alive.get("pids") if isinstance(alive, dict) else None
    living = f", while processes of it live (pid {', '.join(map(str, pids[:8]))})" if pids else ""
    return f"its directory was removed in the container{living}, and with it what says how it ends"


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
        uuid=_text(row, "uuid"),
        name=_text(row, "name"),
        memory_used_bytes=_count(row, "memory_used_bytes"),
        memory_total_bytes=_count(row, "memory_total_bytes"),
        utilization_pct=number(row, "utilization_pct"),
        power_w=number(row, "power_w"),
        temperature_c=number(row, "temperature_c"),
        pids=tuple(int(process["pid"]) for process in row.get("processes") or ()),
        problem=_text(row, "problem"),
        pci=_text(row, "pci"),
        recovery=_text(row, "recovery"),
        ecc_uncorrected=_count(row, "ecc_uncorrected"),
        remap_pending=row.get("remap_pending"),
        remap_failed=row.get("remap_failed"),
    )
