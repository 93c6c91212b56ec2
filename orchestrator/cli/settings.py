"""Every setting in force and where it comes from: option, environment, a line of a file, or the default."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.context import SETTINGS
from orchestrator.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from orchestrator.yamlfile import Document

# What is read, beside every DFLASHCTL_*: here, by ssh's agent, by tmux and by the terminal's own habits.
VARIABLES = (
    "DFLASHCTL_INVENTORY", "DFLASHCTL_RECORD", "DFLASHCTL_NOTIFY_URLS", "DFLASHCTL_DEADMAN_URL",
    "DFLASHCTL_TORCH_INDEX", "DFLASHCTL_INDEX",
    "DFLASHCTL_MIRROR_QUOTA", "DFLASHCTL_MIRROR_RUN_QUOTA",
    "XDG_CONFIG_HOME", "XDG_STATE_HOME", "NO_COLOR", "FORCE_COLOR",
    "TERM", "COLUMNS", "TZ", "SSH_AUTH_SOCK", "TMUX_TMPDIR",
)  # fmt: skip
_HIDDEN = ("_URL", "_URLS")  # of a message's receiver: the whole address is a secret
PROVISIONED = "provisioned, else python3"  # of a container for which nobody names the trainer's Python
NOT_SHOWN = "(set, not shown)"


@dataclass(frozen=True)
class Origin:
    """Where a setting's value comes from; `kind` is option, environment, file or default."""

    kind: str
    name: str | None = None  # of the option, the variable or the file
    line: int | None = None

    @property
    def text(self) -> str:
        """For people: `environment NAME`, `file:line`, `default`."""
        if self.kind == "file":
            return f"{self.name}:{self.line}" if self.line is not None else str(self.name)
        return f"{self.kind} {self.name}" if self.name else self.kind


@dataclass(frozen=True)
class Setting:
    """One setting; `value` None: not set, and nothing stands for it."""

    name: str
    value: str | None
    origin: Origin


@dataclass
class Found:
    """All settings, and what could not be read."""

    settings: list[Setting] = field(default_factory=list)
    problems: list[ConfigError] = field(default_factory=list)

    def add(self, part: Callable[[], Iterator[Setting]]) -> None:
        """Take a part; what is wrong with a file of it is kept as a problem."""
        try:
            self.settings += part()
        except ConfigError as error:
            self.problems.append(error)


DEFAULT = Origin("default")


def gather(context: Any, playbook: Path | None) -> Found:  # noqa: ANN401  # a context of click, or of typer's copy
    """Return every setting in force, by the options before the verb, the environment and the files."""
    found = Found()
    root = context.find_root()
    found.add(lambda: _before_the_verb(root))
    found.add(_mirror)
    found.add(_inventory)
    found.add(lambda: _playbook(playbook))
    found.add(lambda: _variables(os.environ))
    return found


def _before_the_verb(root: Any) -> Iterator[Setting]:  # noqa: ANN401
    from orchestrator import inventory
    from orchestrator.notify.settings import default_path as notify_path
    from orchestrator.places import mirror_path, record_path

    record = SETTINGS.record or record_path()
    state_home = Origin("environment", "XDG_STATE_HOME") if os.environ.get("XDG_STATE_HOME") else DEFAULT
    of_record = _given(root, "record", "DFLASHCTL_RECORD") or state_home
    yield Setting("record", str(record), of_record)
    yield Setting("mirror", str(mirror_path(record)), of_record)
    for path in inventory.find(SETTINGS.inventory):
        origin = _given(root, "inventory_dir", "DFLASHCTL_INVENTORY", option="--inventory")
        yield Setting("inventory", str(path), origin or DEFAULT)
    told = notify_path()
    config_home = Origin("environment", "XDG_CONFIG_HOME") if os.environ.get("XDG_CONFIG_HOME") else DEFAULT
    yield Setting("notify", str(told) if told.is_file() else None, config_home)
    yield Setting("colour", "on" if SETTINGS.has_colour else "off", _colour_origin())
    yield Setting("verbose", str(SETTINGS.verbose), _given(root, "verbose", "") or DEFAULT)


