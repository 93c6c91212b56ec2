"""What a message is: its kind, how grave it is, its words. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING

from orchestrator.masking import Masker
from orchestrator.terminal import one_line, plain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

MAX_TITLE = 120
MAX_LINE = 400
MAX_LINES = 30
_MASKER = Masker()
# A line of a log must not call everybody of a chat: `@everyone`, `<!channel>`, `<@U024BE7LH>`.
_MENTION = re.compile(r"@(?=\w)|<(?=[!@#])")
_UNSEEN = "\u200b"


class Severity(IntEnum):
    """How grave it is; quiet hours let pass what is above a level."""

    INFO = 10
    WARNING = 20
    ERROR = 30  # the playbook does something about it
    URGENT = 40  # nobody but a person does

    @property
    def word(self) -> str:
        """Its name in files and on the command line."""
        return self.name.lower()


class Kind(str, Enum):
    """What a message is about."""

    DEATH = "death"
    HANG = "hang"
    NEEDS_PERSON = "needs_person"
    PREDICTION = "prediction"
    RECOVERED = "recovered"
    FINISHED = "finished"
    BLIND = "blind"
    SEEN_AGAIN = "seen_again"
    SUMMARY = "summary"
    TEST = "test"


SEVERITIES = {
    Kind.DEATH: Severity.ERROR,
    Kind.HANG: Severity.ERROR,
    Kind.NEEDS_PERSON: Severity.URGENT,
    Kind.PREDICTION: Severity.WARNING,
    Kind.RECOVERED: Severity.INFO,
    Kind.FINISHED: Severity.INFO,
    Kind.BLIND: Severity.WARNING,
    Kind.SEEN_AGAIN: Severity.INFO,
}


@dataclass(frozen=True)
class Key:
    """The thing told, which is told once: of a run's attempt, and of several of a kind which one."""

    target: str
    run: str
    attempt: int | None
    kind: Kind
    part: str = ""


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message. `keys` are the things it tells; more than one in a summary."""

    kind: Kind
    severity: Severity
    at: datetime
    run: str
    target: str
    attempt: int | None
    title: str
    body: str
    keys: tuple[Key, ...]


def words(title: str, lines: Sequence[str]) -> tuple[str, str]:
    """Return title and body as they may leave: without secrets, control codes or calls to everybody."""
    kept = [plain(line, MAX_LINE) for text in lines for line in text.splitlines() if line.strip()]
    if len(kept) > MAX_LINES:
        kept = [*kept[:MAX_LINES], f"... and {len(kept) - MAX_LINES} lines more"]
    return _safe(one_line(title, MAX_TITLE)), _safe("\n".join(kept))


def _safe(text: str) -> str:
    return _MENTION.sub(lambda found: found.group() + _UNSEEN, _MASKER.text(text))
