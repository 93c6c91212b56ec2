"""Classify: what state an attempt is in, and if it died, of what. Pure; no clock, no files, no network."""

from orchestrator.classify.custom import CustomReader
from orchestrator.classify.diagnose import diagnose
from orchestrator.classify.logscan import LogScanner
from orchestrator.classify.pane import diagnose_pane
from orchestrator.classify.titles import title
from orchestrator.limits import Limits

__all__ = ["CustomReader", "Limits", "LogScanner", "diagnose", "diagnose_pane", "title"]
