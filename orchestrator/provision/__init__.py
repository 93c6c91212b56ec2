"""From a bare container to one where a run can be launched: looked at, done, looked at again."""

from orchestrator.provision.applying import Job, Outcome, Status, apply, check
from orchestrator.provision.files import load
from orchestrator.provision.form import Provision, Step, Venv
from orchestrator.provision.looking import look, state_dir
from orchestrator.provision.making import Goal, make_wheelhouse
from orchestrator.provision.plan import Source, Wishes, torch_index
from orchestrator.provision.saying import Moment
from orchestrator.provision.wheelhouse import Wheelhouse, read_wheelhouse

__all__ = [
    "Goal",
    "Job",
    "Moment",
    "Outcome",
    "Provision",
    "Source",
    "Status",
    "Step",
    "Venv",
    "Wheelhouse",
    "Wishes",
    "apply",
    "check",
    "load",
    "look",
    "make_wheelhouse",
    "read_wheelhouse",
    "state_dir",
    "torch_index",
]
