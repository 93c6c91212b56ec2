#!/usr/bin/python3
# It is made executable when it is installed; pathlib would double its time.
# ruff: noqa: EXE001, PTH123
"""A stand-in for nvidia-smi in the container: it answers from the file that drives the stub NVML library."""

from __future__ import annotations

import os
import sys
import time

STATE = os.environ.get("DFLASHCTL_LAB_GPUS", "/var/lib/dflashctl-lab/gpus")
COLUMNS = [
    "index",
    "uuid",
    "name",
    "memory.used",
    "memory.total",
    "utilization.gpu",
    "power.draw",
    "temperature.gpu",
]
UNITS = {
    "memory.used": "MiB",
    "memory.total": "MiB",
    "memory.free": "MiB",
    "utilization.gpu": "%",
    "power.draw": "W",
}
ERRORS = {9: "Driver Not Loaded", 18: "Driver/library version mismatch"}


def read() -> tuple[list[dict[str, str]], dict[str, list[str]]]:
    """The GPUs as column -> text, and the switches."""
    gpus: list[dict[str, str]] = []
    switches: dict[str, list[str]] = {}
    with open(STATE, encoding="utf-8") as file:
        for line in file:
            key, _, value = line.rstrip("\n").partition(" ")
            if key == "gpu":
                fields = value.split(",")
                gpu = dict(zip(COLUMNS, fields, strict=False))
                gpu["processes"] = fields[8] if len(fields) > 8 else ""
                gpu["pci.bus_id"] = f"00000000:{0x10 + int(fields[0]):02X}:00.0"
                gpus.append(gpu)
            elif key:
                switches.setdefault(key, []).append(value)
    return gpus, switches


def value(gpu: dict[str, str], column: str, driver: str, *, units: bool) -> str:
    """One cell, formatted as nvidia-smi does."""
    if column == "memory.free":
        text = f"{float(gpu['memory.total']) - float(gpu['memory.used']):g}"
    elif column == "driver_version":
        text = driver
    elif column in gpu:
        text = gpu[column]
    else:
        sys.stdout.write(f'Field "{column}" is not a valid field to query.\n\n')
        raise SystemExit(2)
    if text == "-":
        return "[N/A]"
    if column == "power.draw":
        text = f"{float(text):.2f}"
    return f"{text} {UNITS[column]}" if units and column in UNITS else text


def rows(gpus: list[dict[str, str]], what: str, hide: bool) -> list[dict[str, str]]:
    """The rows that a query is about: GPUs, or the processes on them."""
    if what == "gpu":
        return gpus
    found = []
    for gpu in gpus:
        for item in [] if hide else gpu["processes"].split():
            pid, mib = item.split(":")
            used = {"pid": pid, "used_memory": mib, "used_gpu_memory": mib, "process_name": "[Not Found]"}
            found.append({**gpu, **used, "gpu_uuid": gpu["uuid"], "gpu_name": gpu["name"]})
    return found


def main(argv: list[str]) -> int:
    """Answer one query."""
    gpus, switches = read()
    time.sleep(float(switches.get("hang", ["0"])[-1]))
    code = int(switches.get("init-error", ["0"])[-1])
    if code:
        sys.stdout.write(f"Failed to initialize NVML: {ERRORS.get(code, 'Unknown Error')}\n")
        return code
    options = dict(argument.removeprefix("--").partition("=")[::2] for argument in argv)
    query = [(key, columns) for key, columns in options.items() if key.startswith("query-")]
    known = {"query-gpu", "query-compute-apps", "format", "L", "-L"}
    for option in options:
        if option not in known:
            sys.stdout.write(
                f"Invalid combination of input arguments. Please run 'nvidia-smi -h' for help. ({option})\n"
            )
            return 2
    lost = switches.get("lost", [])
    alive = [gpu for gpu in gpus if gpu["index"] not in lost]
    what, columns = query[0] if query else ("query-gpu", ",".join(COLUMNS))
    names = [name.strip() for name in columns.split(",")]
    style = options.get("format", "csv").split(",")
    driver = switches.get("driver", ["unknown"])[-1]
    if "noheader" not in style:
        sys.stdout.write(", ".join(names) + "\n")
    for row in rows(alive, what.removeprefix("query-"), "hide-processes" in switches):
        cells = [value(row, name, driver, units="nounits" not in style) for name in names]
        sys.stdout.write(", ".join(cells) + "\n")
    for gpu in gpus:
        if gpu["index"] in lost:
            bus = f"0000:{0x10 + int(gpu['index']):02X}:00.0"
            sys.stdout.write(
                f"Unable to determine the device handle for GPU{gpu['index']}: {bus}: GPU is lost.  "
            )
            sys.stdout.write("Reboot the system to recover this GPU\n")
    return 15 if lost else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
