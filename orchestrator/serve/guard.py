"""Who may ask for what, seen to before anything else: names of this server, logins, and where acts come from.

Reading is free on loopback and needs a login elsewhere; acts need one everywhere. A page of another site can
make a browser send a request here, cookies and all: acts are refused that come from elsewhere, or without the
token that only our pages have. A name that was made to point at this machine is refused as well.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders

from orchestrator.serve.limiting import WrongLogins

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from orchestrator.clock import Clock
    from orchestrator.serve.token import Token

# Not `no-referrer`: with that a browser hides the origin of our own forms.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SAFETY: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with no-referrer a browser sends a form of ours with `Origin: null`
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
CSRF_HEADER = "x-csrf-token"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_FREE = ("/login", "/static/", "/healthz")  # for whoever is not logged in
_BEARER = "bearer "


class RefusedError(Exception):
    """Why a request is not served. `asks_login`: a login would help."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        hint: str | None = None,
        *,
        asks_login: bool = False,
        wait_s: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.hint = status, code, message, hint
        self.asks_login, self.wait_s = asks_login, wait_s


@dataclass(frozen=True)
class Visitor:
    """Who asks. `session` is the cookie's value of a login; `is_known`: the token was shown, or a session."""

    address: str
    is_known: bool = False
    session: str | None = None


@dataclass(frozen=True, kw_only=True)
class Rules:
    """`reads_freely`: whoever reaches it may read. `names`: hosts that this server is called by."""

    token: Token
    reads_freely: bool
    names: frozenset[str]
    cookie: str = "dflashctl"
    wrong: WrongLogins = field(default_factory=WrongLogins)


class Guard:
    """The outermost layer: answers what is refused itself."""

    def __init__(
        self, app: ASGIApp, rules: Rules, clock: Clock, answer: Callable[[Scope, RefusedError], ASGIApp]
    ) -> None:
        self._app = app
        self._rules = rules
        self._clock = clock
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SAFETY.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        app = self._app
        try:
            scope["visitor"] = self._admit(scope)
        except RefusedError as refused:
            app = self._answer(scope, refused)
        await app(scope, receive, safely)

    def _admit(self, scope: Scope) -> Visitor:
        headers = Headers(scope=scope)
        _check_host(headers.get("host", ""), self._rules.names)
        visitor = self._visitor(scope, headers)
        scope["visitor"] = visitor
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        is_free = path == "/login" or path.startswith(_FREE[1:])
        if scope["method"] in _SAFE:
            if not (visitor.is_known or is_free or self._rules.reads_freely):
                raise _unknown()
            return visitor
        _check_origin(headers)
        if path == "/login":
            return visitor
        if not visitor.is_known:
            raise _unknown()
        if visitor.session is not None and path != "/logout":  # a form; it carries the token itself
            check_csrf(self._rules.token, visitor, headers.get(CSRF_HEADER, ""))
        return visitor

    def _visitor(self, scope: Scope, headers: Headers) -> Visitor:
        address = str((scope.get("client") or ("",))[0])
        shown = headers.get("authorization", "")
        if shown[: len(_BEARER)].lower() == _BEARER:
            # Counted apart: a program with an old token must not keep a person out who comes from there.
            who = f"{address} {_BEARER}"
            login(self._rules, who, shown[len(_BEARER) :].strip(), self._clock.monotonic())
            return Visitor(address, is_known=True)
        session = _cookie(headers.get("cookie", ""), self._rules.cookie)
        now_s = self._clock.now().timestamp()
        if session is not None and self._rules.token.is_session(session, now_s):
            return Visitor(address, is_known=True, session=session)
        return Visitor(address)


def login(rules: Rules, who: str, word: str, ticks: float) -> None:
    """Take a token that somebody shows; `who` is counted.

    Raises:
        RefusedError: It is wrong, or too many wrong ones came from that address.
    """
    if wait_s := rules.wrong.wait_s(who, ticks):
        message = f"too many wrong tokens; the next is looked at in {wait_s:.0f} s"
        raise RefusedError(429, "too_many_wrong_tokens", message, wait_s=wait_s, asks_login=True)
    if not rules.token.fits(word):
        rules.wrong.add(who, ticks)
        raise RefusedError(401, "wrong_token", "that is not the token", _where(rules), asks_login=True)
    rules.wrong.forgive(who)


def check_csrf(token: Token, visitor: Visitor, word: str) -> None:
    """See that an act comes from a page of ours.

    Raises:
        RefusedError: It does not show the session's token.
    """
    if visitor.session is None or not token.is_csrf(word, visitor.session):
        message = f"the request lacks the session's {CSRF_HEADER}"
        raise RefusedError(403, "csrf", message, "load the page again")


def _where(rules: Rules) -> str | None:
    is_told = rules.reads_freely and rules.token.path is not None  # to whoever is on this machine
    return f"it is in {rules.token.path}" if is_told else None


def _unknown() -> RefusedError:
    return RefusedError(
        401, "login_needed", "this needs the token", "log in, or send Authorization: Bearer", asks_login=True
    )


def _check_host(host: str, names: frozenset[str]) -> None:
    """See that the server was called by an address or a name of its own: no other site's name leads here."""
    name = host_name(host)
    if name in names:
        return
    try:
        ipaddress.ip_address(name)
    except ValueError:
        hint = "open it by its address, or start it with --allow-host"
        raise RefusedError(421, "unknown_host", f"{name[:100]!r} is no name of this server", hint) from None


def host_name(host: str) -> str:
    """Return a Host header's name, without port and brackets, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


def _check_origin(headers: Headers) -> None:
    """See that no page of another site sent it; what is no browser sends neither header."""
    site = headers.get("sec-fetch-site", "same-origin")
    if site not in ("same-origin", "none"):
        raise RefusedError(
            403, "other_site", f"an act that came from elsewhere (sec-fetch-site: {site[:40]})"
        )
    origin = headers.get("origin")
    if origin is None:
        return
    scheme, _, rest = origin.partition("://")
    if scheme not in ("http", "https") or rest.lower() != headers.get("host", "").lower():
        raise RefusedError(403, "other_site", f"an act that came from another origin ({origin[:100]!r})")


def _cookie(header: str, name: str) -> str | None:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return None
    return found.value if found is not None else None
