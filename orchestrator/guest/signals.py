"""The supervisor's signals: those it takes no notice of, and Ctrl-C in the pane, a person's stop."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import TYPE_CHECKING

from orchestrator import wire
from orchestrator.guest import clock, files, lock, processes

if TYPE_CHECKING:
    from orchestrator.guest.paths import RunDir

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
UNNOTICED = (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT, signal.SIGTSTP, signal.SIGPIPE)


def become_subreaper() -> None:
    """Become the parent of our descendants' orphans, instead of init: so descent finds them (prctl(2))."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Be killed when the thread that started us ends, however it ends; for a child, before its program."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def wake_on_signals(run: RunDir, number: int) -> int:
    """Return a descriptor that is readable after any of our signals.

    Handlers, not SIG_IGN: an ignored signal would stay ignored in the trainer.
    """
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)

    def nothing(*_: object) -> None:
        pass

    def interrupt(*_: object) -> None:
        stop_by_hand(run, number)

    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for each in signal.valid_signals():  # what called us may ignore some; the trainer would inherit it
        if signal.getsignal(each) is signal.SIG_IGN:
            signal.signal(each, signal.SIG_DFL)
    for each in (signal.SIGCHLD, *UNNOTICED):
        signal.signal(each, nothing)
    signal.signal(signal.SIGINT, interrupt)
    return read_end


def stop_by_hand(run: RunDir, number: int) -> None:
    """Write the intent, then tell the trainer to end."""
    trainer = processes.attempt_roots(run.attempt(number)).trainer
    if trainer is None:
        return
    content = {"schema": wire.SCHEMA, "by": "user", "reason": "Ctrl-C in the session", "attempt": number}
    try:
        with lock.turn(run.path):
            files.write_json(run.stop, {**content, "at": clock.now()})
    except OSError:
        return  # without the intent on disk the end would look like a crash
    processes.send_signal([trainer], signal.SIGTERM)
