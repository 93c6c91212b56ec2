"""Secrets known by their shape: what begins a token, what a URL holds, what follows `password=`. Pure.

Each shape looks at one line, reaches no farther than REACH bytes, and takes time linear in its input: a run
of token characters has one beginning, so no byte is tried from many of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from orchestrator.masking.names import is_secret_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REACH = 8192  # bytes from the first that makes a secret known to its last
_MAX_RUN = 2048
_NAME_REACH = 64
_KEY_REACH = 96

Span = tuple[int, int]


@dataclass(frozen=True)
class Shape:
    """A pattern whose last group is the secret; tried only where one of `literals` is.

    `part` is the same at the end of a text that may go on: a secret of which the rest has not come yet.
    """

    literals: tuple[bytes, ...]
    pattern: re.Pattern[bytes]
    part: re.Pattern[bytes]
    holds: Callable[[bytes, re.Match[bytes]], bool] = lambda _data, _match: True
    folds: bool = False  # look at the text in lower case

    def spans(self, data: bytes, lower: bytes, *, is_cut: bool) -> Iterator[Span]:
        """Yield where the secrets are; with `is_cut`, also one that the end cuts."""
        text = lower if self.folds else data
        if not any(literal in text for literal in self.literals):
            return
        for match in self.pattern.finditer(text):
            if self.holds(data, match):
                yield match.span(match.re.groups)
        if is_cut and (match_ := self.part.search(text, max(0, len(text) - REACH))):
            yield match_.span(match_.re.groups)


# In a repr or JSON a newline is two characters, of which the second is a letter.
def _begin(run: str) -> str:
    return rf"(?:(?<![{run}])|(?<=\\[nrt]))"


def _token(
    *literals: str, run: str, least: int, gate: str = "", anywhere: bool = True, exact: bool = False
) -> Shape:
    """`gate` is what all literals have in them: looked for first, it saves looking for each."""
    head = ("" if anywhere else _begin(run)) + "(?:" + "|".join(re.escape(each) for each in literals) + ")"
    body = rf"([{run}]{{{least}}})(?![{run}])" if exact else rf"([{run}]{{{least},{_MAX_RUN}}})"
    return Shape(
        tuple(each.encode() for each in ([gate] if gate else literals)),
        re.compile((head + body).encode()),
        re.compile((head + rf"([{run}]{{4,}})\Z").encode()),
    )


def _is_random(_data: bytes, match: re.Match[bytes]) -> bool:
    """`sk-` begins words too; a key has a digit, and a capital or a long part without a hyphen."""
    body = match.group(1)
    if not re.search(rb"[0-9]", body):
        return False
    return bool(re.search(rb"[A-Z]", body)) or any(len(part) >= 20 for part in re.split(rb"[-_]", body))


def _has_digit(_data: bytes, match: re.Match[bytes]) -> bool:
    """A login's name has seldom one; a token in its place is never without."""
    return re.search(rb"[0-9]", match.group(1)) is not None


def _is_key_named(data: bytes, match: re.Match[bytes]) -> bool:
    """Forty hexadecimal digits are a key after wandb or an API key's name, and else a commit."""
    before = data[max(0, match.start(1) - _KEY_REACH) : match.start(1)].rpartition(b"\n")[2].lower()
    if re.search(rb"commit|sha|git|rev|hash|digest", before):
        return False
    return b"wandb" in before or re.search(rb"api[ _-]?key|password|netrc|login", before) is not None


_CLEAR_NAMES = re.compile(
    r"(?:.*[_.-])?(?:password|passwd|passphrase|api[_-]?key|secret|client[_-]?secret|secret[_-]?key"
    r"|(?:(?:secret|shared)[_-]?)?access[_-]?key|private[_-]?key|account[_-]?key"
    r"|(?:access|auth|api|hf|hub|refresh|id|bearer|session|bot)[_-]?token)\Z"
)
_NAME_CHARS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
# Without what JSON, TOML and a shell use: a masked file stays one of its kind, and so do its plain numbers.
_VALUE = r"[^\s\"',;&<>{}()\[\]\\]"
_NO_SECRET = re.compile(rb"(?i)(?:none|null|true|false|-?\d{1,9}|-?\d+\.\d*|\*+|\$[A-Z_][A-Z0-9_]*)\Z")


def _is_assigned(data: bytes, match: re.Match[bytes]) -> bool:
    """Whether the whole name says so: `HF_TOKEN=` does and `mask_token:` does not."""
    value = match.group("value")
    # After a quoted key a secret is quoted too: a bare word there is JSON's own.
    if (match.group("key") and not match.group("quote")) or _NO_SECRET.match(value) or value[:1] == b"<":
        return False
    before = data[max(0, match.start() - _NAME_REACH) : match.start()]
    tail = before[len(before.rstrip(_NAME_CHARS)) :]
    return _names_secret(tail + data[match.start() : match.end("word")])


@lru_cache(maxsize=1024)
def _names_secret(name_: bytes) -> bool:
    name = name_.decode("ascii", "replace").lstrip("-.")
    is_variable = name.isupper() and "_" in name.strip("_")
    return (is_variable and is_secret_name(name)) or _CLEAR_NAMES.match(name.lower()) is not None


def _assigned(word: str) -> Shape:
    head = rf"(?P<word>{word})\\?(?P<key>[\"'])?[ \t]{{0,4}}(?:=|:|=>)[ \t]{{0,4}}\\?(?P<quote>[\"'])?"
    return Shape(
        (word.encode(),),
        re.compile(f"{head}(?P<value>{_VALUE}{{6,512}})".encode()),
        re.compile(f"{head}(?P<value>{_VALUE}{{1,512}})\\Z".encode()),
        _is_assigned,
        folds=True,
    )


