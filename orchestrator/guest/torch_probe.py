"""Run by the trainer's Python, not by the guest's: `python -c THIS`, so it imports nothing of ours.

It tells torch's build in one line, then reads a line with the GPUs to try, and tells what came of each.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import sys
from typing import Any

MARK = "dflashctl-torch "
NEEDED = ("numpy", "safetensors")


def tell(fields: dict[str, Any]) -> None:
    """Print one line that whatever an import prints cannot be taken for."""
    sys.stdout.write("\n" + MARK + json.dumps(fields) + "\n")
    sys.stdout.flush()


def build() -> tuple[dict[str, Any], Any]:
    """What torch is; `error` where it cannot be imported."""
    told: dict[str, Any] = {"python": platform.python_version(), "version": None, "error": None}
    told["lacks"] = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if importlib.util.find_spec("torch") is None:
        told["error"] = "it has no torch"
        return told, None
    try:
        import torch
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        told["error"] = "torch cannot be imported: %s" % error  # noqa: UP031
        return told, None
    told["version"] = torch.__version__
    told["cuda"], told["hip"] = torch.version.cuda, getattr(torch.version, "hip", None)
    flags = getattr(torch._C, "_cuda_getArchFlags", None)  # noqa: SLF001  get_arch_list() wakes the GPUs
    told["arch"] = ((flags() if flags else None) or "").split()
    return told, torch


def compute(torch: Any, index: int) -> str:  # noqa: ANN401
    """Return "" if a sum on that device comes out right, or what it said."""
    try:
        total = torch.full((1 << 20,), 2.0, device="cuda:%d" % index).sum().item()  # noqa: UP031
    except (RuntimeError, AssertionError) as error:
        return "torch: %s" % str(error).splitlines()[0]  # noqa: UP031
    return "" if total == float(2 << 20) else "torch: 2 * 2^20 came out as %r" % total  # noqa: UP031


def main() -> None:
    """Tell the build, then try the GPUs that standard input names."""
    told, torch = build()
    tell(told)
    wanted = json.loads(sys.stdin.readline() or "[]")
    if torch is None or not wanted or told["cuda"] is None:
        return
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, wanted))
    tell({"tries": {str(gpu): compute(torch, place) for place, gpu in enumerate(wanted)}})


if __name__ == "__main__":
    main()
