"""`checkup`: all that a doctor wants to know of this place, in one answer. It changes nothing.

What may get stuck in the driver is done by children with a deadline. A GPU that is in use is left alone:
even a small context might be what a full one has no room for.
"""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import subprocess
import threading
from typing import TYPE_CHECKING, Any

from orchestrator.guest import clock, files, itself, masks, paths, surroundings, venvs
from orchestrator.guest.torch_lines import read_lines

if TYPE_CHECKING:
    from orchestrator import wire
    from orchestrator.guest.link import Link

DRIVER_S = 10.0  # initialising NVML on eight GPUs without persistence mode takes seconds
CUDA_S = 10.0
TRIES_S = 20.0  # for a first import of torch from a cold disk
IDLE_BYTES = 1 << 30
MAX_TEXT = 300


def run(verb: str, request: wire.Message, link: Link) -> None:
    """Answer `checkup`."""
    del verb
    started = clock.ticking()
    state = paths.resolve_state(request.get("state_dir"))
    named = request.get("python")
    is_named = isinstance(named, str) and named
    python = str(named) if is_named else venvs.current_python(state) or "python3"
    torch = Torch(python)
    driver = _driver()
    idle, left_alone = split(driver["gpus"])
    fields = surroundings.fields(state)
    tries, told = _try(idle, torch)
    for gpu in driver["gpus"]:
        gpu["tried"] = verdict(gpu["index"], tries, told["tries"], left_alone)
    fields.update(gpu=driver, torch=told["build"], trainer_python=python)
    link.send("checkup", {**fields, "took_s": clock.ticking() - started, "now": clock.epoch()})


def split(gpus: list[dict[str, Any]]) -> tuple[list[int], dict[int, str]]:
    """Return the GPUs that may be tried, and why each other one is left alone."""
    left_alone = {}
    for gpu in gpus:
        used = gpu.get("memory_used_bytes")
        if gpu.get("problem"):
            left_alone[gpu["index"]] = "NVML cannot read it, so it was not tried"
        elif gpu.get("processes") or (used is not None and used > IDLE_BYTES):
            left_alone[gpu["index"]] = "in use, so it was left alone"
        elif used is None:
            left_alone[gpu["index"]] = "its memory is not told, so it was left alone"
    return [gpu["index"] for gpu in gpus if gpu["index"] not in left_alone], left_alone


def verdict(
    index: int, by_driver: dict[int, str], by_torch: dict[int, str], left_alone: dict[int, str]
) -> dict[str, str | None]:
    """Return `error` ("" if it computed, null if that is not known) and `reason` of a GPU."""
    said = [tries[index] for tries in (by_driver, by_torch) if index in tries]
    if not said:
        return {"error": None, "reason": left_alone.get(index, "no answer in time")}
    return {"error": next((_clip(text) for text in said if text), ""), "reason": None}


def _clip(text: str) -> str:
    return str(masks.own().text(" ".join(text.split())))[:MAX_TEXT]


def _driver() -> dict[str, Any]:
    """What the driver's child told; without a word, why."""
    lines = _output(itself.command("driver-child"), DRIVER_S)
    reading = files.parse_object(lines[-1]) if lines else None
    if reading is None:
        problem = f"the GPU driver did not answer within {DRIVER_S:.0f} s"
        return {"gpus": [], "source": None, "problem": problem, "nodes": None}
    return reading


def _output(command: list[str], limit_s: float, env: dict[str, str] | None = None) -> list[bytes]:
    """Return the lines of a child; one that does not end is killed and not waited for."""
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
        )
        return child.communicate(timeout=limit_s)[0].splitlines()
    except subprocess.TimeoutExpired:
        _leave(child)
        return []
    except OSError:
        return []


def _leave(child: subprocess.Popen[bytes]) -> None:
    """End a child; one that is stuck in the driver is not waited for, and left without a word at our end."""
    child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(0.5)
    child.returncode = 0
    for end in (child.stdin, child.stdout):
        if end is not None:
            with contextlib.suppress(OSError):
                end.close()


def _try(idle: list[int], torch: Torch) -> tuple[dict[int, str], dict[str, Any]]:
    """Compute on each idle GPU at once by the driver's library, then by torch where that worked.

    Not by both at once: a GPU in exclusive mode takes one process only.
    """
    tries: dict[int, str] = {}
    threads = [threading.Thread(target=_try_one, args=(gpu, tries), daemon=True) for gpu in idle]
    for thread in threads:
        thread.start()
    deadline = clock.ticking() + CUDA_S
    for thread in threads:
        thread.join(max(0.0, deadline + 1.0 - clock.ticking()))
    answered = dict(tries)
    return answered, torch.finish([gpu for gpu in idle if answered.get(gpu) == ""])


def _try_one(gpu: int, tries: dict[int, str]) -> None:
    env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(gpu)}
    lines = _output(itself.command("cuda-child"), CUDA_S, env)
    answer = files.parse_object(lines[-1]) if lines else None
    if answer is not None and isinstance(answer.get("error"), str):
        tries[gpu] = answer["error"]


class Torch:
    """The trainer's Python, importing torch while the driver is asked."""

    def __init__(self, python: str) -> None:
        self._python = python
        self._error: str | None = None
        source = pkgutil.get_data("orchestrator.guest", "torch_probe.py") or b""
        try:
            self._child: subprocess.Popen[bytes] | None = subprocess.Popen(
                [os.path.expanduser(python), "-c", source.decode()],  # noqa: PTH111
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            )
        except OSError as error:
            self._child, self._error = None, error.strerror or str(error)

    def finish(self, gpus: list[int]) -> dict[str, Any]:
        """Name the GPUs to try; return `build` (null if it did not answer in time) and `tries`."""
        if self._child is None:
            return {"build": {"version": None, "error": self._error}, "tries": {}}
        output = b""
        try:
            output = self._child.communicate(json.dumps(gpus).encode() + b"\n", timeout=TRIES_S)[0]
        except subprocess.TimeoutExpired as late:
            output = late.output or b""
            _leave(self._child)
        told = read_lines(output)
        if told["build"] is None and self._child.returncode:
            told["build"] = {"version": None, "error": f"it ended with code {self._child.returncode}"}
        if told["build"] and told["build"].get("error"):
            told["build"]["error"] = _clip(str(told["build"]["error"]))
        return told
