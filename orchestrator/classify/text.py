"""One line of a log: cleaned, its rank taken off, its step read, its words made comparable. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

MAX_TEXT = 600  # characters of a line that a reading keeps

ANSI = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])"
_ANSI = re.compile(ANSI)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# [rank0]: of torch, [default0]: of torchrun --tee, 0: of srun; a pid or a worker's name may come first.
_RANK = re.compile(
    r"(?:\[\d+\] ?|\(\w+ pid=\d+\) ?)?(?:\[(?:rank|default) ?(\d{1,5})\]:? ?| {0,3}(\d{1,4}): (?=\S| ))"
)

_NUMBER = r"([-+]?(?:nan|inf(?:inity)?|\d+\.?\d*(?:e[-+]?\d+)?))"
_STEP = re.compile(
    r"(?:^|[\s,:|\[({'\"])(?:global_)?(?:step|iter(?:ation)?|num_update)s?['\"]?\s*[:=#]?\s*(\d{1,12})\b(?!\.\d|\s?%)",
    re.IGNORECASE,
)
_TOTAL = re.compile(r"\s*(?:/|of)\s*(\d{1,12})\b")
_BAR = re.compile(r"(?:^|[\s|])(\d{1,12})/(\d{1,12}) \[\d+:\d\d")
_BAR_LABEL = re.compile(r"^\W*([A-Za-z][^:|%\s]*(?:\s+[^:|%\s]+)*):?\s*\d{1,3}%")
_TRAINING_LABEL = re.compile(r"train|step|epoch|iter", re.IGNORECASE)
# A sentence may speak of a step; a step's report has a number beside it.
_STEP_COMPANY = ("loss", "lr", "tok/s", "ok", "time")
_LEFT_OUT = ("weights unchanged", "over guard.max_skips", "train_runtime")  # the last sums up a whole run
_TOKENS = re.compile(r"['\"]num_input_tokens_seen['\"]: ['\"]?(\d{1,18})\b")
_EPOCH = re.compile(r"['\"]epoch['\"]: ['\"]?(\d+(?:\.\d+)?)")
# Of programs that count batches within an epoch: [5][3550/7330], Epoch: 1 [640/60000 (1%)], 12/100 [==>...]
_PLACE = re.compile(r"(?:\[(\d{1,6})\])?\[(\d{1,12})/(\d{1,12})(?:\]| \()")
_DRAWN = re.compile(r"^\s*(\d{1,12})/\d{1,12} \[[=>.]")
_EPOCH_WORD = re.compile(r"\bepoch\W{1,4}(\d{1,6})\b(?!\.\d|%)", re.IGNORECASE)
_BATCH = re.compile(r"\bbatch\W{1,3}(\d{1,12})\b(?!%)", re.IGNORECASE)
_MANY_BATCHES = 1e12
_LOSS = re.compile(
    r"(?<![a-z_])(?:train[_ ]?)?loss(?: train)?['\"]?\s*[:= ]\s*['\"]?" + _NUMBER, re.IGNORECASE
)
_GRAD = re.compile(r"\bgrad(?:[_ ]norm)?['\"]?\s*[:= ]\s*" + _NUMBER, re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class StepLine:
    """A line that reports finished work. `mark` is what is compared: a step, else an epoch.

    `is_last`: it says that there is no more to come, such as `step 500/500`.
    """

    mark: float
    step: int | None = None
    loss: float | None = None
    grad: float | None = None
    is_last: bool = False

    @property
    def is_finite(self) -> bool:
        """False when the numbers are lost: a loss of nan or inf, or a loss of zero beside a gradient of nan.

        A gradient of nan or inf beside a good loss is a loss scaler at work, which recovers.
        """
        if self.loss is None:
            return True
        if not math.isfinite(self.loss):
            return False
        return not (self.loss == 0.0 and self.grad is not None and not math.isfinite(self.grad))


def clean(line: bytes) -> str:
    """Return a line as text without terminal sequences, control characters and trailing blanks."""
    text = line.decode("utf-8", errors="replace")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return _CONTROL.sub("", text).rstrip() if not text.isprintable() else text.rstrip()


def split_rank(text: str) -> tuple[int | None, str]:
    """Return the rank that a launcher wrote before the line, or None, and the rest of the line."""
    first = text[:1]
    if not first or (first not in "[( " and not first.isdigit()):
        return None, text
    match = _RANK.match(text)
    if match is None:
        return None, text
    return int(match.group(1) or match.group(2)), text[match.end() :]


def is_bar(text: str) -> bool:
    """Whether a line is a progress bar, of whatever it counts."""
    return "/" in text and _BAR.search(text) is not None


def read_step(text: str) -> StepLine | None:
    """Return the progress that a line reports, or None. A bar that loads or tokenizes is no progress.

    Nor is our trainer's word on a step that it left out.
    """
    lowered = text.lower()
    if any(words in lowered for words in _LEFT_OUT):
        return None
    has_loss = "loss" in lowered
    is_step = ("step" in lowered or "iter" in lowered or "num_updates" in lowered) and any(
        word in lowered for word in _STEP_COMPANY
    )
    if is_step and (found := _STEP.search(text)) is not None:
        total = _TOTAL.match(text, found.end())
        is_last = total is not None and int(total.group(1)) == int(found.group(1))
        return _step_line(text, float(found.group(1)), step=int(found.group(1)), is_last=is_last)
    if "/" in text and (bar := _BAR.search(text)) is not None:
        label = _BAR_LABEL.match(text)
        if has_loss or label is None or _TRAINING_LABEL.search(label.group(1)):
            is_last = int(bar.group(1)) == int(bar.group(2))
            return _step_line(text, float(bar.group(1)), step=int(bar.group(1)), is_last=is_last)
        return None
    mark = _read_place(text) if has_loss else None
    return _step_line(text, mark, step=None) if mark is not None else None


def _read_place(text: str) -> float | None:
    """Return how far a line says that its program is, where it counts in epochs or within them."""
    if (tokens := _TOKENS.search(text)) is not None:  # finer than the epoch beside it
        return float(tokens.group(1))
    if (epoch := _EPOCH.search(text)) is not None:
        return float(epoch.group(1))
    word = _EPOCH_WORD.search(text)
    number = float(word.group(1)) if word is not None else 0.0
    if (place := _PLACE.search(text)) is not None:
        number = float(place.group(1)) if place.group(1) is not None else number
        return number * float(place.group(3)) + float(place.group(2))
    counted = _DRAWN.match(text) or _BATCH.search(text)
    if counted is not None:
        return number * _MANY_BATCHES + float(counted.group(1))
    return number if word is not None else None


def _step_line(text: str, mark: float, *, step: int | None, is_last: bool = False) -> StepLine:
    loss, grad = _find_number(_LOSS, text), _find_number(_GRAD, text)
    return StepLine(mark=mark, step=step, loss=loss, grad=grad, is_last=is_last)


def _find_number(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    return float(found.group(1)) if found is not None else None


_LOG_PREFIX = re.compile(r"^[EWIF]\d{3,4} [\d:. ]+\S+\] (?:\[\d+/\d+\] +)?")


def drop_prefix(line: str) -> str:
    """Return a line without the severity, time, process and source that torch's loggers write before it."""
    return _LOG_PREFIX.sub("", line)


_PATHS = re.compile(r"(?:[A-Za-z]:)?(?:/[\w.+@~-]+){2,}/?")
_HEX = re.compile(r"\b0x[0-9a-f]+\b|\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b")
_NUMBERS = re.compile(r"\d+(?:[.:]\d+)*")
_BLANKS = re.compile(r"\s+")
_MODULE = re.compile(r"^(?:\w+\.)+(?=[A-Z_]\w*(?::|$))")


def normalize(line: str) -> str:
    """Return the part of a root line that stays the same when the same thing happens again.

    Paths, addresses and numbers become marks, the module of the exception class goes, and only the first
    sentence stays: torch writes the sizes of the day into the second.
    """
    text = _MODULE.sub("", drop_prefix(line.strip()))
    text = re.split(r"(?<=[A-Za-z)'\"])\. |\n", text, maxsplit=1)[0]
    text = _PATHS.sub("<path>", text)
    text = _NUMBERS.sub("<n>", _HEX.sub("<hex>", text.lower()))
    return _BLANKS.sub(" ", text).strip().rstrip(".")[:160]
