"""What client libraries may say while a server is away."""

from __future__ import annotations

import logging

from parley.quiet import KINDS, Seldom


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def said(seldom: Seldom, name: str, message: str, *args: object, error: BaseException | None = None) -> str | None:
    """What a handler would write."""
    info = (type(error), error, error.__traceback__) if error is not None else None
    record = logging.LogRecord(name, logging.WARNING, __file__, 1, message, args, info)
    return logging.Formatter("%(message)s").format(record) if seldom.filter(record) else None


def test_a_kind_of_line_comes_once_in_a_while_and_tells_how_often_it_would_have() -> None:
    clock = Clock()
    seldom = Seldom(["aiokafka"], every_s=10, clock=clock)
    assert said(seldom, "aiokafka.conn", "no node %d", 1) == "no node 1"
    clock.now += 5
    assert said(seldom, "aiokafka.conn", "no node %d", 2) is None
    assert said(seldom, "aiokafka.conn", "no topic %s", "a") == "no topic a"
    clock.now += 5
    assert said(seldom, "aiokafka.conn", "no node %d", 3) == "no node 3 (and 1 times before)"


def test_it_is_one_line_with_the_error_and_without_the_stack() -> None:
    seldom = Seldom(["cassandra"])
    try:
        raise OSError("refused")
    except OSError as error:
        line = said(seldom, "cassandra.pool", "can't connect:\nat all", error=error)
    assert line == "can't connect: OSError('refused')"


def test_others_say_what_they_like() -> None:
    seldom = Seldom(["aiokafka"])
    assert [said(seldom, "parley.log", "the same") for _ in range(2)] == ["the same"] * 2
    assert [said(seldom, "aiokafkaesque", "the same") for _ in range(2)] == ["the same"] * 2


def test_it_remembers_no_more_than_so_many_kinds() -> None:
    seldom = Seldom(["aiokafka"])
    for number in range(3 * KINDS):
        assert said(seldom, "aiokafka", f"offset {number}") is not None
    assert len(seldom._said) <= KINDS
