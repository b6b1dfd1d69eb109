"""aiokafka on uvloop: a connection that is found closed is a connection that broke, not an error of the program.

To write to a closed transport is silently nothing in asyncio; uvloop raises a RuntimeError, which aiokafka (0.14) takes
for a fault of its own: whichever of its tasks was writing ends for good. A consumer's then delivers nothing any more, a
member of a group is out of it. A broker that dies at the right moment was enough for it.
"""

from __future__ import annotations

import functools
from typing import Any

from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import KafkaConnectionError, KafkaError


def mend_transports() -> None:
    """Have aiokafka see what it expects, in this process, from now on. Calling it again changes nothing."""
    send = AIOKafkaConnection.send
    if hasattr(send, "__wrapped__"):
        return

    @functools.wraps(send)
    def mended(self: AIOKafkaConnection, *args: Any, **kwargs: Any) -> Any:
        try:
            return send(self, *args, **kwargs)
        except KafkaError:  # a RuntimeError, too
            raise
        except RuntimeError as error:
            self.close(reason=CloseReason.CONNECTION_BROKEN)
            raise KafkaConnectionError(f"Connection at {self.host}:{self.port} broken: {error}") from error

    AIOKafkaConnection.send = mended
