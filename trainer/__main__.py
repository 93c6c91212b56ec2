"""python -m trainer --config tiny.toml."""

import sys

from trainer.cli import main

sys.exit(main())
