"""`python -m tests.chaos`: everything is killed while users chat; exit code 0 when no promise was broken."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import click

from tests.chaos.trial import Plan, run


@click.command(help=__doc__)
@click.option("--users", default=Plan.users, show_default=True, help="Users at once.")
@click.option(
    "--seconds", default=Plan.seconds, show_default=True, help="Of faults; starting and checking come beside."
)
@click.option("--every", default=Plan.every_s, show_default=True, help="Seconds from one fault to the next, about.")
@click.option("--stores", default=Plan.stores, show_default=True, help="Kills of brokers and stores, at most.")
@click.option("--words", default=Plan.words, show_default=True, help="Tokens of an answer, one each 100 ms.")
@click.option("--seed", default=Plan.seed, show_default=True, help="Of the order of faults and of users' habits.")
@click.option("--rolling/--no-rolling", default=True, show_default=True, help="End with a restart of every role.")
@click.option("--folder", type=click.Path(path_type=Path), help="Keep data and logs here; without it they go.")
def main(
    users: int, seconds: float, every: float, stores: int, words: int, seed: int, rolling: bool, folder: Path | None
) -> None:
    plan = Plan(users, seconds, every, stores, words, rolling, seed)
    with tempfile.TemporaryDirectory(prefix="parley-chaos-") as made:
        place = folder or Path(made)
        place.mkdir(parents=True, exist_ok=True)
        report = asyncio.run(run(plan, place))
    print(report)
    sys.exit(1 if report.wrong or report.troubles else 0)


if __name__ == "__main__":
    main()
