"""The classes of the catalogue, one by one: how each is found, what it means, what it does not prove. Pure.

What a class looks like in a log is the catalogue's (`catalog*.py`), what to do about it a playbook's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from orchestrator.classify.catalog import SIGNATURES
from orchestrator.classify.classtexts import TEXTS
from orchestrator.classify.titles import title
from orchestrator.types.failure import FailureClass, Role

_F = FailureClass


class Domain(str, Enum):
    """Whose failure it is, which says who can mend it."""

    WORKLOAD = "workload"  # the program, its data, its configuration
    INFRASTRUCTURE = "infrastructure"  # cards, memory, disks, network, container, host
    OPERATOR = "operator"  # a person did it, or has to
    TRANSPORT = "transport"  # the way to the run: it says nothing about the run
    HISTORY = "history"  # only several steps or attempts show it
    NONE = "none"  # no failure


@dataclass(frozen=True, kw_only=True)
class ClassInfo:
    """One class. `roles`: what its lines can be. `confirming`: readings that make it sure."""

    failure: FailureClass
    title: str
    domain: Domain
    roles: tuple[Role, ...]
    found_by: str
    confirming: tuple[str, ...]
    sentence: str  # for the person whose run it is
    not_proof: str  # what a match does not prove

    @property
    def name(self) -> str:
        """The class as playbooks and records write it."""
        return self.failure.value


_DOMAINS: dict[Domain, tuple[FailureClass, ...]] = {
    Domain.WORKLOAD: (
        *(_F.FX_TRACE_RACE, _F.OOM_DENSE_FALLBACK, _F.OOM_CUDA, _F.OOM_FRAGMENTATION, _F.OOM_HOST),
        *(_F.COMPILE_ERROR, _F.RECOMPILE_LIMIT, _F.PYTHON_EXCEPTION, _F.IMPORT_ERROR, _F.CONFIG_ERROR),
        *(_F.IO_ERROR, _F.NAN_LOSS, _F.CUDA_ILLEGAL_ACCESS, _F.CUDA_DEVICE_ASSERT, _F.SHM_EXHAUSTED),
        *(_F.NCCL_TIMEOUT, _F.HANG, _F.TORCHRUN_WRAPPER, _F.SIGNAL_EXIT, _F.UNKNOWN),
    ),
    Domain.INFRASTRUCTURE: (
        *(_F.NCCL_ERROR, _F.DISK_FULL, _F.CUDA_INIT, _F.GPU_LOST, _F.GPU_ECC, _F.GPU_NVLINK),
        *(_F.NETWORK_ERROR, _F.PORT_IN_USE, _F.CONTAINER_STOPPED, _F.CONTAINER_RESTARTED),
        *(_F.CONTAINER_FROZEN, _F.HOST_REBOOTED, _F.SESSION_LOST),
    ),
    Domain.OPERATOR: (_F.AUTH_ERROR, _F.PERMISSION_DENIED, _F.KILLED_BY_USER, _F.INTERRUPTED),
    Domain.TRANSPORT: (_F.TMUX_ERROR, _F.SSH_ERROR, _F.PCT_ERROR),
    Domain.HISTORY: (
        *(_F.STRAGGLERS, _F.THROUGHPUT_REGRESSION, _F.CRASH_LOOP, _F.NO_PROGRESS, _F.RESUMED_FROM_ZERO),
    ),
    Domain.NONE: (_F.COMPLETED, _F.HEALTHY),
}
_DOMAIN_OF = {failure: domain for domain, failures in _DOMAINS.items() for failure in failures}
_BY_HOST = (_F.OOM_HOST, _F.GPU_LOST, _F.GPU_ECC, _F.GPU_NVLINK)  # which the host's kernel confirms


def domain(failure: FailureClass) -> Domain:
    """Return whose failure a class is."""
    return _DOMAIN_OF[failure]


def describe(failure: FailureClass) -> ClassInfo:
    """Return all that is known of a class beside its signatures."""
    found_by, confirming, sentence, not_proof = TEXTS[failure]
    return ClassInfo(
        failure=failure,
        title=title(failure),
        domain=_DOMAIN_OF[failure],
        roles=_roles(failure),
        found_by=found_by,
        confirming=confirming,
        sentence=sentence,
        not_proof=not_proof,
    )


def _roles(failure: FailureClass) -> tuple[Role, ...]:
    shown = {signature.role for signature in SIGNATURES if signature.failure is failure} or {Role.ROOT}
    known = shown | {Role.CONFIRMATION} if failure in _BY_HOST else shown
    return tuple(role for role in Role if role in known)
