"""Every error a person can meet, with its exit code.

OrchestratorError             root; the command line prints it without a traceback
|-- ConfigError (ValueError)  an operator's file or option is wrong; names file, key, value, what is allowed
|   |-- InventoryError
|   `-- PlaybookError
|-- NotFound                  no such run, attempt, host or container in the record or inventory
|-- BlindError                we could not look; says nothing about the run
|   |-- HostUnreachable       refused, no route, connect timeout, connection lost
|   |-- HostDenied            authentication or permission
|   |-- HostKeyRefused        unknown or changed host key
|   |-- ContainerUnavailable  pct says stopped, missing or locked
|   |-- CommandTimeout        no answer within the limit
|   `-- GuestError            the guest is missing, crashed, or answered what is not its protocol
|-- CommandFailed             it ran and said no
|   `-- EnvironmentIncomplete the trainer's Python lacks packages
|-- GuestRefused              the guest understood the request and said no, with its own code
|-- RunAlive                  a second trainer was refused
|-- RecordError               the record could not be read or written; acting stops
`-- ActRefused                a gate before an act is closed
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the command line; part of the interface.

    They stay clear of the shell's own 126 to 165 and of sysexits' 65 to 77.
    """

    OK = 0
    ERROR = 1
    USAGE = 2
    NOT_RUNNING = 3
    UNREACHABLE = 4
    RECORD = 5
    FAILED = 10
    HUNG = 11
    GAVE_UP = 12
    NEEDS_PERSON = 13
    NOT_READY = 14
    ALIVE = 15
    NOT_FOUND = 20
    INTERRUPTED = 130


class OrchestratorError(Exception):
    """Anything this program says on purpose: where, what with its value, and what to do."""

    exit_code: Exit = Exit.ERROR

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def code(self) -> str:
        """A stable name for `--json`, for example `host_unreachable`."""
        name = type(self).__name__
        return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class ConfigError(OrchestratorError, ValueError):
    """An operator's file or option is wrong."""

    exit_code = Exit.USAGE


class InventoryError(ConfigError):
    """A file under `inventory/` is wrong."""


class PlaybookError(ConfigError):
    """A file under `playbooks/` is wrong."""


class NotFound(OrchestratorError):
    """No such run, attempt, host or container in the record or the inventory."""

    exit_code = Exit.NOT_FOUND


class BlindError(OrchestratorError):
    """We could not look. Says nothing about the run."""

    exit_code = Exit.UNREACHABLE


class HostUnreachable(BlindError):
    """The host refused, did not answer in time, or dropped the connection."""


class HostDenied(BlindError):
    """The host answered and refused the login or the command."""


class HostKeyRefused(BlindError):
    """The host's key is unknown or has changed."""


class ContainerUnavailable(BlindError):
    """pct says that the container is stopped, missing or locked."""

    exit_code = Exit.NOT_READY


class CommandTimeout(BlindError):
    """No answer within the limit; the command may still be running."""


class GuestError(BlindError):
    """The guest is missing, crashed, or answered what is not its protocol."""


class CommandFailed(OrchestratorError):
    """A command ran and ended with a non-zero exit code."""


class EnvironmentIncomplete(CommandFailed):
    """The trainer's Python lacks packages; nothing was started."""

    exit_code = Exit.NOT_READY


class GuestRefused(OrchestratorError):
    """The guest understood the request and said no.

    `reason` is the wire's error code, such as `no_tmux`.
    """

    exit_code = Exit.NOT_READY

    def __init__(self, message: str, *, reason: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class RunAlive(OrchestratorError):
    """A second trainer for a run was refused."""

    exit_code = Exit.ALIVE


class RecordError(OrchestratorError):
    """The record could not be read or written; acting stops."""

    exit_code = Exit.RECORD


class RecordGone(RecordError):
    """The record's file was moved or deleted under the program; one that starts now would begin a new one."""


class ActRefused(OrchestratorError):
    """A gate before an act is closed."""

    exit_code = Exit.NOT_READY
