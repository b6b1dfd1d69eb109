"""Each turn is counted once, whatever is read twice, whoever ends it twice, and whichever write is lost."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest

from consumers.usage.report import fold
from consumers.usage.tally import Counted, Hour, Turn, count, hour_key, hour_of, parse_hour_key
from parley.ids import Keys, new_response_id

EPOCHS = ((0, 0, 0, 0), (1, 1, 1, 1), (1, 2, 1, 0), (2, 0, 0, 0))


def end(offset: int, epoch: int = 1, tokens: int = 10) -> Counted:
    return Counted(EPOCHS[epoch], tokens, tokens * 2, tokens * 3, offset, offset * 1000)


def test_a_turn_is_counted() -> None:
    assert count(Hour(), (), end(5)) == (Hour(turns=1, input=10, output=20, generated=30, through=5), (end(5),))


def test_the_same_record_again_changes_nothing() -> None:
    once = count(Hour(), (), end(5))
    assert count(*once, end(5)) == once


def test_the_same_record_again_changes_nothing_even_when_the_turn_is_forgotten() -> None:
    hour, _ = count(Hour(), (), end(5))
    assert count(hour, (), end(5))[0] == hour


@pytest.mark.parametrize("epoch", [0, 1])
def test_another_end_of_the_same_or_a_smaller_epoch_adds_nothing(epoch: int) -> None:
    hour, turn = count(*count(Hour(), (), end(5, tokens=10)), end(6, epoch, tokens=99))
    assert hour == Hour(1, 10, 20, 30, through=6)
    assert turn == (end(5),)


def test_an_end_of_a_greater_epoch_replaces_the_numbers() -> None:
    hour, turn = count(*count(Hour(), (), end(5, tokens=10)), end(6, 2, tokens=99))
    assert hour == Hour(1, 99, 198, 297, through=6)
    assert turn == (end(5), end(6, 2, tokens=99))


def test_turns_add_up() -> None:
    hour, _ = count(Hour(), (), end(5))
    hour, _ = count(hour, (), end(6, tokens=1))
    assert hour == Hour(2, 11, 22, 33, through=6)


def test_a_turn_whose_hour_was_lost_counts_as_not_counted() -> None:
    _, turn = count(Hour(), (), end(5))
    assert count(Hour(), turn, end(5)) == (Hour(1, 10, 20, 30, through=5), (end(5),))


def test_a_replacement_whose_hour_was_lost_replaces_when_it_is_read_again() -> None:
    first = count(Hour(), (), end(5, tokens=10))
    _, turn = count(*first, end(6, 2, tokens=99))
    assert count(first[0], turn, end(6, 2, tokens=99))[0] == Hour(1, 99, 198, 297, through=6)


def test_a_turn_that_was_lost_is_remembered_again() -> None:
    hour, _ = count(Hour(), (), end(5))
    assert count(hour, (), end(5)) == (hour, (end(5),))


def test_changelog_values_come_back_as_they_were() -> None:
    hour, (counted,) = count(Hour(), (), end(5))
    assert Hour.from_json(hour.json()) == hour
    assert Counted.from_json(counted.json()) == counted
    assert parse_hour_key(hour_key(3, UUID(int=7), 99)) == (3, UUID(int=7), 99)


def test_the_hour_is_that_of_acceptance() -> None:
    keys = Keys((b"k",))
    response = new_response_id(keys, UUID(int=1), UUID(int=2), 0, 0, now_ms=7 * 3_600_000 + 3_599_999)
    assert hour_of(response) == 7


def test_of_an_hour_a_report_takes_the_newest_state_not_the_last_written() -> None:
    hours: dict[str, Hour] = {}
    fold(hours, b'"k"', b"[2, 2, 2, 2, 9]")
    fold(hours, b'"k"', b"[1, 1, 1, 1, 5]")  # a process that had lost the partition
    assert hours == {"k": Hour(2, 2, 2, 2, 9)}
    fold(hours, b'"k"', None)
    assert hours == {}


FORGET_AFTER = 12
"""Offsets after which no further end of a turn follows in the schedules below."""


@dataclass
class Process:
    """The usage role without Faust: memory, a changelog that may lose writes, and a committed offset."""

    log: list[tuple[int, Counted]]
    chance: random.Random
    durable_hour: Hour = field(default_factory=Hour)
    durable_turns: dict[int, Turn] = field(default_factory=dict)
    committed: int = 0

    def run(self, steps: int, losses: float) -> None:
        """Read from the committed offset; a lost write stops commits, and the process dies after these."""
        hour, turns = self.durable_hour, dict(self.durable_turns)
        healthy = True
        for offset in range(self.committed, min(len(self.log), self.committed + steps)):
            turn, read = self.log[offset]
            hour, turns[turn] = count(hour, turns.get(turn, ()), read)
            landed_hour, landed_turn = (self.chance.random() >= losses for _ in range(2))
            if landed_hour:
                self.durable_hour = hour
            if landed_turn:
                self.durable_turns[turn] = turns[turn]
            healthy = healthy and landed_hour and landed_turn
            if healthy:
                self.committed = offset + 1
            # Judged by what is committed: a successor reads again from there, and must find what it needs.
            for old in [key for key, held in turns.items() if held[-1].offset + FORGET_AFTER < self.committed]:
                del turns[old]
                if self.chance.random() >= losses:
                    self.durable_turns.pop(old, None)


def schedule(chance: random.Random) -> list[tuple[int, Counted]]:
    """Turns with up to four ends each, the later ones at most FORGET_AFTER offsets after one another."""
    log: list[tuple[int, Counted]] = []
    due: list[tuple[int, int]] = []
    turn = 0
    while len(log) < 60:
        ready = [entry for entry in due if entry[0] <= len(log)]
        if ready:
            chosen = ready[0]
            due.remove(chosen)
            which = chosen[1]
        else:
            which = turn
            turn += 1
            last = len(log)
            for _ in range(chance.choice((0, 0, 1, 3))):
                last += chance.randint(1, 4)
                due.append((last, which))
        log.append((which, end(len(log), chance.randrange(4), chance.randrange(100))))
    return log


def expected(log: list[tuple[int, Counted]]) -> Hour:
    standing: dict[int, Counted] = {}
    for turn, read in log:
        if turn not in standing or read.epoch > standing[turn].epoch:
            standing[turn] = read
    total = Hour()
    for counted in standing.values():
        total = total.plus(counted)
    return replace(total, through=len(log) - 1)


@pytest.mark.parametrize("seed", range(500))
def test_whatever_is_lost_or_read_again_the_sums_are_exact(seed: int) -> None:
    chance = random.Random(seed)
    log = schedule(chance)
    process = Process(log, chance)
    while process.committed < len(log):
        process.run(chance.randint(1, 25), losses=chance.choice((0.0, 0.1, 0.4)))
        if chance.random() < 0.2:
            process.committed = chance.randrange(process.committed + 1)  # an operator resets the offset
    process.committed = 0
    process.run(len(log), losses=0.0)
    assert process.durable_hour == expected(log)
