"""The route to a host, through its jump hosts: every key is checked, every wait of the way there has an end.

fabric reads the ssh config and builds the way; what it leaves open is closed here: it checks no host key,
sets no timeout, and may forward the agent.
"""

from __future__ import annotations

import logging
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import fabric
import paramiko
from paramiko.auth_strategy import AuthFailure

from orchestrator.connection import knownhosts, sshconfig
from orchestrator.connection.login import HostKeyPolicy, KeyStrategy, known_hosts_files
from orchestrator.connection.proxy import Proxy
from orchestrator.connection.translate import translate
from orchestrator.errors import HostDenied, HostUnreachable

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.inventory import Host

CONNECT_TIMEOUT_S = 10
BANNER_TIMEOUT_S = 15
AUTH_TIMEOUT_S = 15
CHANNEL_TIMEOUT_S = 10
KEEPALIVE_S = 15.0  # ask after this much silence
ANSWER_S = 5.0  # and drop the link after this much more

# paramiko logs a traceback for every dropped link, which Python prints when nobody has set up logging.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


@dataclass(frozen=True, kw_only=True)
class ShellOptions:
    """How to connect. `accept_command` goes into the message about an unknown key: what exactly to type."""

    accept_new_host_key: bool = False
    accept_command: str | None = None
    ssh_config: Path | None = None
    connect_timeout_s: int = CONNECT_TIMEOUT_S
    keepalive_s: float = KEEPALIVE_S
    answer_s: float = ANSWER_S


@dataclass(frozen=True, kw_only=True)
class Login:
    """All that decides whether two shells can share a connection."""

    host: Host
    jumps: tuple[Host, ...] = ()
    known_hosts: str | None = None
    options: ShellOptions = field(default_factory=ShellOptions)

    @property
    def name(self) -> str:
        """The host, for messages."""
        return self.host.address


