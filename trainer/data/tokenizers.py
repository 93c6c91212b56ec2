"""Documents to token ids, and which are supervised: all of a text, the assistant's of a conversation."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trainer.data.documents import ASSISTANT, BadLine
from trainer.data.rendering import Spans, Style, learn_style, locate, messages_of, within
from trainer.errors import ConfigInvalid, DataInvalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trainer.config import Config
    from trainer.data.documents import Content, Turn
    from trainer.data.rendering import Message

EMBEDDED = "embedded"
EXTRA = "dflashctl[hf]"
TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"
"""ChatML's words; of the byte-level target they are so many bytes."""
FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
)
"""What of a target's folder decides on the tokens."""
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True, slots=True)
class Encoded:
    """Tokens [n], and of the same length whether each is supervised."""

    tokens: NDArray[np.uint32]
    supervised: NDArray[np.bool_]


class Tokenizer(Protocol):
    """Makes tokens of documents."""

    def encode(self, contents: Sequence[Content]) -> list[Encoded | BadLine]:
        """One answer a document, in order."""


class ByteTokenizer:
    """Ids are bytes of UTF-8."""

    def encode(self, contents: Sequence[Content]) -> list[Encoded | BadLine]:
        """Conversations as ChatML of bytes: an assistant's text and the end of its turn are supervised."""
        return [self._encode(content) for content in contents]

    def _encode(self, content: Content) -> Encoded:
        if isinstance(content, str):
            return _bytes([(content, True)])
        pieces: list[tuple[str, bool]] = []
        for turn in content:
            pieces.append((f"{TURN_START}{turn.role}\n", False))
            pieces.append((f"{turn.text}{TURN_END}", turn.role == ASSISTANT))
            pieces.append(("\n", False))
        return _bytes(pieces)


def _bytes(pieces: list[tuple[str, bool]]) -> Encoded:
    parts = [text.encode() for text, _ in pieces]
    flags = np.repeat([supervised for _, supervised in pieces], [len(part) for part in parts])
    return Encoded(np.frombuffer(b"".join(parts), np.uint8).astype(np.uint32), flags)


