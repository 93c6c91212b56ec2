"""A run's whole story as one page to be forwarded: what happened, in order, with its proof and its curves."""

from orchestrator.report.collect import collect
from orchestrator.report.page import page
from orchestrator.report.parts import Report

__all__ = ["Report", "collect", "page"]
