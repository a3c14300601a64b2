"""Measure everything again and write ``results.json``: ``python -m attnkit_conformance.calibration``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from attnkit_conformance.calibration.results import PATH, Results, committed
from attnkit_conformance.calibration.run import calibrate
from attnkit_conformance.calibration.table import markdown, refreshed


def main() -> int:
    """Run it; the exit status is 1 where a correct algorithm is not accepted."""
    options = _options()
    results = _results(options)
    sys.stdout.write(f"{markdown(results)}\n")
    if options.page is not None:
        options.page.write_text(refreshed(options.page.read_text("utf-8"), results), "utf-8")
    for row in results.rejected():
        _say(f"not accepted: {row}")
    return 1 if results.rejected() else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m attnkit_conformance.calibration", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, rows of 2048 keys at most, nothing is written")
    parser.add_argument("--show", action="store_true", help="measure nothing, show what was written")
    parser.add_argument("--output", type=Path, metavar="FILE", help=f"where to write; by default {PATH.name} in place")
    parser.add_argument("--page", type=Path, metavar="FILE", help="a page of the documentation to put the tables into")
    return parser.parse_args()


def _results(options: argparse.Namespace) -> Results:
    if options.show:
        return committed()
    results = calibrate(1, keys=2048, on_step=_say) if options.quick else calibrate(on_step=_say)
    output = options.output or (None if options.quick else PATH)
    if output is not None:
        output.write_text(results.dump(), "utf-8")
    return results


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
