"""Measure the product: ``python -m tests.benchmarks [--quick] [--only NAME ...] [--out FILE]``.

Contestants alternate round by round, each in its own process on one core; the file holds medians,
quartiles and ratios of medians.
"""

import argparse
import json
import os
import platform
import sys
from pathlib import Path

from fedpart.machine import hardware, versions
from tests.benchmarks.growth import draw
from tests.benchmarks.measures import MEASURES

# Under two minutes.
QUICK = ("w1", "w3", "partitioned", "evaluate", "server-and-wire", "start-up")


def main(argv: list[str] | None = None) -> None:
    """Parse, measure, print, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write; one that is there is kept")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"few rounds: shows that it works; without --only: {', '.join(QUICK)}",
    )
    parser.add_argument("--only", nargs="+", choices=list(MEASURES), help="some of them")
    args = parser.parse_args(argv)
    # Before any process starts: PyTorch and OpenMP read it once.
    os.environ["OMP_NUM_THREADS"] = "1"
    words = list(sys.argv[1:] if argv is None else argv)
    report: dict[str, object] = {}
    if args.out and args.out.exists():
        report = json.loads(args.out.read_text())
    for name in args.only or (QUICK if args.quick else MEASURES):
        record = MEASURES[name](args.quick)
        report[name] = {
            "what": MEASURES[name].__doc__,
            "command": " ".join(["python -m tests.benchmarks", *words]),
            "machine": hardware() | {"system": platform.platform(), "threads": 1},
            "versions": versions(),
            **record,
        }
        sys.stdout.write(f"{name}: {json.dumps(record, indent=1)}\n")
        sys.stdout.flush()
        if args.out:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(report, indent=1) + "\n")
            if name == "growth":
                draw(record, args.out.with_name("growth.png"))


if __name__ == "__main__":
    main()
