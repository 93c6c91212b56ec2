"""Conversations as data sets have them, made from a seed: of all lengths, in both formats."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEXT = """
the of and to in is that it for as with on be at by this from or an are was but not which have its one all
there can more if out so said what up about into than them only other time new some could these two may first
gru\u00df stra\u00dfe \u4f60\u597d \u4e16\u754c \u043f\u0440\u0438\u0432\u0435\u0442 \U0001f600
def return while print(x) {'a': 1} ```python``` a+b=c 3.14159 https://example.org/x?y=z
"""
WORDS = TEXT.split()


def sentence(rng: random.Random, words: int) -> str:
    """So many words."""
    return " ".join(rng.choices(WORDS, k=words))


def conversation(rng: random.Random) -> list[tuple[str, str]]:
    """Role and text of each turn: often one question, seldom a long exchange; few answers are very long."""
    turns = [("system", sentence(rng, rng.randint(3, 20)))] if rng.random() < 0.3 else []
    for _ in range(min(6, 1 + int(rng.expovariate(1.0)))):
        turns.append(("user", sentence(rng, rng.randint(2, 40))))
        turns.append(("assistant", sentence(rng, max(1, int(rng.lognormvariate(3.0, 0.8))))))
    return turns


def chat_lines(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """`count` conversations; every other one in the older format of from and value."""
    rng = random.Random(seed)
    for index in range(count):
        turns = conversation(rng)
        if index % 2:
            names = {"user": "human", "assistant": "gpt", "system": "system"}
            yield {
                "id": index,
                "conversations": [{"from": names[role], "value": text} for role, text in turns],
            }
        else:
            yield {"messages": [{"role": role, "content": text} for role, text in turns]}


def write_chats(path: Path, count: int, seed: int = 0) -> Path:
    """A file of them."""
    with path.open("w", encoding="utf-8") as file:
        for line in chat_lines(count, seed):
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    return path
