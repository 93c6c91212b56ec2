"""The chaos suite at length: `python -m tests.integration.chaos --seeds 0-299 [--lanes 8] [--json FILE]`.

A seed draws a schedule, so `--seeds 17` plays that very schedule again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.integration.chaos.play import Result, play_all
from tests.integration.chaos.schedule import draw


def seeds_of(text: str) -> list[int]:
    """Return the seeds of `3,7,20-29`."""
    seeds: list[int] = []
    for word in text.split(","):
        first, _, last = word.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def summary(results: list[Result]) -> dict[str, Any]:
    """Return the figures of many schedules."""
    bad = [result for result in results if result.problems]
    return {
        "schedules": len(results),
        "failed": [result.seed for result in bad],
        "attempts": sum(result.attempts for result in results),
        "deaths_diagnosed": sum(result.deaths for result in results),
        "watches": sum(result.watches for result in results),
        "watches_killed": sum(result.killed for result in results),
        "faults": dict(Counter(kind for result in results for kind in result.faults).most_common()),
        "deaths": dict(Counter(how for result in results for how in result.hows).most_common()),
        "lines_told_again": sum(result.again for result in results),
        "median_s": sorted(result.took_s for result in results)[len(results) // 2] if results else 0.0,
    }


def main() -> int:
    """Play, tell each failure as it comes, and end with the figures; 1 if any schedule failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.integration.chaos", description=__doc__)
    parser.add_argument("--seeds", default="0-299", help="for example 0-299 or 3,17,40-49")
    parser.add_argument("--lanes", type=int, default=8, help="containers side by side (default 8)")
    parser.add_argument("--keep", type=Path, help="keep what the watches of failed schedules told, here")
    parser.add_argument("--json", type=Path, help="write every result here")
    options = parser.parse_args()
    seeds = seeds_of(options.seeds)
    begin, results = time.monotonic(), []

    def tell(result: Result) -> None:
        results.append(result)
        mark = "FAILED" if result.problems else "ok"
        print(
            f"[{len(results)}/{len(seeds)}] seed {result.seed}: {mark}, {result.attempts} attempts, "
            f"{result.took_s:.0f} s ({', '.join((*result.hows, *result.faults))})",
            flush=True,
        )
        for problem in result.problems:
            print(f"    {problem}", flush=True)

    play_all([draw(seed) for seed in seeds], options.lanes, tell, keep=options.keep)
    found = {**summary(results), "wall_s": round(time.monotonic() - begin, 1)}
    print(json.dumps(found, indent=2))
    if options.json:
        options.json.write_text(json.dumps([result.as_json() for result in results], indent=1) + "\n")
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
