"""The child that computes on one GPU by the driver's own library: allocate, fill, read back.

It needs no torch. The parent names the GPU by CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import ctypes
import json
import os

WORDS = 1 << 20
PATTERN = 0x5AA5C33C


class CudaError(Exception):
    """What a call of the driver answered."""


def main(arguments: list[str]) -> int:
    """`cuda-child`: print what came of it; an empty `error` is success."""
    del arguments
    try:
        _try()
        error = ""
    except CudaError as failure:
        error = str(failure)
    os.write(1, json.dumps({"error": error}).encode("ascii") + b"\n")
    return 0


def _try() -> None:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError(f"libcuda.so.1 cannot be loaded: {error}") from error
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _call(library, "cuInit", ctypes.c_uint(0))
    _call(library, "cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
    _call(library, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    _call(library, "cuCtxSetCurrent", context)
    try:
        _write_and_read(library)
    finally:
        library.cuDevicePrimaryCtxRelease(device)


def _write_and_read(library: ctypes.CDLL) -> None:
    place = ctypes.c_uint64()
    back = (ctypes.c_uint32 * WORDS)()
    length = ctypes.c_size_t(ctypes.sizeof(back))
    _call(library, "cuMemAlloc_v2", ctypes.byref(place), length)
    _call(library, "cuMemsetD32_v2", place, ctypes.c_uint(PATTERN), ctypes.c_size_t(WORDS))
    _call(library, "cuMemcpyDtoH_v2", back, place, length)
    _call(library, "cuMemFree_v2", place)
    if bytes(back) != PATTERN.to_bytes(4, "little") * WORDS:
        raise CudaError("what was written was read back otherwise")


def _call(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    try:
        code = int(getattr(library, name)(*arguments))
    except AttributeError as error:
        raise CudaError(f"libcuda.so.1 has no {name}") from error
    if code:
        raise CudaError(f"{name}: {code} {_name(library, code)}".rstrip())


def _name(library: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    try:
        library.cuGetErrorString(ctypes.c_int(code), ctypes.byref(text))
    except AttributeError:
        return ""
    return (text.value or b"").decode("ascii", "replace")
