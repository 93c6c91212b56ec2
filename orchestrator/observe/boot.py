"""Which start of the container, and which boot of its host, an attempt began in. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Boot:
    """What is so now, as the guest greets with it; either may be None or nonsense, which proves no reboot.

    LXC gives each start of a container a boot id of its own. Ticks count from the host's boot.
    """

    boot_id: Any
    pid1_start_ticks: Any

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Boot:
        """Return that of a greeting, or of an attempt's own record."""
        return cls(message.get("boot_id"), message.get("pid1_start_ticks"))

    def is_another(self, info: Mapping[str, Any]) -> bool:
        """Whether pid 1 of the container, or the host's boot, is another one than when the attempt began."""
        return Boot.of(info) != self

    def is_of_another_host_boot(self, info: Mapping[str, Any]) -> bool:
        """Whether the host was booted anew since the attempt began.

        By the ticks a container that was merely restarted is younger than the attempt.
        """
        began, pid1_ticks = info.get("supervisor_start_ticks"), self.pid1_start_ticks
        if self.boot_id is None or info.get("boot_id") in (None, self.boot_id):
            return False
        return isinstance(began, int) and isinstance(pid1_ticks, int) and pid1_ticks < began