class _Counted:
    """A socket that knows when it last brought something. paramiko sees the socket itself in all else."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401  # a socket, a channel of a jump host, or a proxy command
        self._inner = inner
        self.received_at = time.monotonic()

    def recv(self, size: int) -> bytes:
        data: bytes = self._inner.recv(size)
        self.received_at = time.monotonic()
        return data

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._inner, name)


class Route:
    """What leads to one host: a link a hop, the sockets below them, and the programs that reach them."""

    def __init__(self, login: Login) -> None:
        """Build it; nothing is reached yet.

        Raises:
            ConfigError: The ssh config is not readable.
        """
        self.login = login
        self._sockets: list[_Counted] = []
        self._strategies: list[KeyStrategy] = []
        self._policies: list[HostKeyPolicy] = []
        self._proxies: list[Proxy] = []
        self._link = self._build()

    @property
    def silence_s(self) -> float:
        """For how long nothing came from the host."""
        return time.monotonic() - self._sockets[-1].received_at

    @property
    def known_hosts(self) -> str:
        """The keys that the hops have shown and that were found right, as a known_hosts file."""
        return "".join(policy.taken for policy in self._policies if policy.taken is not None)

    def open(self) -> paramiko.Transport:
        """Connect and log in, hop by hop; return what channels are opened on.

        Raises:
            HostDenied: No key was taken.
            HostUnreachable: The ProxyCommand ended.
            HostKeyRefused: The host's key is unknown or has changed.
            SSHException, OSError, EOFError: Refused, no route, no answer in time; see `translating`.
        """
        try:
            self._link.open()
            transport: paramiko.Transport = self._link.transport
            _check_login(transport)
        except paramiko.AuthenticationException as cause:
            self.shut()
            raise self._denied(cause) from cause
        except (paramiko.SSHException, OSError, EOFError) as cause:
            said = self._proxies[0].last_words() if self._proxies else None
            self.shut()
            if said is None:
                raise
            raise HostUnreachable(f"{self.login.name}: its ProxyCommand ended: {said}") from cause
        except BaseException:
            self.shut()
            raise
        return transport

    def shut(self) -> None:
        """Close every hop; harmless to repeat."""
        link: Any = self._link
        while isinstance(link, fabric.Connection):
            link.client.close()
            link = link.gateway
        while self._proxies:
            self._proxies.pop().close()

    def _build(self) -> fabric.Connection:
        config = sshconfig.load(self.login.options.ssh_config, _as_config(self.login.host))
        gateway: Any = None
        for hop in self.login.jumps:
            gateway = self._connection(hop, config, gateway)
        return self._connection(self.login.host, config, gateway)

    def _connection(self, host: Host, config: fabric.Config, gateway: Any) -> fabric.Connection:  # noqa: ANN401
        says = config.base_ssh_config.lookup(host.address)
        if gateway is None and says.get("proxyjump", "").lower() == "none":
            gateway = False  # fabric would look for a host of that name
        link = fabric.Connection(
            host.address, user=host.user, port=host.port, config=config, gateway=gateway, forward_agent=False
        )
        self._harden(link, host)
        return link

    def _harden(self, link: fabric.Connection, host: Host | None) -> None:
        """Set what fabric leaves open, on the way's every hop."""
        options = self.login.options
        says = link.ssh_config
        name = knownhosts.host_name(
            says.get("hostkeyalias", link.host), 22 if "hostkeyalias" in says else link.port
        )
        policy = HostKeyPolicy(
            link.host,
            name,
            known_hosts_files(self.login.known_hosts, says),
            pinned=host.host_key if host else None,
            accept=options.accept_new_host_key,
            command=options.accept_command,
        )
        strategy = KeyStrategy(says, link.user, host.identity if host else None)
        self._strategies.append(strategy)
        self._policies.append(policy)
        link.client.set_missing_host_key_policy(policy)
        link.forward_agent = False
        link.connect_timeout = options.connect_timeout_s
        link.connect_kwargs = {
            "auth_strategy": strategy,
            "auth_timeout": AUTH_TIMEOUT_S,
            "banner_timeout": BANNER_TIMEOUT_S,
            "channel_timeout": CHANNEL_TIMEOUT_S,
            "transport_factory": lambda sock, **kwargs: self._transport_over(sock, policy, **kwargs),
        }
        if isinstance(link.gateway, str):
            link.open_gateway = lambda: self._proxy(link.gateway)
        if isinstance(link.gateway, fabric.Connection) and "auth_strategy" not in link.gateway.connect_kwargs:
            self._harden(link.gateway, None)

    def _transport_over(self, sock: Any, policy: HostKeyPolicy, **kwargs: Any) -> paramiko.Transport:  # noqa: ANN401
        if isinstance(sock, socket.socket) and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        counted = _Counted(sock)
        self._sockets.append(counted)
        transport = paramiko.Transport(counted, **kwargs)  # type: ignore[arg-type]
        security = transport.get_security_options()
        security.key_types = policy.prefer(tuple(security.key_types))
        return transport

    def _proxy(self, command: str) -> socket.socket:
        self._proxies.append(Proxy(command))
        return self._proxies[-1].near

    def _denied(self, cause: paramiko.AuthenticationException) -> HostDenied:
        tried = [line for strategy in self._strategies for line in strategy.tried]
        what = "; ".join(tried) or "none found: no ~/.ssh/id_* and no agent"
        reason = "" if isinstance(cause, AuthFailure) else f": {translate(cause, '').message.lstrip(': ')}"
        return HostDenied(
            f'{self.login.name}: the login as "{self._link.user}" was refused{reason}; keys tried: {what}',
            hint=f"add a key there (ssh-copy-id -p {self._link.port} {self._link.user}@{self._link.host}), "
            "or name another with --user and --identity",
        )


def _check_login(transport: paramiko.Transport) -> None:
    if not transport.is_authenticated():
        raise paramiko.AuthenticationException("the host wants one more factor than a key")


def _as_config(host: Host) -> str:
    """Return the host's own values as ssh config, so that they stand in a ProxyCommand's %p and %r too."""
    lines = [f"Host {host.address}"]
    lines += [f"Port {host.port}"] if host.port is not None else []
    lines += [f"User {host.user}"] if host.user is not None else []
    return "\n".join(lines)
