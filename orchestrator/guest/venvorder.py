"""What a `venv` request asks for, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.guest import asked, paths, venvs
from orchestrator.guest.refusal import Refusal

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator import wire


@dataclass(frozen=True)
class Install:
    """One call of pip."""

    requirements: tuple[str, ...]
    index: str | None
    no_deps: bool


@dataclass(frozen=True)
class Order:
    """What a request asks for."""

    state: Path
    key: str
    installs: tuple[Install, ...]
    constraints: str
    imports: tuple[str, ...]
    from_wheelhouse: bool
    rebuild: bool
    min_free_bytes: int
    facts: dict[str, Any]

    @property
    def final(self) -> Path:
        """Where it lies, from the first file on."""
        return venvs.folder(self.state) / self.key

    @property
    def house(self) -> Path:
        """Where its wheels lie."""
        return venvs.wheelhouse(self.state, self.key)


def read(request: wire.Message) -> Order:
    """Return the order of a request.

    Raises:
        Refusal: It is not one.
    """
    key, constraints, facts = request.get("key"), request.get("constraints"), request.get("facts")
    if not isinstance(key, str) or not venvs.KEY.fullmatch(key):
        raise Refusal("bad_request", f"key: {key!r} must be 16 hexadecimal digits")
    installs = request.get("installs")
    if not isinstance(installs, list) or not installs or not isinstance(constraints, str):
        raise Refusal("bad_request", "installs: must be a list, with a text of constraints")
    return Order(
        state=paths.resolve_state(request.get("state_dir")),
        key=key,
        installs=tuple(_install(each) for each in installs),
        constraints=constraints,
        imports=_words(request.get("imports"), "imports"),
        from_wheelhouse=bool(request.get("wheelhouse")),
        rebuild=bool(request.get("rebuild")),
        min_free_bytes=asked.integer(request, "min_free_bytes", 0),
        facts=facts if isinstance(facts, dict) else {},
    )


def _install(told: Any) -> Install:  # noqa: ANN401
    if not isinstance(told, dict) or not isinstance(told.get("index"), (str, type(None))):
        raise Refusal("bad_request", "installs: each has `requirements`, `index` and `no_deps`")
    words = _words(told.get("requirements"), "requirements")
    if any(word.startswith("-") for word in words):
        raise Refusal("bad_request", f"requirements: {words!r}: an option is none")
    return Install(words, told.get("index"), bool(told.get("no_deps")))


def _words(told: object, key: str) -> tuple[str, ...]:
    if not isinstance(told, list) or not all(asked.is_text(word) for word in told):
        raise Refusal("bad_request", f"{key}: must be a list of texts")
    return tuple(told)
