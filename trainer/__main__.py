"""python -m trainer --config tiny.toml."""

import os
import sys

from trainer.cli import main
from trainer.parallel.topology import is_rank

code = main()
if is_rank(os.environ):
    # All is written and the groups are closed. The interpreter's own end may still abort in a thread of a
    # backend ("terminate called without an active exception"), which would make a crash of a finished run.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
sys.exit(code)
