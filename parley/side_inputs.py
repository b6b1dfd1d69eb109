"""Verdicts and cancels of a partition: read beside the work, derived from the log, never committed (promise 7).

All session-keyed topics have the same number of partitions, so the side inputs of a partition are those of its number.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping

from aiokafka import TopicPartition

from parley.log.dlq import unreadable
from parley.log.follower import Follower
from parley.log.ranges import Record
from parley.settings import ProtocolSettings
from parley.topics import CONTROL, VERDICTS
from schemas.prompts import Cancel, Verdict
from schemas.wire import BadRecord, decoder

_verdict = decoder(Verdict)
_cancel = decoder(Cancel)


async def catch_up(
    follower: Follower, sides: Mapping[int, SideInputs], oldest: Mapping[int, int], protocol: ProtocolSettings
) -> None:
    """Make side inputs ready, by partition number: all that may concern turns with records as old as `oldest` (ms).

    Raises:
        ParleyError: log_unavailable.
    """
    reach_ms = int(1000 * (protocol.moderation_deadline_s + protocol.margin_s))
    wheres = {TopicPartition(topic, p): ms - reach_ms for p, ms in oldest.items() for topic in (VERDICTS, CONTROL)}
    starts = await follower.since(wheres)
    ends = await follower.bounds(wheres)
    for partition in oldest:
        at = [starts[TopicPartition(topic, partition)] for topic in (VERDICTS, CONTROL)]
        if (side := sides.get(partition)) is not None:  # else it was given up meanwhile
            side.follow(*at)
    for where, (_, end) in ends.items():
        if end > starts[where]:
            await follower.reached(where.topic, where.partition, end - 1)


class SideInputs:
    """What is known about the turns of one partition from moderation and from users who changed their mind."""

    def __init__(self, follower: Follower, partition: int, protocol: ProtocolSettings) -> None:
        self._follower = follower
        self._partition = partition
        self._kept_ms = int(1000 * (protocol.max_turn_age_s + protocol.answer_limit_s + protocol.margin_s))
        self._verdicts: OrderedDict[str, tuple[int, Verdict]] = OrderedDict()
        self._cancels: OrderedDict[str, int] = OrderedDict()
        self._awaited: dict[str, list[asyncio.Future[Verdict]]] = {}
        self._on_cancel: dict[str, Callable[[], None]] = {}
        self._stopped = False

    def follow(self, verdicts: int, control: int) -> None:
        """Read from these offsets on, unless stopped."""
        if self._stopped:
            return
        self._follower.follow(VERDICTS, self._partition, verdicts, self._on_verdict)
        self._follower.follow(CONTROL, self._partition, control, self._on_control)

    def stop(self) -> None:
        """Read no further, for good."""
        self._stopped = True
        for topic in (VERDICTS, CONTROL):
            self._follower.unfollow(topic, self._partition)

    def verdict(self, response: str) -> Verdict | None:
        """The verdict on the prompt, if there is one yet."""
        found = self._verdicts.get(response)
        return found[1] if found else None

    async def wait_for_verdict(self, response: str) -> Verdict:
        """The verdict on the prompt, as soon as there is one. Callers set the deadline."""
        if (known := self.verdict(response)) is not None:
            return known
        waiter: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(response, []).append(waiter)
        try:
            return await waiter
        finally:
            waiters = self._awaited.get(response, [])
            if waiter in waiters:
                waiters.remove(waiter)
                if not waiters:
                    del self._awaited[response]

    def cancelled(self, response: str) -> bool:
        """The user has cancelled the turn."""
        return response in self._cancels

    def on_cancel(self, response: str, call: Callable[[], None]) -> None:
        """Call this when the turn is cancelled; at once if it has been. One call a turn: a later one replaces it."""
        self._on_cancel[response] = call
        if self.cancelled(response):
            call()

    def off_cancel(self, response: str, call: Callable[[], None] | None = None) -> None:
        """No longer call for the turn; with `call`, only if that is still the one."""
        if call is None or self._on_cancel.get(response) == call:
            self._on_cancel.pop(response, None)

    def _on_verdict(self, record: Record) -> None:
        try:
            verdict = _verdict(record.value)
        except BadRecord as error:
            unreadable(record, error)
            return
        if verdict.stage != "input" or verdict.response in self._verdicts:
            return  # the first one counts
        self._verdicts[verdict.response] = (record.timestamp, verdict)
        for waiter in self._awaited.pop(verdict.response, ()):
            if not waiter.done():
                waiter.set_result(verdict)
        while self._verdicts and next(iter(self._verdicts.values()))[0] < record.timestamp - self._kept_ms:
            self._verdicts.popitem(last=False)

    def _on_control(self, record: Record) -> None:
        try:
            cancel = _cancel(record.value)
        except BadRecord as error:
            unreadable(record, error)
            return
        self._cancels.setdefault(cancel.response, record.timestamp)
        if (call := self._on_cancel.get(cancel.response)) is not None:
            call()
        while self._cancels and next(iter(self._cancels.values())) < record.timestamp - self._kept_ms:
            self._cancels.popitem(last=False)
