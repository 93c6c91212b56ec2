"""One place where runs live, reached: the connection, the guest pushed and greeted, the host beside it.

Shared by every thread of a watch: the connection is made once, and again after it was dropped.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from orchestrator.connection import GuestClient, GuestStream, Shell, ShellOptions, host_shell, open_shell
from orchestrator.errors import BlindError, CommandTimeout, HostUnreachable
from orchestrator.observe import Holder, container_state, gpu_holders

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.connection.shell import Result, Stream
    from orchestrator.inventory import Target
    from orchestrator.wire import Message

HELLO_TIMEOUT_S = 30.0
SILENT_S = 3.0  # pct and a Python take a second


class Site:
    """A target with its connection. Dropping it never waits for whoever is connecting."""

    def __init__(self, target: Target, options: ShellOptions | None = None) -> None:
        self.target = target
        self._options = options or ShellOptions()
        self._lock = threading.Lock()  # of the fields below; held for an instant only
        self._connecting = threading.RLock()  # one greets the guest, the others wait for it
        self._shell: Shell | None = None
        self._host: Shell | None = None
        self._client: GuestClient | None = None
        self._hello: Message | None = None
        self._is_closed = False

    @property
    def target_key(self) -> str:
        """The target's name in the record."""
        return self.target.key

    @property
    def ct(self) -> int | None:
        """The container's number; None without one."""
        return self.target.ct

    def shell(self) -> Shell:
        """Return the shell inside the container; it connects at its first command.

        Raises:
            BlindError: This site was closed.
        """
        with self._lock:
            self._check_open()
            if self._shell is None:
                self._shell = open_shell(self.target, options=self._options)
            return self._shell

    def client(self) -> GuestClient:
        """Return the guest, pushed if it was not there, and greeted.

        Raises:
            BlindError: It cannot be reached.
            GuestRefused: The container is not ready for it.
        """
        return self._greeted()[0]

    @property
    def hello(self) -> Message:
        """What the guest said of the container: versions, clock, free space.

        Raises:
            BlindError: It cannot be reached.
        """
        return self._greeted()[1]

    def _greeted(self) -> tuple[GuestClient, Message]:
        with self._connecting:
            with self._lock:
                if self._client is not None and self._hello is not None:
                    return self._client, self._hello
            shell = self.shell()
            client = GuestClient(shell, self.target)
            hello = self._hello_of(client)
            with self._lock:
                if self._shell is not shell:
                    raise HostUnreachable(f"{self.target_key}: the connection was dropped while it was made")
                self._client, self._hello = client, hello
            return client, hello

    def _hello_of(self, client: GuestClient) -> Message:
        """Greet the guest. The host is asked of a container that is silent: a frozen one never answers."""
        still: list[str] = []

        def ask() -> None:
            state = self.container_state()
            if state is not None and state.startswith("frozen"):
                still.append(state)
                self.drop()

        silence = threading.Timer(SILENT_S, ask)
        silence.daemon = True
        silence.start()
        try:
            (hello,) = client.call("hello", {}, timeout_s=HELLO_TIMEOUT_S)
        except BlindError as error:
            if not still:
                raise
            lock = still[0].partition(":")[2]
            frozen = f"frozen by a {lock}" if lock else "frozen"
            raise CommandTimeout(
                f"{self.target_key}: the container is {frozen}, and nothing in it answers",
                hint=f"it goes on where it was when it is thawed: `lxc-unfreeze -n {self.ct}` on the host",
            ) from error
        finally:
            silence.cancel()
        return hello

    @property
    def state_dir(self) -> str:
        """The state folder in the container, absolute.

        Raises:
            BlindError: It cannot be reached.
        """
        return str(self.hello["state_dir"])

    def open_watch(self, request: Mapping[str, object]) -> GuestStream:
        """Open the long-lived stream.

        Raises:
            BlindError: It cannot be reached.
        """
        return self.client().watch(request)

    def container_state(self) -> str | None:
        """Return what the host says of the container (None: it cannot be asked), or `running`."""
        if self.target.ct is None:
            return "running"
        with self._lock:
            if self._is_closed:
                return None
            shell = self._host_shell()
        return container_state(shell, self.target.ct, self.target.become or ())

    def gpu_holders(self, pids: Sequence[int]) -> tuple[Holder, ...]:
        """Return who the host's processes `pids` are; without ids, who has a GPU's device open.

        Raises:
            BlindError: The host cannot be asked, or this site was closed.
        """
        return gpu_holders(self._opened_host(), pids, self.target.become or ())

    @property
    def host_key(self) -> str:
        """The host's name; the containers of one host share it."""
        return self.target.host_key

    @property
    def becomes(self) -> bool:
        """Whether commands that need root there are run by `sudo` or its like."""
        return bool(self.target.become)

    def open_host(self, argv: Sequence[str], *, is_root: bool) -> Stream:
        """Start a command on the host, over the connection that the container's stream uses.

        Raises:
            BlindError: The host cannot be reached, or this site was closed.
        """
        shell, command = self._host_command(argv, is_root=is_root)
        return shell.stream(command)

    def ask_host(self, argv: Sequence[str], *, is_root: bool, timeout_s: float) -> Result:
        """Run a command on the host to its end.

        Raises:
            BlindError: The host cannot be reached, or this site was closed.
        """
        shell, command = self._host_command(argv, is_root=is_root)
        return shell.run(command, timeout_s=timeout_s)

    def _host_command(self, argv: Sequence[str], *, is_root: bool) -> tuple[Shell, tuple[str, ...]]:
        become = self.target.become or () if is_root else ()
        return self._opened_host(), ("env", "LC_ALL=C", *become, *argv)

    def _opened_host(self) -> Shell:
        with self._lock:
            self._check_open()
            return self._host_shell()

    def _host_shell(self) -> Shell:
        if self._host is None:
            self._host = host_shell(self.target, options=self._options)
        return self._host

    def drop(self) -> None:
        """Forget the connection; the next use makes a new one. Whoever is blocked in it gets a BlindError."""
        with self._lock:
            shells = (self._shell, self._host)
            self._shell, self._host, self._client, self._hello = None, None, None, None
        for shell in shells:
            if shell is not None:
                shell.close()

    def close(self) -> None:
        """Close the connection for good."""
        with self._lock:
            self._is_closed = True
        self.drop()

    def _check_open(self) -> None:
        if self._is_closed:
            raise HostUnreachable(f"{self.target_key}: the connection was closed")
