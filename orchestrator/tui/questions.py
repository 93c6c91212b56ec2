"""What a stop or a relaunch would do to the chosen run, said before it is asked for. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.types.failure import RunState

if TYPE_CHECKING:
    from orchestrator.fleet import RunCard
    from orchestrator.record import RunRow

_ENDED = {
    RunState.FINISHED: "It has finished already",
    RunState.STOPPED: "It is stopped already",
    RunState.DEAD: "It is dead already",
}


def stop_text(card: RunCard, row: RunRow) -> str:
    """Return what a stop does."""
    if card.state in _ENDED:
        return (
            f"{_ENDED[card.state]}: a stop saves no checkpoint. It ends what is left of it, "
            "and no watch relaunches it afterwards."
        )
    saves = "can save a checkpoint" if _is_command(row) else "saves a checkpoint"
    ending = f"gets SIGTERM and {saves}, then SIGKILL. No watch relaunches it afterwards."
    return f"It is not seen now. If it lives it {ending}" if _is_unseen(card) else f"It {ending}"


def relaunch_text(card: RunCard, row: RunRow) -> str:
    """Return what a relaunch does."""
    head = "" if card.state in _ENDED else "What lives of it is stopped first. "
    if _is_command(row):
        return (
            f"{head}The command is started again as it was; it resumes by itself if it keeps checkpoints in "
            "$DFLASHCTL_CHECKPOINT_DIR."
        )
    at = "the last checkpoint"
    if card.checkpoint_step is not None:
        at += f", step {card.checkpoint_step}" + (" when last seen" if _is_unseen(card) else "")
    return f"{head}The next attempt resumes from {at}, unchanged."


def _is_command(row: RunRow) -> bool:
    return row.spec.get("kind") == "command"


def _is_unseen(card: RunCard) -> bool:
    return card.blind is not None or card.looked_at is None
