"""The lines that go on with an exception's message: one of them may say more than the first. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.classify import match
from orchestrator.classify.found import WRAPPER
from orchestrator.types import Role

if TYPE_CHECKING:
    from orchestrator.classify.found import Found

MAX_CONTINUATION = 12  # lines that may go on with an exception's message
_LAST_ERROR = "Last error:"  # of NCCL; the line after it says what it ran into


def read_on(root: Found, body: str, offset: int) -> bool:
    """Take a line that may go on with the message of `root`; return False if it speaks of something else."""
    signature = match.match_exception(body, "\n".join(root.lines))
    is_known = signature is not match.UNKNOWN_EXCEPTION
    is_last_error = root.signature.name == "nccl_failed" and root.lines[-1:] == (_LAST_ERROR,)
    if is_known and not is_last_error and (signature.role is not Role.ROOT or signature.weak):
        return signature.failure is root.signature.failure
    root.lines = (*root.lines, body)
    if is_last_error:
        is_root = is_known and signature.role is Role.ROOT
        root.say(signature if is_root else match.BY_NAME["nccl_last_error"], body, offset)
    elif is_known and root.signature.generic and (not signature.generic or _is_unknown(root)):
        root.say(signature, body, offset)
    elif root.signature.name == "cuda_oom" and match.is_fragmented(" ".join(root.lines[-MAX_CONTINUATION:])):
        root.signature = match.FRAGMENTED_OOM
    return True


def alone(root: Found) -> Found:
    """Return an exception as it is kept: of one whose wrapped traceback never came, its name says all."""
    if root.signature.name != WRAPPER:
        return root
    inner = match.match_wrapped(root.text)
    return replace(root, signature=inner, weak=True) if inner is not None else root


def _is_unknown(root: Found) -> bool:
    return root.signature is match.UNKNOWN_EXCEPTION
