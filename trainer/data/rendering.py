"""A conversation as text, and which of it the assistant said.

Where a turn ends up is found with a sentinel: the same conversation is rendered once more with a word that
occurs nowhere else in place of that turn's text. What stands before and after the word is what the template
puts there, so that a sentence which a user says too, stripped blanks, and dropped reasoning confuse nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainer.data.documents import ASSISTANT, USER, BadLine
from trainer.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from trainer.data.documents import Turn

Message = dict[str, str]
Render = Callable[[list[Message], bool], str]
"""Text of messages; true asks for the prompt of an answer after them. Raises BadLine if it cannot."""
Spans = list[tuple[int, int]]
"""First character and the one past the last, in order."""


@dataclass(frozen=True, slots=True)
class Style:
    """What a template does around an answer."""

    has_prompt: bool
    """Whether it can ask for an answer, by a header that the target does not generate."""
    prompt: str
    """That header, where an answer follows it; else empty."""
    opening: str
    """The same, and what else comes before the text of a last answer, such as room for thoughts: that the
    target generates."""
    turn_end: str
    """What it writes after each answer, blanks at the end aside; the target generates it."""


def messages_of(turns: Sequence[Turn]) -> list[Message]:
    """Turns as templates know them."""
    return [
        {"role": turn.role, "content": turn.text}
        | ({"reasoning_content": turn.reasoning} if turn.reasoning else {})
        for turn in turns
    ]


def learn_style(render: Render) -> Style:
    """Try the template on one question and answer.

    Raises:
        ConfigInvalid: it does not show the answer.
    """
    question: Message = {"role": USER, "content": "a"}
    word = _unused("a")
    try:
        plain, prompt = render([question], False), render([question], True)
        answered = render([question, {"role": ASSISTANT, "content": word}], False)
    except BadLine as error:
        raise ConfigInvalid(
            f"data.chat_template: {error}; it must render a question and its answer"
        ) from error
    if word not in answered:
        raise ConfigInvalid(
            "data.chat_template: an assistant's text does not come out; give another template"
        )
    before, _, after = answered.partition(word)
    has_prompt = prompt != plain
    is_plain = has_prompt and prompt.startswith(plain) and before.startswith(prompt)
    header, opening = (prompt[len(plain) :], before[len(plain) :]) if is_plain else ("", "")
    return Style(has_prompt, header, opening, after.rstrip())


def locate(render: Render, style: Style, messages: list[Message]) -> tuple[str, Spans]:
    """The rendered conversation, and the characters of it that the target would have generated.

    Raises:
        BadLine: the template refuses it, or does not show where an assistant's turn is.
    """
    text = render(messages, False)
    spans: Spans = []
    for index, message in enumerate(messages):
        if message["role"] != ASSISTANT:
            continue
        start, end = _locate_turn(render, style, messages, index, text)
        if not (spans[-1][1] if spans else 0) <= start <= end:
            raise BadLine(f"turn {index}: the template does not show where it is")
        spans.append((start, end))
    return text, spans


def within(text: str, offsets: Sequence[tuple[int, int]], spans: Spans) -> NDArray[np.bool_]:
    """Which tokens lie wholly inside of a span, by their first character and the one past the last.

    A token that begins with the spaces before a span is inside too: it is the answer's first word.
    """
    if not offsets or not spans:
        return np.zeros(len(offsets), np.bool_)
    begins, ends = np.asarray(offsets, np.int64).T
    firsts, lasts = np.asarray(spans, np.int64).T
    which = np.searchsorted(firsts, begins, side="right") - 1
    inside: NDArray[np.bool_] = (which >= 0) & (begins < ends) & (ends <= lasts[which])
    for first, last in spans:
        token = int(np.searchsorted(ends, first, side="right"))
        if token < len(ends) and begins[token] < first and ends[token] <= last:
            inside[token] = not text[begins[token] : first].strip(" ")
    return inside


def _locate_turn(
    render: Render, style: Style, messages: list[Message], index: int, text: str
) -> tuple[int, int]:
    word = _unused(text)
    marked: Message = {"role": ASSISTANT, "content": word}
    before, found, after = render([*messages[:index], marked, *messages[index + 1 :]], False).partition(word)
    if not found or word in after or not text.endswith(after):
        raise BadLine(f"turn {index}: the template does not show where its text ends")
    if not after.startswith(style.turn_end):
        raise BadLine(f"turn {index}: the template does not end it with {style.turn_end!r}")
    end = len(text) - len(after) + len(style.turn_end)
    for head in _heads(render, style, messages[:index], before):
        if text.startswith(head) and len(head) + len(after) <= len(text):
            return len(head), end
    raise BadLine(f"turn {index}: the template does not show where its text begins")


def _heads(render: Render, style: Style, earlier: list[Message], before: str) -> Iterator[str]:
    """What the answer may follow, the likeliest first; all that comes after it is generated.

    The prompt is rendered only where it cannot be told from what stands before the text, as that is slow.
    """
    if style.prompt and before.endswith(style.opening):
        yield before[: len(before) - len(style.opening) + len(style.prompt)]
    elif style.has_prompt and not (style.prompt and before.endswith(style.prompt)):
        # Many templates refuse a conversation without a question, as the one before turn 0.
        with suppress(BadLine):
            yield render(earlier, True)
    yield before


def _unused(text: str) -> str:
    number = 0
    while (word := f"Qspan{number}Q") in text:
        number += 1
    return word
