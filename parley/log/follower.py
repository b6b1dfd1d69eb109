"""Following partitions outside of any group: state logs and side inputs, derived from the log and never committed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from parley.errors import ParleyError
from parley.log.ranges import Record, stopped
from parley.settings import KafkaSettings

log = logging.getLogger(__name__)

GATHERING_S = 0.005
"""How long changes of what is followed are gathered."""

Handler = Callable[[Record], None]


@dataclass(slots=True)
class _Followed:
    position: int
    handle: Handler
    sought: bool = False
    """The consumer has been sent to `position`; what it was reading there before is from elsewhere."""
    waiting: list[tuple[int, asyncio.Future[None]]] = field(default_factory=list)


class Follower:
    """One consumer for all that a process follows. A record is handled once, in order, on the event loop."""

    def __init__(self, settings: KafkaSettings, name: str) -> None:
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=settings.bootstrap,
            client_id=name,
            group_id=None,
            enable_auto_commit=False,
            # What retention took away can't be waited for: go on with what is left.
            auto_offset_reset="earliest",
            fetch_max_wait_ms=settings.fetch_max_wait_ms,
            request_timeout_ms=settings.request_timeout_ms,
            retry_backoff_ms=settings.retry_backoff_ms,
        )
        # Asks for offsets. A broker answers the requests of a connection one after the other, and on that of the other
        # consumer there is always a fetch that waits for records.
        self._asking = AIOKafkaConsumer(
            bootstrap_servers=settings.bootstrap,
            client_id=f"{name}-offsets",
            group_id=None,
            enable_auto_commit=False,
            request_timeout_ms=settings.request_timeout_ms,
            retry_backoff_ms=settings.retry_backoff_ms,
        )
        self._followed: dict[TopicPartition, _Followed] = {}
        self._changed = asyncio.Event()
        self._reassigning = False
        self._going = asyncio.Event()
        self._going.set()
        self._task: asyncio.Task[None] | None = None
        self.on_failure: Callable[[BaseException], None] = lambda error: log.error("following has ended: %r", error)
        """Told when nothing is read any more; a process must not live on then."""

    async def start(self) -> None:
        """Connect.

        Raises:
            ParleyError: log_unavailable.
        """
        try:
            await self._consumer.start()
            await self._asking.start()
        except (KafkaError, OSError) as error:
            await self._disconnect()
            raise ParleyError("log_unavailable", "no broker answers") from error
        self._task = asyncio.create_task(self._poll(), name="follower")
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Disconnect; whoever waits for a position is cancelled."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._disconnect()

    async def _disconnect(self) -> None:
        await asyncio.gather(stopped(self._consumer), stopped(self._asking))

    def follow(self, topic: str, partition: int, start: int, handle: Handler) -> None:
        """Hand every record of a partition from `start` on to `handle`. Again with the same: from the lower start."""
        where = TopicPartition(topic, partition)
        before = self._followed.get(where)
        if before is not None and before.handle == handle:
            if start < before.position:
                before.position, before.sought = start, False
        else:
            self.unfollow(topic, partition)
            self._followed[where] = _Followed(start, handle)
        self._reassign()

    def unfollow(self, topic: str, partition: int) -> None:
        """Leave a partition. Whoever waits for a position there waits no more: it was for the partition's sake."""
        gone = self._followed.pop(TopicPartition(topic, partition), None)
        if gone is not None:
            for _, waiter in gone.waiting:
                if not waiter.done():
                    waiter.set_result(None)
            self._reassign()

    def pause(self) -> None:
        """Read nothing more, once what has been fetched is handed over, until `resume`."""
        self._going.clear()

    def resume(self) -> None:
        """Read on."""
        self._going.set()

    async def reached(self, topic: str, partition: int, offset: int) -> None:
        """Returns once the record at `offset`, or a later one, has been handled, or the partition is left."""
        followed = self._followed.get(TopicPartition(topic, partition))
        if followed is not None and followed.position <= offset:
            waiter = asyncio.get_running_loop().create_future()
            followed.waiting.append((offset, waiter))
            await waiter

    async def bounds(self, wheres: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Of each partition: (offset of the oldest record, offset that the next record will have).

        Raises:
            ParleyError: log_unavailable.
        """
        wheres = list(wheres)
        try:
            begin, end = await asyncio.gather(self._asking.beginning_offsets(wheres), self._asking.end_offsets(wheres))
        except KafkaError as error:
            raise self._unanswered(f"could not ask for the bounds of {len(wheres)} partitions") from error
        return {where: (int(begin[where]), int(end[where])) for where in wheres}

    async def since(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Of each partition: an offset at or before the first record appended at or after its time (ms).

        The end is asked for before the time, so that a record written between the two questions is not missed.

        Raises:
            ParleyError: log_unavailable.
        """
        try:
            ends = await self._asking.end_offsets(list(times))
            found = await self._asking.offsets_for_times({where: max(0, ms) for where, ms in times.items()})
        except KafkaError as error:
            raise self._unanswered(f"could not ask for offsets of {len(times)} partitions") from error
        return {w: int(ends[w] if found[w] is None else min(found[w].offset, ends[w])) for w in times}

    def _unanswered(self, what: str) -> ParleyError:
        """The leader may be another by now, which aiokafka finds out by the fetches of a connection: here are none."""
        self._asking._client.force_metadata_update()
        return ParleyError("log_unavailable", what)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.on_failure(error)

    def _reassign(self) -> None:
        """Soon: partitions come and go by the dozen, and each assignment drops what was fetched."""
        if not self._reassigning:
            self._reassigning = True
            asyncio.get_running_loop().call_later(GATHERING_S, self._assign)

    def _assign(self) -> None:
        self._reassigning = False
        # assign() resets positions: seek again to what has been handled.
        self._consumer.assign(list(self._followed))
        for where, followed in self._followed.items():
            self._consumer.seek(where, followed.position)
            followed.sought = True
        self._changed.set()

    async def _poll(self) -> None:
        while True:
            await self._going.wait()
            if not self._followed:
                self._changed.clear()
                await self._changed.wait()
            batches = await self._consumer.getmany(timeout_ms=200, max_records=500)  # a replay lets others run
            for where, records in batches.items():
                followed = self._followed.get(where)
                if followed is None or not followed.sought:
                    continue  # a record from further on would be taken for the next one, and those before it be lost
                for record in records:
                    if record.offset >= followed.position:
                        followed.position = record.offset + 1
                        followed.handle(record)
                if followed.waiting:
                    self._wake(followed)

    @staticmethod
    def _wake(followed: _Followed) -> None:
        for offset, waiter in followed.waiting:
            if offset < followed.position and not waiter.done():
                waiter.set_result(None)
        followed.waiting = [(offset, waiter) for offset, waiter in followed.waiting if not waiter.done()]
