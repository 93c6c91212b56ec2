"""Documents as they come: conversations and texts, one a line or one a file, none of them trusted."""

from __future__ import annotations

import codecs
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.errors import ConfigInvalid, DataInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_LINE_BYTES = 1 << 26
"""A longer line is not read into memory, but is a bad line."""
LINES = frozenset({".jsonl", ".ndjson"})
USER, ASSISTANT = "user", "assistant"
ROLES = {
    "human": USER,
    "user": USER,
    "gpt": ASSISTANT,
    "assistant": ASSISTANT,
    "model": ASSISTANT,
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
"""What data sets call the speakers, and what a chat template calls them."""
_NOUNS = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
}


class BadLine(ValueError):  # noqa: N818 - not an error of the trainer: it is counted, and the next line is read
    """One document that cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one speaker says."""

    role: str
    text: str
    reasoning: str = ""
    """An assistant's thoughts, where the data keeps them apart (`reasoning_content`)."""


Content = str | tuple[Turn, ...]
"""A text, or a conversation."""


@dataclass(frozen=True, slots=True)
class Found:
    """One document, or why there is none."""

    where: str
    """File under the folder, and line."""
    content: Content | None
    problem: str = ""


def source_files(path: str, kind: str, key: str = "data.path") -> tuple[Path, list[Path]]:
    """The folder that names are told under, and the files of `path` in the order they are read.

    Raises:
        ConfigInvalid: no path was given.
        DataInvalid: nothing is there.
    """
    if not path:
        raise ConfigInvalid(f"{key}: empty; data.source = {kind} needs a file or a folder")
    root = Path(path)
    if not root.exists():
        raise DataInvalid(f"{key}: {path}: no such file or folder; correct the path")
    if root.is_file():
        return root.parent, [root]
    files = [file for file in sorted(root.rglob("*")) if file.is_file() and _is_source(file, root, kind)]
    if not files:
        wanted = ".jsonl files" if kind == "chat" else "files"
        raise DataInvalid(f"{key}: {path}: no {wanted} there; name a file or a folder of them")
    return root, files


def _is_source(file: Path, root: Path, kind: str) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(root).parts)
    return not hidden and (kind == "text" or file.suffix in LINES)


def read_documents(root: Path, files: list[Path], kind: str, max_text_bytes: int) -> Iterator[Found]:
    """Every document of `kind`, one line in memory at a time.

    Of a plain text file no more than `max_text_bytes` are read.

    Raises:
        OSError: a file cannot be read.
    """
    for file in files:
        name = file.relative_to(root).as_posix()
        if kind == "chat" or file.suffix in LINES:
            yield from _read_lines(file, name, parse_chat if kind == "chat" else parse_text)
        else:
            yield _read_text(file, name, max_text_bytes)


def _read_lines(file: Path, name: str, parse: Callable[[bytes], Content]) -> Iterator[Found]:
    with file.open("rb") as stream:
        number = 0
        while line := stream.readline(MAX_LINE_BYTES):
            number += 1
            where = f"{name}:{number}"
            if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                while (rest := stream.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                    pass
                yield Found(where, None, f"longer than {MAX_LINE_BYTES:,} bytes")
                continue
            try:
                yield Found(where, parse(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line))
            except BadLine as bad:
                yield Found(where, None, str(bad))


def _read_text(file: Path, name: str, limit: int) -> Found:
    with file.open("rb") as stream:
        data = stream.read(limit)
        whole = not stream.read(1)
    try:
        # A cut may fall inside of a character, which the decoder then keeps to itself.
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(data, final=whole)
    except UnicodeDecodeError as error:
        return Found(name, None, f"not UTF-8: {error.reason} at byte {error.start}")
    return Found(name, text) if text.strip() else Found(name, None, "empty")


def parse_text(line: bytes) -> str:
    """The `text` of one JSON line.

    Raises:
        BadLine: there is none.
    """
    text = _string(_object(line).get("text"), "text")
    if not text.strip():
        raise BadLine("text is empty")
    return text


def parse_chat(line: bytes) -> tuple[Turn, ...]:
    """The turns of one JSON line: `conversations` of from and value, or `messages` of role and content.

    Raises:
        BadLine: they are not there, or no assistant speaks.
    """
    value = _object(line)
    key = next((key for key in ("conversations", "messages") if key in value), None)
    if key is None:
        raise BadLine(f"neither conversations nor messages, but {', '.join(sorted(value)[:8]) or 'nothing'}")
    if not isinstance(value[key], list):
        raise BadLine(f"{key} is {_noun(value[key])}, not a list")
    if value.get("tools"):
        raise BadLine("tools are not supported: the template would not be given them")
    turns = [_turn(turn, f"{key}[{index}]") for index, turn in enumerate(value[key])]
    if value.get("system"):
        turns.insert(0, Turn("system", _string(value["system"], "system")))
    if not any(turn.role == ASSISTANT for turn in turns):
        raise BadLine(f"no assistant among {len(turns)} turns")
    return tuple(turns)


def _turn(value: object, where: str) -> Turn:
    if not isinstance(value, dict):
        raise BadLine(f"{where} is {_noun(value)}, not an object")
    told = value.get("from", value.get("role"))
    role = ROLES.get(told) if isinstance(told, str) else None
    if role is None:
        raise BadLine(f"{where}: role {told!r} is none of {', '.join(ROLES)}")
    if value.get("tool_calls"):
        raise BadLine(f"{where}: tool_calls are not supported; write the call out as text")
    reasoning = value.get("reasoning_content") or ""
    text = _text(value.get("value", value.get("content")), where)
    return Turn(role, text, _string(reasoning, f"{where}: reasoning_content"))


def _text(value: object, where: str) -> str:
    if not isinstance(value, list):
        return _string(value, f"{where}: its text")
    texts = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text":
            raise BadLine(f"{where}: a part of its text is not of type text")
        texts.append(_string(part.get("text"), f"{where}: a part of its text"))
    return "".join(texts)


def _object(line: bytes) -> dict[str, Any]:
    if not line.strip():
        raise BadLine("empty")
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadLine(f"not UTF-8: {error.reason} at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise BadLine(f"not JSON: {error.msg} at character {error.pos}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
        raise BadLine(f"not JSON that can be read: {error}") from error
    if not isinstance(value, dict):
        cure = "; jq -c '.[]' makes lines of a list" if isinstance(value, list) else ""
        raise BadLine(f"{_noun(value)}, not an object{cure}")
    return value


def _string(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise BadLine(f"{what} is {_noun(value)}, not a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadLine(f"{what}: half of a surrogate pair at character {error.start}") from error
    return value


def _noun(value: object) -> str:
    return _NOUNS.get(type(value), "absent")
