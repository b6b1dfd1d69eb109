"""aiokafka (0.14) overlooks what a coordinator says of an answer as a whole.

One that is just losing a group, or has not loaded it yet, answers a question for committed offsets with an error and
without any partition (OffsetFetch, version 2 and later). aiokafka reads the partitions alone: the group seems never to
have committed. A member would begin at the log's beginning, and take its partitions over under number 1 again.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import for_code
from aiokafka.protocol.commit import OffsetFetchResponse_v2, OffsetFetchResponse_v3

Send = Callable[..., Awaitable[Any]]


def mend_answers() -> None:
    """Have aiokafka raise such errors, in this process, from now on. Calling it again changes nothing."""
    if not hasattr(AIOKafkaClient.send, "__wrapped__"):
        AIOKafkaClient.send = mended(AIOKafkaClient.send)


def mended(send: Send) -> Send:
    """A client's `send` that raises them."""

    @functools.wraps(send)
    async def hearing(*args: Any, **kwargs: Any) -> Any:
        answer = await send(*args, **kwargs)
        if isinstance(answer, OffsetFetchResponse_v2 | OffsetFetchResponse_v3) and answer.error_code:
            raise for_code(answer.error_code)("the coordinator tells of no offsets")
        return answer

    return hearing
