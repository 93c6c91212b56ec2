"""The form of a provision file: ordered steps, each with what is checked and what is done. Pure."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from orchestrator.playbookfile import Duration, Sentence, Size  # noqa: TC001  pydantic reads them

_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]*(=[A-Za-z0-9.+:~-]+)?")
_PROGRAM = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_./+-]*")
_VERSION = re.compile(r"\d+(\.\d+)*")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_REQUIREMENT = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._-]+\])?([<>=!~]=?[A-Za-z0-9.*,<>=!~ ]+)?"
)
KINDS = ("apt", "venv", "trainer", "run")

Name = Annotated[
    str,
    Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$", description="a short name of a-z, 0-9, _ and -"),
]
Argv = Annotated[list[str], Field(min_length=1, description="a list of words, the program first")]


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Check(_Form):
    """What must be so; all that is given must hold."""

    program: str | None = Field(default=None, description="a program's name, or a path from /")
    at_least: str | None = Field(default=None, description='its oldest version, in quotes, such as "3.10"')
    module: str | None = Field(default=None, description="a module that the guest's Python can import")
    run: Argv | None = Field(default=None, description="a command that ends with 0 if it is so")

    @model_validator(mode="after")
    def _whole(self) -> Check:
        if self.at_least is not None and self.program is None:
            raise ValueError("at_least is a program's: give `program` too")
        if (self.program, self.module, self.run) == (None, None, None):
            raise ValueError("it checks nothing: give program, module or run")
        for pattern, value in ((_PROGRAM, self.program), (_VERSION, self.at_least), (_MODULE, self.module)):
            if value is not None and not pattern.fullmatch(value):
                raise ValueError(f"{value!r} is no name or version of its kind")
        return self


class Venv(_Form):
    """A virtual environment, named by what is in it."""

    requirements: list[str] = Field(min_length=1, description="a list of packages, as pip takes them")
    lock: str = Field(min_length=1, description="a file of pip's constraints, from this file's folder on")
    imports: list[str] = Field(default=[], description="a list of modules that must import afterwards")
    free: Size = Field(default=0, ge=0, description="bytes that must be free, such as 16 GiB")
    free_cpu: Size | None = Field(default=None, ge=0, description="the same for `--torch-index cpu`")

    @field_validator("requirements")
    @classmethod
    def _check_requirements(cls, words: list[str]) -> list[str]:
        if bad := [word for word in words if not _REQUIREMENT.fullmatch(word)]:
            raise ValueError(f"{bad[0]!r} is no package's name with a version")
        return words

    @field_validator("imports")
    @classmethod
    def _check_imports(cls, words: list[str]) -> list[str]:
        if bad := [word for word in words if not _MODULE.fullmatch(word)]:
            raise ValueError(f"{bad[0]!r} is no module's name")
        return words


class Step(_Form):
    """One step: a name, why, what is checked, and one thing to do."""

    name: Name
    why: Sentence
    check: Check | None = Field(
        default=None, description="of program, at_least, module, run; left out for venv and trainer"
    )
    apt: list[str] | None = Field(
        default=None, min_length=1, description="a list of Debian packages to install"
    )
    venv: Venv | None = Field(default=None, description="requirements, lock, imports, free")
    trainer: Literal["bundled"] | None = Field(default=None, description='"bundled"')
    run: Argv | None = Field(default=None, description="a command as a list of words; it needs a check")

    @property
    def kind(self) -> str:
        """Which of KINDS it is."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @field_validator("apt")
    @classmethod
    def _check_packages(cls, words: list[str] | None) -> list[str] | None:
        if bad := [word for word in words or () if not _PACKAGE.fullmatch(word)]:
            raise ValueError(f"{bad[0]!r} is no Debian package")
        return words

    @model_validator(mode="after")
    def _whole(self) -> Step:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(
                f"a step does exactly one of {', '.join(KINDS)}; it has {', '.join(given) or 'none'}"
            )
        if self.run is not None and self.check is None:
            raise ValueError("run needs a check, or it would be done at every call")
        if self.check is not None and (self.venv is not None or self.trainer is not None):
            raise ValueError("venv and trainer know themselves whether they are there: leave out `check`")
        return self


class Provision(_Form):
    """A whole file."""

    apt_wait: Duration = Field(
        default=120.0, ge=0, description="how long to wait for another apt, such as 2m"
    )
    steps: list[Step] = Field(min_length=1, description="a list of steps")

    @model_validator(mode="after")
    def _names_differ(self) -> Provision:
        names = [step.name for step in self.steps]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two steps are named {twice[0]}")
        if sum(step.venv is not None for step in self.steps) > 1:
            raise ValueError("there is one venv step, for `launch` takes its Python")
        return self