def _mirror() -> Iterator[Setting]:
    from orchestrator.mirror.settings import load
    from orchestrator.sizes import size_text

    found = load()
    values = {
        "enabled": _text(found.enabled).lower(),
        "quota": size_text(found.limits.total),
        "run_quota": size_text(found.limits.run),
    }
    for key, value in values.items():
        told = found.origins[key]
        origin = Origin("environment", told.variable) if told.variable else DEFAULT
        yield Setting(f"mirror.{key}", value, Origin("file", told.path, told.line) if told.path else origin)


def _given(root: Any, parameter: str, variable: str, option: str | None = None) -> Origin | None:  # noqa: ANN401
    source = root.get_parameter_source(parameter)
    if source is not None and source.name == "COMMANDLINE":
        return Origin("option", option or f"--{parameter}")
    return Origin("environment", variable) if variable and os.environ.get(variable) else None


def _colour_origin() -> Origin:
    """Return who says so; by default it is the terminal that standard output is, or is not."""
    if SETTINGS.no_color:
        return Origin("option", "--no-color")
    said = next((name for name in ("NO_COLOR", "FORCE_COLOR") if os.environ.get(name)), None)
    if said is None and os.environ.get("TERM") in ("dumb", "unknown"):
        said = "TERM"
    return Origin("environment", said) if said else DEFAULT


def _inventory() -> Iterator[Setting]:
    from orchestrator.cli.context import load_inventory
    from orchestrator.errors import InventoryError
    from orchestrator.inventory.models import CONTAINER_STATE_DIR, LOCAL_STATE_DIR
    from orchestrator.yamlfile import read

    found = load_inventory()
    documents = [read(Path(source), InventoryError) for source in found.sources]
    for section, entries in (("hosts", found.hosts), ("containers", found.containers)):
        for name, entry in sorted(entries.items()):
            mine = next(each for each in documents if (section, name) in each.lines)
            says = entry.model_dump(exclude={"name"})
            if section == "containers" and says["state_dir"] is None:
                is_here = says["host"] == "local" and says["ct"] is None
                says["state_dir"] = LOCAL_STATE_DIR if is_here else CONTAINER_STATE_DIR
            if section == "containers":
                says["python"] = says["python"] or PROVISIONED
            for key, value in says.items():
                if value is not None and value != ():
                    place = (section, name, key)
                    yield Setting(".".join(place), _text(value), _at(mine, place))


def _playbook(path: Path | None) -> Iterator[Setting]:
    from orchestrator.errors import PlaybookError
    from orchestrator.playbook import load, shipped
    from orchestrator.yamlfile import read

    source = Path(load(path).source)
    origin = Origin("option", "--playbook") if path else DEFAULT
    yield Setting("playbook", str(source), origin)
    mine, base = read(source, PlaybookError), read(shipped(), PlaybookError)
    is_shipped = source.resolve() == shipped().resolve()
    values = dict(_flat(mine.data)) if not is_shipped else {}
    under = dict(_flat(base.data)) if is_shipped or "extends" in mine.data else {}
    for place in dict.fromkeys((*under, *values)):
        value = values.get(place, under.get(place))
        yield Setting(
            ".".join(("playbook", *place)),
            _text(value),
            _at(mine, place) if place in values else DEFAULT,
        )


def _flat(data: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Give what a playbook says, by its place; of a rule only its act, as `playbook show` tells the rest."""
    for key, value in data.items():
        if key == "custom":
            for place, rule in enumerate(value):
                yield (key, str(place)), f"{rule['name']}: {rule['act']}"
        elif isinstance(value, dict):
            for name, inner in value.items():
                is_rule = key == "rules" and isinstance(inner, dict)
                yield (key, str(name)), inner.get("act") if is_rule else inner
        else:
            yield (key,), value


def _variables(env: Mapping[str, str]) -> Iterator[Setting]:
    others = sorted(name for name in env if name.startswith("DFLASHCTL_") and name not in VARIABLES)
    for name in (*VARIABLES, *others):
        value = env.get(name)
        if value and name.endswith(_HIDDEN):
            value = NOT_SHOWN
        yield Setting(f"environment.{name}", value, Origin("environment", name) if value else DEFAULT)


def _at(document: Document, place: tuple[str, ...]) -> Origin:
    if place not in document.lines:
        return DEFAULT
    return Origin("file", document.path, document.lines[place])


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_text(inner)}" for key, inner in value.items()) or "{}"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
