"""Run schedules by hand: `python -m tests.simulation --seed 17 --trace`, or `--first 1 --count 5000`."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import logging
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

if os.environ.get("PYTHONHASHSEED") != "0":  # sets of strings must have one order
    command = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
    os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})

from tests.simulation.install import install
from tests.simulation.mutations import MUTATIONS
from tests.simulation.plan import plan_of
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.trace import tracer
from tests.simulation.world import Outcome, run_plan

HANG_S = 60
"""A schedule that takes so long is stuck within one callback: the stack says where."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, action="append", default=[], help="a seed; may be given several times")
    parser.add_argument("--first", type=int, default=0, help="the first of a range of seeds")
    parser.add_argument("--count", type=int, default=0, help="how many seeds from there on")
    parser.add_argument("--scenario", choices=SCENARIOS, action="append", default=[], help="a fault of the past")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after so much CPU time")
    parser.add_argument("--without", choices=MUTATIONS, help="take a rule away, and end at the first that breaks")
    parser.add_argument("--trace", action="store_true", help="print all that happens; what is said is made up")
    parser.add_argument("--logs", action="store_true", help="also print what the roles log")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO if args.logs else logging.CRITICAL, format="%(name)40s: %(message)s")
    install()
    if args.without:
        MUTATIONS[args.without]()
    seeds = (*args.seed, *range(args.first, args.first + args.count))
    plans = [*(SCENARIOS[name]() for name in args.scenario), *map(plan_of, seeds)]
    began, ran, broken = time.process_time(), 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        gc.collect()
        gc.freeze()
        for plan in plans:
            if time.process_time() - began > args.seconds:
                break
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            outcome = run_plan(plan, Path(scratch), tracer() if args.trace else lambda at, what: None)
            ran, broken = ran + 1, broken + bool(outcome.problems)
            if args.json:
                print(json.dumps(asdict(outcome)), flush=True)
            elif outcome.problems or not args.count:
                print(_lines(outcome), flush=True)
            if args.without and broken:
                break
    if not args.json:
        print(f"{broken} of {ran} broken, {time.process_time() - began:.1f} s of CPU")
    return 1 if broken else 0


def _lines(outcome: Outcome) -> str:
    about = f"{outcome.virtual_s:.1f} s, healed after {outcome.healed_s:.1f} s, {outcome.steps} steps"
    head = f"{outcome.name}: {outcome.turns} turns {outcome.ends}, {about}"
    return "\n  ".join([head, *dict.fromkeys(outcome.problems)])


if __name__ == "__main__":
    sys.exit(main())
