"""A GPU's health as the driver tells it: address, what it asks for, memory errors, spare rows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

import pynvml

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

# NVML_GPU_RECOVERY_ACTION_*, drivers from 570 on.
RECOVERIES = {
    1: "reset the GPU",
    2: "reboot the host",
    3: "drain its peer-to-peer traffic",
    4: "drain the GPU and reset it",
    5: "recover the IMEX domain",
    6: "reset the bus",
    7: "reboot the host",
}
FIELDS = ("pci", "recovery", "ecc_uncorrected", "remap_pending", "remap_failed")


def read(handle: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the fields of a GPU's health; one that driver or card do not tell is None."""
    pending, failed = _remapped(handle)
    return {
        "pci": address(quiet(lambda: pynvml.nvmlDeviceGetPciInfo(handle).busId)),
        "recovery": _recovery(handle),
        "ecc_uncorrected": quiet(
            lambda: int(
                pynvml.nvmlDeviceGetTotalEccErrors(
                    handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
                )
            )
        ),
        "remap_pending": pending,
        "remap_failed": failed,
    }


def address(bus_id: str | bytes | None) -> str | None:
    """Return `0000:3b:00` of NVML's `00000000:3B:00.0`, which is how the kernel names a card."""
    text = bus_id.decode(errors="replace") if isinstance(bus_id, bytes) else bus_id
    found = re.match(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})", text or "")
    return f"{int(found[1], 16):04x}:{found[2].lower()}:{found[3].lower()}" if found else None


def quiet(call: Callable[[], T]) -> T | None:
    """Return what NVML says, or None: a driver may lack a function, a GPU a sensor."""
    try:
        return call()
    except pynvml.NVMLError:
        return None


def _recovery(handle: Any) -> str | None:  # noqa: ANN401
    """Return what the driver asks for; None also where it knows no such field."""
    field = getattr(pynvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
    if field is None:
        return None
    values = quiet(lambda: pynvml.nvmlDeviceGetFieldValues(handle, [field]))
    if not values or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return RECOVERIES.get(int(values[0].value.uiVal))


def _remapped(handle: Any) -> tuple[bool | None, bool | None]:  # noqa: ANN401
    """Return whether a reset is due to replace bad memory, and whether that failed for want of spares."""
    rows = quiet(lambda: pynvml.nvmlDeviceGetRemappedRows(handle))
    if rows is not None:
        return bool(rows[2]), bool(rows[3])
    pages = quiet(lambda: pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))  # cards before Ampere
    return (None if pages is None else bool(pages)), None
