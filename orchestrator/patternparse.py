"""The text of a regular expression read into a tree; what needs going back is refused, with its place."""

from __future__ import annotations

from orchestrator.patterntree import ANY, Branch, Chars, Edge, EdgeKind, Node, PatternError, Repeat, Sequence_

MAX_DEPTH = 50
MAX_TEXT = 1_000
MAX_COUNT = 1_000
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_EDGES = {"b": EdgeKind.WORD, "B": EdgeKind.NO_WORD, "A": EdgeKind.START, "Z": EdgeKind.END}


def parse(text: str) -> tuple[Node, bool]:
    """Return the tree, and whether it takes upper case for lower (`(?i)` at its beginning).

    Raises:
        PatternError: It is none, or needs going back.
    """
    if len(text) > MAX_TEXT:
        raise PatternError(f"it has {len(text)} characters; at most {MAX_TEXT}")
    folds = text.startswith("(?i)")
    parser = _Parser(text, 4 if folds else 0)
    tree = parser.branch(0)
    if parser.at < len(text):
        raise parser.error("a ) without its (")
    return tree, folds


class _Parser:
    """Reads one expression from left to right."""

    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at

    def error(self, what: str) -> PatternError:
        """Return the error for what stands here."""
        return PatternError(f"{what} at character {self.at + 1}")

    def branch(self, depth: int) -> Node:
        """Read choices up to a `)` or the end."""
        if depth > MAX_DEPTH:
            raise self.error(f"more than {MAX_DEPTH} groups in each other")
        choices = [self._sequence(depth)]
        while self._take("|"):
            choices.append(self._sequence(depth))
        return choices[0] if len(choices) == 1 else Branch(tuple(choices))

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            parts.append(self._repeated(self._atom(depth)))
        return parts[0] if len(parts) == 1 else Sequence_(tuple(parts))

    def _repeated(self, part: Node) -> Node:
        counts = self._counts()
        if counts is None:
            return part
        if isinstance(part, Edge):
            raise self.error("a repeat of what takes no character")
        self._take("?")  # a lazy repeat matches the same lines
        if self.text[self.at : self.at + 1] == "+" or self._counts() is not None:
            raise self.error("a repeat of a repeat")
        return Repeat(part, *counts)

    def _counts(self) -> tuple[int, int | None] | None:
        for sign, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return counts
        if self.text[self.at : self.at + 1] != "{":
            return None
        end = self.text.find("}", self.at)
        low, comma, high = self.text[self.at + 1 : max(end, 0)].partition(",")
        if end < 0 or not (low + high).isdecimal() or not (low or comma):
            return None  # as Python has it, a brace that counts nothing is a brace
        least = int(low or 0)
        most = (int(high) if high else None) if comma else least
        if least > MAX_COUNT or (most or 0) > MAX_COUNT or (most is not None and most < least):
            raise self.error(f"a count that is backwards or over {MAX_COUNT}")
        self.at = end + 1
        return least, most

    def _atom(self, depth: int) -> Node:
        char = self.text[self.at]
        if char == "(":
            return self._group(depth)
        if char in "*+?":
            raise self.error("nothing to repeat")
        self.at += 1
        if char == "[":
            return self._set()
        if char == "\\":
            return self._escape()
        edges = {"^": EdgeKind.START, "$": EdgeKind.END}
        return Edge(edges[char]) if char in edges else ANY if char == "." else _one(char)

    def _group(self, depth: int) -> Node:
        opened = self.at
        self.at += 1
        if self._take("?:"):
            pass
        elif self._take("?P<"):
            end = self.text.find(">", self.at)
            if end < 0 or not self.text[self.at : end].isidentifier():
                raise self.error("a group's name without its end")
            self.at = end + 1
        elif self.text[self.at : self.at + 1] == "?":
            raise self.error("looking around, flags inside and references need going back; they are refused,")
        node = self.branch(depth + 1)
        if not self._take(")"):
            self.at = opened
            raise self.error("a ( without its )")
        return Sequence_((node,)) if isinstance(node, Edge) else node  # in a group even an edge is repeated

    def _escape(self) -> Node:
        if self.at >= len(self.text):
            raise self.error("a \\ and nothing behind it")
        char = self.text[self.at]
        if char in _EDGES:
            self.at += 1
            return Edge(_EDGES[char])
        low, kind = self._escaped()
        return Chars(kinds=(kind,)) if kind else _one(low)

    def _escaped(self) -> tuple[str, str]:
        """Return the character that is meant, or the kind."""
        char = self.text[self.at]
        if char in "dwsDWS":
            self.at += 1
            return "", char
        if char == "x":
            digits = self.text[self.at + 1 : self.at + 3]
            try:
                value = chr(int(digits, 16)) if len(digits) == 2 else ""
            except ValueError:
                value = ""
            if not value:
                raise self.error("\\x without two hexadecimal digits")
            self.at += 3
            return value, ""
        if char.isalnum() and char not in _ESCAPES:
            raise self.error(f"\\{char}, which is not known or needs going back,")
        self.at += 1
        return _ESCAPES.get(char, char), ""

    def _set(self) -> Node:
        is_negated = self._take("^")
        ranges: list[tuple[str, str]] = []
        kinds: list[str] = []
        is_first = True
        while is_first or self.text[self.at : self.at + 1] != "]":
            is_first = False
            low, kind = self._member()
            if kind:
                kinds.append(kind)
                continue
            high = low
            if self.text[self.at : self.at + 1] == "-" and self.text[self.at + 1 : self.at + 2] not in (
                "]",
                "",
            ):
                self.at += 1
                high, kind = self._member()
                if kind or high < low:
                    raise self.error("a range that is backwards")
            ranges.append((low, high))
        self.at += 1
        return Chars(tuple(ranges), tuple(kinds), is_negated)

    def _member(self) -> tuple[str, str]:
        if self.at >= len(self.text):
            raise self.error("a [ without its ]")
        char = self.text[self.at]
        self.at += 1
        if char != "\\":
            return char, ""
        if self.at >= len(self.text):
            raise self.error("a \\ and nothing behind it")
        if self.text[self.at] == "b":
            self.at += 1
            return "\b", ""
        return self._escaped()

    def _take(self, text: str) -> bool:
        if self.text.startswith(text, self.at):
            self.at += len(text)
            return True
        return False


def _one(char: str) -> Chars:
    return Chars(((char, char),))
