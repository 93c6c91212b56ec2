"""One place where runs live, reached: the connection, the guest pushed and greeted, the host beside it.

Shared by every thread of a watch: the connection is made once, and again after it was dropped.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from orchestrator.connection import GuestClient, GuestStream, Shell, ShellOptions, host_shell, open_shell
from orchestrator.observe import container_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.inventory import Target
    from orchestrator.wire import Message

HELLO_TIMEOUT_S = 30.0


class Site:
    """A target with its connection."""

    def __init__(self, target: Target, options: ShellOptions | None = None) -> None:
        self.target = target
        self._options = options or ShellOptions()
        self._lock = threading.RLock()
        self._shell: Shell | None = None
        self._client: GuestClient | None = None
        self._hello: Message | None = None

    @property
    def target_key(self) -> str:
        """The target's name in the record."""
        return self.target.key

    def shell(self) -> Shell:
        """Return the shell inside the container.

        Raises:
            BlindError: It cannot be reached.
        """
        with self._lock:
            if self._shell is None:
                self._shell = open_shell(self.target, options=self._options)
            return self._shell

    def client(self) -> GuestClient:
        """Return the guest, pushed if it was not there, and greeted.

        Raises:
            BlindError: It cannot be reached.
            GuestRefused: The container is not ready for it.
        """
        with self._lock:
            if self._client is None:
                client = GuestClient(self.shell(), self.target)
                (self._hello,) = client.call("hello", {}, timeout_s=HELLO_TIMEOUT_S)
                self._client = client
            return self._client

    @property
    def hello(self) -> Message:
        """What the guest said of the container: versions, clock, free space.

        Raises:
            BlindError: It cannot be reached.
        """
        self.client()
        assert self._hello is not None
        return self._hello

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
        return container_state(
            host_shell(self.target, options=self._options), self.target.ct, self.target.become or ()
        )

    def drop(self) -> None:
        """Forget the connection; the next use makes a new one."""
        with self._lock:
            shell, self._shell, self._client, self._hello = self._shell, None, None, None
        if shell is not None:
            shell.close()

    def close(self) -> None:
        """Close the connection."""
        self.drop()
