"""doctor: the whole chain to a place where runs live, read once and judged, one finding a link."""

from orchestrator.doctor.chain import examine, exit_code
from orchestrator.doctor.collecting import collect
from orchestrator.doctor.findings import Finding, Status
from orchestrator.doctor.readings import Readings

__all__ = ["Finding", "Readings", "Status", "collect", "examine", "exit_code"]