class HFTokenizer:
    """The target's own tokenizer and chat template, by transformers."""

    def __init__(self, directory: str, template: str | None) -> None:
        """`template` stands for the tokenizer's own.

        Raises:
            ConfigInvalid: transformers is not installed.
            DataInvalid: it cannot load the tokenizer, or the tokenizer does not tell offsets.
        """
        self._tokenizer = _load(directory)
        if template is not None:
            self._tokenizer.chat_template = template
        if not self._tokenizer.is_fast:
            raise DataInvalid(
                f"target.path: {directory}: its tokenizer does not tell which characters a token stands for, "
                "by which the assistant's tokens are found; add a tokenizer.json"
            )
        self._marks_answers = GENERATION.search(str(self._tokenizer.chat_template)) is not None
        self._style: Style | None = None

    def encode(self, contents: Sequence[Content]) -> list[Encoded | BadLine]:
        """Texts with the tokenizer's special tokens, conversations with the template's."""
        answers: dict[int, Encoded | BadLine] = {}
        texts: dict[int, str] = {}
        spans: dict[int, Spans] = {}
        for index, content in enumerate(contents):
            try:
                if isinstance(content, str):
                    texts[index] = content
                elif self._marks_answers:
                    answers[index] = self._encode_marked(content)
                else:
                    texts[index], spans[index] = locate(self._render, self._learned(), messages_of(content))
            except BadLine as bad:
                answers[index] = bad
        for conversations in (False, True):
            chosen = [index for index in texts if (index in spans) == conversations]
            for index, encoded in zip(chosen, self._tokenize(chosen, texts, spans), strict=True):
                answers[index] = encoded
        return [answers[index] for index in range(len(contents))]

    def _tokenize(self, chosen: list[int], texts: dict[int, str], spans: dict[int, Spans]) -> list[Encoded]:
        if not chosen:
            return []
        made = self._tokenizer(
            [texts[index] for index in chosen],
            add_special_tokens=chosen[0] not in spans,
            return_offsets_mapping=True,
            return_attention_mask=False,
            verbose=False,
        )
        encoded = []
        for index, ids, offsets in zip(chosen, made["input_ids"], made["offset_mapping"], strict=True):
            tokens = np.asarray(ids, np.uint32)
            supervised = (
                within(texts[index], offsets, spans[index])
                if index in spans
                else np.ones(len(tokens), np.bool_)
            )
            encoded.append(Encoded(tokens, supervised))
        return encoded

    def _learned(self) -> Style:
        if self._style is None:
            if self._tokenizer.chat_template is None:
                raise ConfigInvalid(
                    "data.chat_template: empty, and the target's tokenizer has none of its own; name a file"
                )
            self._style = learn_style(self._render)
        return self._style

    def _render(self, messages: list[Message], prompt: bool) -> str:  # noqa: FBT001 - as `Render` says
        text = self._by_template(
            partial(
                self._tokenizer.apply_chat_template, messages, tokenize=False, add_generation_prompt=prompt
            )
        )
        return str(text)

    def _encode_marked(self, turns: tuple[Turn, ...]) -> Encoded:
        """The template says itself what is generated, with {% generation %}."""
        options = {"tokenize": True, "return_dict": True, "return_assistant_tokens_mask": True}
        made = self._by_template(partial(self._tokenizer.apply_chat_template, messages_of(turns), **options))
        return Encoded(
            np.asarray(made["input_ids"], np.uint32), np.asarray(made["assistant_masks"], np.bool_)
        )

    def _by_template(self, call: partial[Any]) -> Any:  # noqa: ANN401 - as above
        from jinja2 import TemplateError, TemplateSyntaxError

        try:
            return call()
        except TemplateSyntaxError as error:
            raise ConfigInvalid(
                f"data.chat_template: line {error.lineno}: {error.message}; correct it"
            ) from error
        except (TemplateError, TypeError, ValueError, LookupError) as error:
            raise BadLine(f"the chat template refuses it: {error}") from error


def open_tokenizer(config: Config) -> Tokenizer:
    """The target's.

    Raises:
        ConfigInvalid: transformers is missing, the target has no tokenizer, or a template cannot be read.
        DataInvalid: the tokenizer cannot be loaded.
    """
    if config.target.path == EMBEDDED:
        if config.data.chat_template:
            raise ConfigInvalid("data.chat_template: the embedded target's is fixed; leave it empty")
        return ByteTokenizer()
    return HFTokenizer(config.target.path, _read_template(config.data.chat_template))


def tokenizer_fingerprint(config: Config) -> str:
    """sha256 over the files that decide on the tokens, without loading them.

    Raises:
        ConfigInvalid: there are none.
    """
    digest = hashlib.sha256((_read_template(config.data.chat_template) or "").encode())
    if config.target.path == EMBEDDED:
        digest.update(f"bytes {TURN_START} {TURN_END}".encode())
        return digest.hexdigest()
    directory = Path(config.target.path)
    files = sorted({file for pattern in FILES for file in directory.glob(pattern) if file.is_file()})
    if not files:
        raise ConfigInvalid(
            f"target.path: {config.target.path}: no tokenizer files there, which data.source = "
            f"{config.data.source} needs; name the target's directory, or take data.source = stdlib"
        )
    for file in files:
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _read_template(path: str) -> str | None:
    if not path:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"data.chat_template: {path}: {error}; name a readable file") from error


def _load(directory: str) -> Any:  # noqa: ANN401 - transformers' own
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ConfigInvalid(
            f"target.path: {directory}: its tokenizer needs transformers; pip install '{EXTRA}'"
        ) from error
    try:
        return AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataInvalid(f"target.path: {directory}: its tokenizer cannot be loaded: {error}") from error
