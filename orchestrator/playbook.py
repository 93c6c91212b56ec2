"""The playbook: an operator's rules, one a failure class, read from YAML and checked. Wishes, not facts."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import userrules, yamlfile
from orchestrator.errors import PlaybookError
from orchestrator.limits import Limits
from orchestrator.playbookfile import LimitsModel, PlaybookModel, RuleModel
from orchestrator.types.decision import ActKind, RemedyKind
from orchestrator.types.failure import FailureClass
from orchestrator.types.snapshot import CUSTOM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.types.failure import Diagnosis
    from orchestrator.types.seen import Phase
    from orchestrator.userrules import CustomRule

_HERE = Path(__file__).parent
_LOCAL = Path("playbooks") / "default.yaml"


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One step of a ladder: what is changed on top of the rungs before it; nothing is a relaunch as is."""

    why: str
    changes: tuple[tuple[str, str], ...] = ()
    scales: tuple[tuple[str, float], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    remedies: tuple[RemedyKind, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The configuration's keys that it changes."""
        return tuple(key for key, _ in (*self.changes, *self.scales))


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How far a key may be changed; None is no bound."""

    minimum: float | None = None
    maximum: float | None = None

    @property
    def text(self) -> str:
        """The bounds for people."""
        least = f"at least {self.minimum:g}" if self.minimum is not None else ""
        most = f"at most {self.maximum:g}" if self.maximum is not None else ""
        return " and ".join(part for part in (least, most) if part) or "any value"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What to do about one failure class.

    `attempts` is the number of relaunches for one fingerprint without an advancing checkpoint, and `then`
    what follows them.
    """

    failure: FailureClass
    act: ActKind
    why: str
    attempts: int = 0
    ladder: tuple[Rung, ...] = ()
    backoff_s: tuple[float, ...] | None = None
    needs_progress: bool = False
    remedies: tuple[RemedyKind, ...] = ()
    then: ActKind = ActKind.GIVE_UP
    name: str | None = None  # of a rule of the user's own

    @property
    def key(self) -> str:
        """What decisions call it: the class, or the user's own name."""
        return self.failure.value if self.name is None else f"{CUSTOM}{self.name}"


@dataclass(frozen=True, kw_only=True)
class Playbook:
    """All rules and the limits that hold for every run. Durations in seconds, sizes in bytes."""

    source: str
    rules: Mapping[FailureClass, Rule]
    backoff_s: tuple[float, ...]
    jitter: float
    max_attempts_per_day: int
    loop_deaths: int
    loop_window_s: float
    limits: Limits
    gpu_floor_bytes: int
    min_free_bytes: int
    grace_s: float
    allow: Mapping[str, Bounds]
    custom: tuple[CustomRule, ...] = ()

    def rule_of(self, diagnosis: Diagnosis) -> Rule:
        """Return the rule for what was found: the user's own, if the line that decides is one of theirs."""
        signature = diagnosis.evidence[0].signature if diagnosis.evidence else None
        for each in self.custom:
            if signature == each.rule.key:
                return each.rule
        return self.rule(diagnosis.failure or FailureClass.UNKNOWN)

    def rule(self, failure: FailureClass) -> Rule:
        """Return the rule for `failure`."""
        return self.rules[failure]

    def limits_for(
        self, median_step_s: float | None, median_phase_s: Mapping[Phase, float] | None = None
    ) -> Limits:
        """Return the stall limits of a run whose steps, and phases, were measured (None: unknown)."""
        return replace(self.limits, median_step_s=median_step_s, median_phase_s=median_phase_s or {})


_BUILT_IN = Playbook(
    source="built in",
    rules={},
    backoff_s=(15.0, 30.0, 60.0, 120.0, 300.0, 600.0),
    jitter=0.1,
    max_attempts_per_day=12,
    loop_deaths=5,
    loop_window_s=1800.0,
    limits=Limits(),
    gpu_floor_bytes=1 << 30,
    min_free_bytes=1 << 30,
    grace_s=60.0,
    allow={},
)


def shipped(name: str = "default") -> Path:
    """Return a playbook that comes with the program: in the wheel, or beside the package in a checkout."""
    packed = _HERE / "data" / "playbooks" / f"{name}.yaml"
    return packed if packed.is_file() else _HERE.parent / "playbooks" / f"{name}.yaml"


def load(path: Path | None = None) -> Playbook:
    """Return the playbook of `path`; without one that of `./playbooks/default.yaml`, else the shipped one.

    Raises:
        PlaybookError: The file cannot be read or is wrong; names file, line, key, value and what is allowed.
    """
    if path is None:
        path = _LOCAL if _LOCAL.is_file() else shipped()
    return _resolve(yamlfile.read(path, PlaybookError))


def parse(text: str, name: str) -> Playbook:
    """Return the playbook written in `text`; `name` stands for the file in messages.

    Raises:
        PlaybookError: As `load`.
    """
    return _resolve(yamlfile.parse(text, name, PlaybookError))


def _resolve(document: yamlfile.Document) -> Playbook:
    _check_classes(document)
    model = yamlfile.validate(PlaybookModel, document.data, document, error=PlaybookError)
    if model.extends is not None and Path(document.path).resolve() == shipped().resolve():
        raise PlaybookError(f"{document.where(('extends',))}: the shipped playbook cannot extend itself")
    base = load(shipped()) if model.extends is not None else _BUILT_IN
    custom = (*userrules.build(model.custom, document, _rule), *base.custom)
    playbook = replace(
        _with_globals(base, model), source=document.path, rules=_rules(base, model), custom=custom
    )
    missing = [failure.value for failure in FailureClass if failure not in playbook.rules]
    if missing:
        raise PlaybookError(
            f"{document.where(('rules',))}: no rule for {', '.join(missing)}",
            hint='add them, or begin the file with "extends: default"',
        )
    return playbook


def _check_classes(document: yamlfile.Document) -> None:
    """A slip in a class is told before anything that the rule under it lacks."""
    rules = document.data.get("rules") if isinstance(document.data, dict) else None
    known = sorted(failure.value for failure in FailureClass)
    problems = []
    for name in rules if isinstance(rules, dict) else ():
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            guess = f'; did you mean "{near[0]}"?' if near else ""
            where = document.where(("rules", str(name)))
            problems.append(f"{where}: no such failure class{guess}; allowed: {', '.join(known)}")
    if problems:
        raise PlaybookError("\n".join(problems))


def _rules(base: Playbook, model: PlaybookModel) -> dict[FailureClass, Rule]:
    rules = dict(base.rules)
    for name, rule in model.rules.items():
        failure = FailureClass(name)
        rules[failure] = _rule(failure, rule)
    return rules


def _rule(failure: FailureClass, model: RuleModel) -> Rule:
    ladder = tuple(
        Rung(
            why=rung.why,
            changes=tuple(rung.set.items()),
            scales=tuple(rung.scale.items()),
            env=tuple(rung.env.items()),
            remedies=tuple(RemedyKind(word) for word in rung.do),
        )
        for rung in model.ladder
    )
    return Rule(
        failure=failure,
        act=ActKind(model.act),
        why=model.why,
        attempts=model.attempts if model.attempts is not None else len(ladder),
        ladder=ladder,
        backoff_s=tuple(model.backoff) if model.backoff is not None else None,
        needs_progress=model.needs_progress,
        remedies=tuple(RemedyKind(word) for word in model.do),
        then=ActKind(model.then or ActKind.GIVE_UP),
    )


def _with_globals(base: Playbook, model: PlaybookModel) -> Playbook:
    given: dict[str, Any] = {
        "backoff_s": tuple(model.backoff) if model.backoff is not None else None,
        "jitter": model.jitter,
        "max_attempts_per_day": model.max_attempts_per_day,
        "loop_deaths": model.crash_loop.deaths if model.crash_loop is not None else None,
        "loop_window_s": model.crash_loop.within if model.crash_loop is not None else None,
        "gpu_floor_bytes": model.gpu_floor_bytes,
        "min_free_bytes": model.min_free_bytes,
        "grace_s": model.grace,
        "limits": _limits(base.limits, model.limits),
        "allow": {**base.allow, **_allowed(model)},
    }
    return replace(base, **{key: value for key, value in given.items() if value is not None})


def _allowed(model: PlaybookModel) -> dict[str, Bounds]:
    return {key: Bounds(minimum=b.minimum, maximum=b.maximum) for key, b in model.allow.items()}


def _limits(base: Limits, model: LimitsModel) -> Limits:
    names = {field.name for field in fields(Limits)}
    given = {key if key in names else f"{key}_s": value for key, value in model.model_dump().items()}
    return replace(base, **{key: value for key, value in given.items() if value is not None})
