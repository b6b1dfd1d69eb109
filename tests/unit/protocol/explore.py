"""Many schedules: which promises break, how often, and where first."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context

from .choices import Seeded
from .invariants import broken
from .log import Record
from .rules import RULES
from .world import World

BY_AGE = "what is open needs no old age to end"


@dataclass(slots=True)
class Findings:
    """What a set of schedules has shown."""

    schedules: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, int] = field(default_factory=dict)
    """The seed at which each promise broke first."""

    def add(self, seed: int, promise: str | None) -> None:
        self.schedules += 1
        if promise is not None:
            self.counts[promise] += 1
            self.first[promise] = min(seed, self.first.get(promise, seed))

    def __add__(self, other: Findings) -> Findings:
        first = {p: min(f[p] for f in (self.first, other.first) if p in f) for p in {**self.first, **other.first}}
        return Findings(self.schedules + other.schedules, self.counts + other.counts, first)


def schedule(seed: int, without: Iterable[str] = ()) -> str | None:
    """Run the schedule of a seed; the promise that breaks."""
    world = World(Seeded(seed), frozenset(without))
    world.run()
    return broken(world) or (BY_AGE if world.by_age else None)


def schedules(seeds: range, without: Iterable[str] = ()) -> Findings:
    found = Findings()
    for seed in seeds:
        found.add(seed, schedule(seed, without))
    return found


def explore(count: int, without: Iterable[str] = (), *, first: int = 0, processes: int = 2) -> Findings:
    """`count` schedules from a first seed, side by side in so many processes."""
    parts = [range(first + n, first + count, processes * 8) for n in range(processes * 8)]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return sum(pool.map(partial(schedules, without=tuple(without)), parts), Findings())


def timeline(world: World) -> list[str]:
    """Everything that was appended, in order."""
    return [_line(world, record) for record in world.logs.everything()]


_SHOWN = ("turn", "parent", "pool", "why", "dispatch", "epoch", "status", "writer", "seq", "text", "kind", "waiting")
_SHOWN_OF_KEYS = ("key_hash", "duplicate_of", "decision")


def _line(world: World, record: Record) -> str:
    names = {prompt.response: f"{prompt.event.user.int - 1}.{n}" for n, prompt in enumerate(world.prompts())}
    fields = {
        name: names.get(value, value)
        for name in (*_SHOWN, *_SHOWN_OF_KEYS)
        if (value := getattr(record.event, name, None)) is not None
    }
    about = " ".join(f"{name}={value}" for name, value in fields.items())
    where = f"{record.topic}-{record.partition}@{record.offset}"
    age_s = (record.timestamp - world.started) // 1000
    return (
        f"{record.at:4} {age_s:6} s {where:22} {names.get(record.response, '')} {type(record.event).__name__} {about}"
    )


def first_broken(rule: str, seeds: range) -> tuple[str, int, str] | None:
    """The first schedule that shows that the rule is gone: rule, seed, and the promise that breaks."""
    for seed in seeds:
        if (promise := schedule(seed, [rule])) is not None:
            return rule, seed, promise
    return None


def main(arguments: list[str]) -> None:
    what, number, *rest = arguments
    begin = time.perf_counter()
    first = next((int(word[1:]) for word in rest if word[0] == "@"), 0)
    rules = [word for word in rest if word[0] != "@"]
    if what == "table":
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            search = partial(first_broken, seeds=range(first, first + int(number)))
            for rule, found in zip(rules or RULES, pool.map(search, rules or RULES), strict=True):
                print(f"{rule:20} {found}", flush=True)
    elif what == "show":
        world = World(Seeded(int(number)), frozenset(rules))
        world.run()
        print(*timeline(world), broken(world), sep="\n")
    else:
        all_of = explore(int(number), rules, first=first)
        took_s = time.perf_counter() - begin
        print(f"{all_of.schedules} schedules in {took_s:.0f} s: {dict(all_of.counts)} {all_of.first}")


if __name__ == "__main__":
    main(sys.argv[1:])
