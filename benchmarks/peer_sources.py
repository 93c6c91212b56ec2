"""Where the peers' sources lie in the folder that `--src` names, and how they are imported from there.

Nothing of theirs is copied: a user fetches a repository into a folder of the repository's own name. Packages
whose `__init__` would import a whole trainer, and with it packages that one step does not need, are entered
without running it; what is imported only to be named elsewhere is stood in for.
"""

from __future__ import annotations

import atexit
import logging
import sys
import tempfile
import types
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Source:
    """One peer's repository."""

    repository: str
    package: str
    inside: str = "."
    """The folder of the repository that has the package."""
    packs: bool = False
    """Whether several documents may share a row."""
    bare: tuple[str, ...] = ()
    """Packages that are entered without their `__init__`."""
    stands_in: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Modules that a step only imports names from, and those names."""

    @property
    def name(self) -> str:
        """Of the repository, and of its folder in --src."""
        return self.repository.split("/")[1]

    def missing(self, src: Path | None) -> str | None:
        """What to do if it is not in `src`."""
        if src is None:
            return f"--src is missing: a folder with {self.repository} fetched into its folder {self.name}"
        if (src / self.name / self.inside / self.package).is_dir():
            return None
        wanted = Path(self.name) / self.inside / self.package
        return f"--src {src}: no {wanted} in it; fetch {self.repository} into {src / self.name}"

    def open(self, src: Path) -> None:
        """Make the package importable."""
        root = src / self.name / self.inside
        sys.path.insert(0, str(root))
        for package in self.bare:
            module = types.ModuleType(package)
            module.__path__ = [str(root.joinpath(*package.split(".")))]
            sys.modules[package] = module
        for name, names in self.stands_in:
            stand_in = types.ModuleType(name)
            for each in names:
                setattr(stand_in, each, logging.getLogger(name))
            sys.modules[name] = stand_in
        _name_distribution(self.package)


SOURCES = {
    "specforge": Source("sgl-project/SpecForge", "specforge"),
    "torchspec": Source(
        "lightseekorg/TorchSpec",
        "torchspec",
        bare=(
            "torchspec",
            "torchspec.models",
            "torchspec.models.ops",
            "torchspec.models.draft",
            "torchspec.utils",
        ),
        stands_in=(("torchspec.utils.logging", ("logger",)),),
    ),
    "automodel": Source(
        "NVIDIA-NeMo/Automodel",
        "nemo_automodel",
        packs=True,
        bare=(
            "nemo_automodel",
            "nemo_automodel.components",
            "nemo_automodel.components.attention",
            "nemo_automodel.components.datasets",
            "nemo_automodel.components.datasets.llm",
            "nemo_automodel.components.loss",
            "nemo_automodel.components.speculative",
            "nemo_automodel.components.speculative.dflash",
        ),
        # the target's mask, which has no part in a drafter's step
        stands_in=(
            (
                "nemo_automodel.components.datasets.llm.packed_sequence",
                ("build_block_causal_additive_mask",),
            ),
        ),
    ),
    "speculators": Source(
        "vllm-project/speculators",
        "speculators",
        inside="src",
        packs=True,
        bare=("speculators", "speculators.models"),
    ),
}


def _name_distribution(package: str) -> None:
    """Let a package that asks for its own version find one: sources are not installed."""
    holder = tempfile.TemporaryDirectory(prefix="peer-")
    atexit.register(holder.cleanup)
    folder = Path(holder.name) / f"{package}-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0\n")
    sys.path.append(holder.name)
