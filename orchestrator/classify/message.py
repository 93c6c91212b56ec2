"""The lines that go on with an exception's message: one of them may say more than the first. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.classify import match
from orchestrator.classify.found import WRAPPER
from orchestrator.types.failure import Role

if TYPE_CHECKING:
    from orchestrator.classify.found import Found
    from orchestrator.classify.signature import Signature

MAX_CONTINUATION = 12  # lines that may go on with an exception's message
MIN_WIDTH = 60  # of a pane; a shorter first line was not broken
_OF_PEERS = ("peer_gone", "nccl_watchdog_timeout")  # said in the second half of long messages
_LAST_ERROR = "Last error:"  # of NCCL; the line after it says what it ran into


def read_on(root: Found, body: str, offset: int) -> bool:
    """Take a line that may go on with the message of `root`; return False if it speaks of something else."""
    signature = match.match_exception(body, "\n".join(root.lines))
    is_known = signature is not match.UNKNOWN_EXCEPTION
    is_last_error = root.signature.name == "nccl_failed" and root.lines[-1:] == (_LAST_ERROR,)
    is_broken = _is_unknown(root) and signature.name in _OF_PEERS and len(root.text) >= MIN_WIDTH
    if is_broken:
        root.signature, root.weak = signature, signature.weak
        return True
    if is_known and not is_last_error and (signature.role is not Role.ROOT or signature.weak):
        return signature.failure is root.signature.failure
    root.lines = (*root.lines, body)
    if is_last_error:
        is_root = is_known and signature.role is Role.ROOT
        root.say(signature if is_root else match.BY_NAME["nccl_last_error"], body, offset)
    elif is_known and root.signature.generic and (not signature.generic or _is_unknown(root)):
        root.say(signature, body, offset)
    elif root.signature.name == "cuda_oom" and match.is_fragmented(root.text + _joined(root)):
        root.signature = match.FRAGMENTED_OOM
    elif _is_unknown(root) and len(root.text) >= MIN_WIDTH and (joined := _across(root, body)) is not None:
        root.signature, root.weak = joined, joined.weak
    return True


def _joined(root: Found) -> str:
    return "".join(root.lines[-MAX_CONTINUATION:])


def _across(root: Found, body: str) -> Signature | None:
    """Return what the first line shows together with its next, where a pane broke it in two."""
    both = (match.match_exception(f"{root.text}{blank}{body}") for blank in ("", " "))
    return next((signature for signature in both if signature is not match.UNKNOWN_EXCEPTION), None)


def alone(root: Found) -> Found:
    """Return an exception as it is kept: of one whose wrapped traceback never came, its name says all."""
    if root.signature.name != WRAPPER:
        return root
    inner = match.match_wrapped(root.text)
    return replace(root, signature=inner, weak=True) if inner is not None else root


def _is_unknown(root: Found) -> bool:
    return root.signature is match.UNKNOWN_EXCEPTION
