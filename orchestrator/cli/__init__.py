"""The command line: verbs over the record and the containers. Exit codes are those of `errors.Exit`."""

from __future__ import annotations

__all__ = ["main"]

ASKED = "_DFLASHCTL_COMPLETE"  # set where a shell asks what a Tab may become


def main() -> None:
    """Run the command line; never returns. A Tab and --version load none of what the verbs need."""
    import os
    import sys

    if sys.argv[1:] == ["--version"] and ASKED not in os.environ:
        from orchestrator import __version__

        sys.stdout.write(f"dflashctl {__version__}\n")
        sys.exit(0)
    if ASKED in os.environ:
        from orchestrator.cli.tabbing import answer

        if (code := answer(os.environ[ASKED], os.environ)) is not None:
            sys.exit(code)
    from orchestrator.cli.app import main as run

    run()
