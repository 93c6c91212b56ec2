"""The way to where the runs live: shells over ssh and pct, and the guest at their end."""

from orchestrator.connection.byhand import checked_config
from orchestrator.connection.commands import TMUX_SOCKET, attach_argv, dry_run_lines
from orchestrator.connection.container import ContainerShell
from orchestrator.connection.guest import GuestClient
from orchestrator.connection.guestfile import Archive, GuestFile, build_guest, trainer_archive, trainer_folder
from orchestrator.connection.gueststream import GuestStream
from orchestrator.connection.host import HostShell
from orchestrator.connection.incoming import FarFile
from orchestrator.connection.local import LocalShell
from orchestrator.connection.opening import host_shell, open_shell
from orchestrator.connection.pool import Connections, backoff
from orchestrator.connection.route import Login, ShellOptions
from orchestrator.connection.shell import Result, Shell, Stream
from orchestrator.connection.transfer import list_files, pull_files, push_file, read_files, sha256_of

__all__ = [
    "TMUX_SOCKET",
    "Archive",
    "Connections",
    "ContainerShell",
    "FarFile",
    "GuestClient",
    "GuestFile",
    "GuestStream",
    "HostShell",
    "LocalShell",
    "Login",
    "Result",
    "Shell",
    "ShellOptions",
    "Stream",
    "attach_argv",
    "backoff",
    "build_guest",
    "checked_config",
    "dry_run_lines",
    "host_shell",
    "list_files",
    "open_shell",
    "pull_files",
    "push_file",
    "read_files",
    "sha256_of",
    "trainer_archive",
    "trainer_folder",
]
