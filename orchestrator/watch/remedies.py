"""What a relaunch puts right before it starts: the compile artifacts of a run, from those kept here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.compilecache import Store, far_artifacts
from orchestrator.errors import BlindError, GuestRefused, OrchestratorError

if TYPE_CHECKING:
    from orchestrator.connection import GuestClient

SHORT = 12


def restore_cache(client: GuestClient, store: Store, target_key: str, run: str) -> str:
    """Put back what is damaged or lost in the container; returns what was found and done, for people.

    Artifacts that are whole stay, so a second call does nothing. What cannot be restored holds nothing back:
    the trainer passes a damaged artifact over and compiles anew.

    Raises:
        GuestRefused: No space there.
        BlindError: The way there broke.
    """
    there = far_artifacts(client, run, check=True)
    whole = {each.fingerprint for each in there if each.problem is None}
    damaged = [each for each in there if each.problem is not None]
    try:
        kept = [each for each in store.artifacts(target_key, run, check=True) if each.problem is None]
        lost = [each for each in kept if each.fingerprint not in whole]
        for each in lost:
            store.restore(client, (target_key, run), run, each)
    except (GuestRefused, BlindError):
        raise
    except OrchestratorError as error:
        return f"compile cache: the copy kept here cannot be read: {error.message}"
    restored = {each.fingerprint for each in lost}
    left = [each for each in damaged if each.fingerprint not in restored]
    parts = [f"{len(whole)} whole"] if whole else []
    parts += [f"restored {each.fingerprint[:SHORT]}" for each in lost]
    parts += [f"{each.fingerprint[:SHORT]} is damaged and no copy is kept here" for each in left]
    return f"compile cache: {', '.join(parts) or 'nothing to put back, no artifact is there or kept here'}"
