"""The long run: the properties over and over with new seeds, until the time is up or one of them fails.

    python -m tests.fuzz --minutes 60
    python -m tests.fuzz --minutes 5 --seed 1234      the same examples again

It prints a line a round, and at its end how many examples it ran and which took the most CPU time.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.properties import check_attempt, check_bare_log, check_messages

if TYPE_CHECKING:
    from collections.abc import Callable

ROUND = 1000
MAX_SECONDS = 5.0  # of CPU time for one example; they are of some 10 KB

CHECKS: tuple[Callable[[st.DataObject], None], ...] = (check_attempt, check_bare_log, check_messages)


@dataclass
class Tally:
    """What was run. Times are seconds of CPU time."""

    examples: dict[str, int] = field(default_factory=dict)
    slowest_s: float = 0.0

    def add(self, name: str, spent_s: float) -> None:
        """Count one example."""
        self.examples[name] = self.examples.get(name, 0) + 1
        self.slowest_s = max(self.slowest_s, spent_s)


def run_round(check: Callable[[st.DataObject], None], number: int, tally: Tally, max_examples: int) -> None:
    """Run one property on examples of one seed.

    Raises:
        Exception: whatever the property raised, on the smallest example that hypothesis found.
    """

    @seed(number)
    @settings(
        max_examples=max_examples,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.target, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(st.data())
    def rounds(data: st.DataObject) -> None:
        began = time.process_time()
        check(data)
        spent_s = time.process_time() - began
        tally.add(check.__name__, spent_s)
        assert spent_s < MAX_SECONDS, f"one example took {spent_s:.1f} s of CPU time"

    rounds()


def main(argv: list[str] | None = None) -> int:
    """Run rounds until the time is up; whatever a property raised ends it, with exit code 1."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (default 60)")
    parser.add_argument("--seed", type=int, help="the first round's seed (default a random one, printed)")
    parser.add_argument("--examples", type=int, default=ROUND, help=f"a round (default {ROUND})")
    args = parser.parse_args(argv)
    first = args.seed if args.seed is not None else random.SystemRandom().randrange(2**31)
    tally, began = Tally(), time.monotonic()
    number = first
    while (elapsed_s := time.monotonic() - began) < args.minutes * 60:
        check = CHECKS[number % len(CHECKS)]  # by the seed, so that it comes again
        is_held = False
        try:
            run_round(check, number, tally, args.examples)
            is_held = True
        finally:
            word = "ok" if is_held else f"FAILED, again with --seed {number} (first {first})"
            print(f"seed {number} {check.__name__}: {word}, {elapsed_s:.0f} s, {tally}", flush=True)
        number += 1
    print(f"{sum(tally.examples.values())} examples in {args.minutes:g} minutes from seed {first}: {tally}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