# A run of hyphens has one beginning, so a line of them is read once.
_FLAG = r"(?<![-\w])--?(?P<word>[a-z0-9_.-]{0,64}?(?:token|secret|password|passwd|passphrase|key))[ \t]{1,4}"


def _is_clear_flag(_data: bytes, match: re.Match[bytes]) -> bool:
    is_plain = _NO_SECRET.match(match.group("value")) is not None
    return not is_plain and _CLEAR_NAMES.match(match.group("word").decode("ascii").lower()) is not None


_B64URL = r"A-Za-z0-9_\-"
_JWT = rf"{_begin(_B64URL)}eyJ([{_B64URL}]{{8,1024}}\.eyJ[{_B64URL}]{{8,4096}}(?:\.[{_B64URL}]{{0,1024}})?)"
_URL = r"://[^\s/@:'\"<>]{0,128}:([^\s/'\"<>]{1,256})"
# A signed URL opens what it names to whoever holds it, and so does a webhook's.
_SIGNED = r"[?&;](?:x-(?:amz|goog)-)?(?:signature|security-token|sig)=([^\s&\"'<>;,]"
_SLACK = r"hooks\.slack\.com/[a-z]{4,12}/([\w/-]"
_HOOK = r"(?:/api/webhooks/\d{1,20}/|api\.telegram\.org/bot\d{1,20}:)([\w-]"
_USER = rf"://([{_B64URL}]"
_BEARER = r"(?:bearer|authorization[\"']?:[ ]{0,2}[\"']?(?:basic|token))[ \t]{1,4}([a-z0-9._~+/=-]"

SHAPES = (
    _token("hf_", "api_org_", run="A-Za-z0-9", least=20),
    _token("ghp_", "gho_", "ghu_", "ghs_", "ghr_", run="A-Za-z0-9", least=20, gate="gh"),
    _token("github_pat_", "wandb_v1_", "dckr_pat_", run="A-Za-z0-9_", least=20),
    _token("glpat-", "gldt-", "glrt-", "glptt-", run=_B64URL, least=20, gate="gl"),
    _token("xoxb-", "xoxp-", "xoxa-", "xoxs-", "xoxe-", "xoxr-", run="A-Za-z0-9-", least=10, gate="xox"),
    _token("nvapi-", "pypi-AgE", "ya29.", run=_B64URL, least=20),
    _token("npm_", "r8_", "sk_live_", "rk_live_", run="A-Za-z0-9", least=20),
    _token("AKIA", "ASIA", run="A-Z0-9", least=16, anywhere=False, exact=True),
    _token("AIza", run=_B64URL, least=35, anywhere=False, exact=True),
    Shape(
        (b"sk-",),
        re.compile(rf"{_begin(_B64URL)}sk-([{_B64URL}]{{20,{_MAX_RUN}}})".encode()),
        re.compile(rf"{_begin(_B64URL)}sk-([{_B64URL}]{{8,}})\Z".encode()),
        _is_random,
    ),
    Shape(
        (b"eyJ",),
        re.compile(_JWT.encode()),
        re.compile(rf"{_begin(_B64URL)}eyJ([{_B64URL}.]{{8,}})\Z".encode()),
    ),
    Shape((b"://",), re.compile(f"{_URL}@".encode()), re.compile(f"{_URL}\\Z".encode())),
    Shape(
        (b"://",),
        re.compile(f"{_USER}{{20,255}})@".encode()),
        re.compile(f"://(?=[{_B64URL}]*[0-9])([{_B64URL}]{{12,255}})\\Z".encode()),
        _has_digit,
    ),
    Shape(
        (b"sig",),  # a signed URL has a signature, whatever else it has
        re.compile(f"{_SIGNED}{{8,{_MAX_RUN}}})".encode()),
        re.compile(f"{_SIGNED}{{1,}})\\Z".encode()),
        folds=True,
    ),
    Shape(
        (b"hooks.slack.com/",),
        re.compile(f"{_SLACK}{{12,256}})".encode()),
        re.compile(f"{_SLACK}{{1,256}})\\Z".encode()),
        folds=True,
    ),
    Shape(
        (b"/webhooks/", b"telegram.org/bot"),
        re.compile(f"{_HOOK}{{12,256}})".encode()),
        re.compile(f"{_HOOK}{{1,256}})\\Z".encode()),
        folds=True,
    ),
    Shape(
        (b"bearer", b"authorization"),
        re.compile(f"{_BEARER}{{16,{_MAX_RUN}}})".encode()),
        re.compile(f"{_BEARER}{{1,}})\\Z".encode()),
        folds=True,
    ),
    Shape(
        (b"key", b"wandb", b"login", b"netrc", b"password"),
        re.compile(rb"(?<![0-9a-f])([0-9a-f]{40})(?![0-9a-f])"),
        re.compile(rb"(?<![0-9a-f])([0-9a-f]{8,40})\Z"),
        _is_key_named,
        folds=True,
    ),
    Shape(
        (b"--",),
        re.compile(f"{_FLAG}(?P<value>(?!-){_VALUE}{{6,512}})".encode()),
        re.compile(f"{_FLAG}(?P<value>(?!-){_VALUE}{{1,512}})\\Z".encode()),
        _is_clear_flag,
        folds=True,
    ),
    *map(_assigned, ("token", "secret", "password", "passwd", "passphrase", "key")),
)
