"""The command line: verbs over the record and the containers. Exit codes are those of `errors.Exit`."""

from orchestrator.cli.app import main

__all__ = ["main"]
