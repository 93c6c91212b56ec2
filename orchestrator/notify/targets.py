"""Where messages go: targets by apprise's URLs, which are secrets and never leave this file."""

from __future__ import annotations

import logging
import re
import threading
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError
from orchestrator.masking import Masker
from orchestrator.notify.message import Severity
from orchestrator.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from apprise import Apprise
    from typing_extensions import Self

    from orchestrator.notify.message import Message
    from orchestrator.notify.settings import Address

_TYPES = {
    Severity.INFO: "success",
    Severity.WARNING: "warning",
    Severity.ERROR: "failure",
    Severity.URGENT: "failure",
}
_MIN_SECRET = 3
_MAX_WHY = 200
_MAX_PAUSE_S = 1.0  # between two messages; apprise's 5.5 are for who has no rate of their own
# What they log at any level may hold an address, and with it its password.
_TALKATIVE = ("urllib3", "requests", "requests_oauthlib", "oauthlib")


class Target:
    """One place that is told. Its name holds nothing of its URL but the service."""

    def __init__(self, address: Address, service: str, sender: Apprise) -> None:
        self.service = service
        self.origin = address.origin
        self._sender = sender
        pieces = re.split(r"[^\w.~-]+", address.secret.partition("://")[2])
        self._masker = Masker([address.secret, *(p for p in pieces if len(p) >= _MIN_SECRET)])

    @property
    def name(self) -> str:
        """The service, and where its URL is written."""
        return f"{self.service} ({self.origin})"

    def send(self, message: Message) -> str | None:
        """Send it; return why it did not go, or None."""
        with _Listener() as heard:
            is_sent = self._sender.notify(
                body=message.body,
                title=message.title,
                notify_type=_TYPES[message.severity],
                body_format="text",
            )
        if is_sent:
            return None
        return self.mask("; ".join(heard.said[-2:]) or "it was refused without a reason")

    def mask(self, text: str) -> str:
        """Return the text on one line, without anything of the URL."""
        return one_line(self._masker.text(text), _MAX_WHY)


def build(addresses: Sequence[Address]) -> tuple[Target, ...]:
    """Return the targets at these addresses.

    Raises:
        ConfigError: apprise is not installed, or does not know an address.
    """
    if not addresses:
        return ()
    _hush()
    try:
        from apprise import Apprise, AppriseAsset
    except ImportError as cause:
        hint = 'install it with `pip install "dflashctl[notify]"`'
        raise ConfigError("messages: apprise is not installed", hint=hint) from cause
    _hush()
    # In this thread, which is a daemon: apprise's own pool is waited for when the program ends.
    asset = AppriseAsset(
        app_id="dflashctl", app_desc="dflashctl", app_url="", async_mode=False, service_timeout=0
    )
    targets = []
    for address in addresses:
        sender = Apprise(asset=asset)
        plugin = Apprise.instantiate(address.secret, asset=asset, suppress_exceptions=True)
        if plugin is None or not sender.add(plugin):
            raise ConfigError(
                f"{address.origin}: no address that apprise knows{_scheme(address.secret)}",
                hint=_known_instead(address.secret),
            )
        plugin.request_rate_per_sec = min(plugin.request_rate_per_sec, _MAX_PAUSE_S)
        targets.append(Target(address, str(plugin.service_name), sender))
    return tuple(targets)


def _scheme(url: str) -> str:
    found = re.match(r"([a-z][a-z0-9+.-]{0,20})://", url, re.IGNORECASE)
    return f", of the kind {found.group(1).lower()}://" if found else ""


def _known_instead(url: str) -> str:
    """Return the kinds of address to take instead; a web address alone does not say what is there."""
    if url.lower().startswith(("http://", "https://")):
        plain = url.lower().startswith("http://")
        kinds = "json://HOST/PATH or form://HOST/PATH" if plain else "jsons://HOST/PATH or forms://HOST/PATH"
        return (
            f"for a webhook of your own write {kinds}; apprise has kinds for ntfy, Slack, Discord and others"
        )
    return "such as ntfys://TOPIC or mailtos://USER:PASSWORD@HOST; the value is not shown here"


def _hush() -> None:
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    logger = logging.getLogger("apprise")
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


class _Listener(logging.Handler):
    """Hears what apprise says of one sending, in this thread only: it returns no reason."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            self.said.append(record.getMessage())

    def __enter__(self) -> Self:
        logging.getLogger("apprise").addHandler(self)
        return self

    def __exit__(self, *_exc: object) -> None:
        logging.getLogger("apprise").removeHandler(self)
