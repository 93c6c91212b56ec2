"""Whether what training needs is installed, told before anything is begun."""

from __future__ import annotations

import sys
from importlib import util
from typing import TYPE_CHECKING

from trainer.errors import ConfigInvalid

if TYPE_CHECKING:
    from trainer.config import Config


def require_packages(config: Config) -> None:
    """Return if this python has the packages.

    Raises:
        ConfigInvalid: one is missing; names it, and how to install it.
    """
    wanted = ["torch", "safetensors", "numpy"]
    if config.target.path != "embedded":
        wanted.append("transformers")
    missing = [name for name in wanted if util.find_spec(name) is None]
    if missing:
        extra = " 'transformers>=4.56,<6'" if "transformers" in missing else ""
        raise ConfigInvalid(
            f"{sys.executable}: {' and '.join(missing)} not installed; run {sys.executable} -m pip install "
            f"'torch>=2.9,<2.15' 'safetensors>=0.4.5' 'numpy>=1.26'{extra}, or name another python"
        )
