"""What every turn of a worker uses: the log, the engines, the classifier, the tokenizer."""

from __future__ import annotations

from dataclasses import dataclass

from inference_workers.admission import Admission
from inference_workers.engine.pool import Engines
from parley.log.partitions import session_key
from parley.log.producer import Producer
from parley.log.ranges import RangeReader
from parley.safety import tally
from parley.safety.classifier import Classifier
from parley.safety.policy import Policy
from parley.settings import Settings
from parley.tokenizers import Tokenizer
from parley.topics import TURNS, VERDICTS, Pool
from schemas.prompts import Verdict
from schemas.turns import TurnEnded
from schemas.wire import encode, headers


@dataclass(slots=True)
class Tools:
    """Made once a process."""

    settings: Settings
    pool: Pool
    producer: Producer
    tokens: Producer
    """For routes alone: fence, deltas and terminal of a turn keep their order in one producer."""
    ranges: RangeReader
    engines: Engines
    admission: Admission
    classifier: Classifier
    policy: Policy
    tokenizer: Tokenizer

    async def log_end(self, ended: TurnEnded, partition: int) -> None:
        """Write to chat.turns.

        Raises:
            ParleyError: log_unavailable: it may land later.
        """
        about = headers(
            ended.type,
            response=ended.response,
            session=ended.session.hex,
            dispatch=ended.dispatch,
            traceparent=ended.traceparent,
        )
        key = session_key(ended.session.hex)
        await self.producer.send(TURNS, encode(ended), key=key, partition=partition, headers=about)

    async def post_verdict(self, verdict: Verdict, partition: int) -> None:
        """Write the guard's verdict on an answer, for the audit: nothing waits for it.

        Raises:
            ParleyError: log_unavailable.
        """
        about = headers(verdict.type, response=verdict.response, session=verdict.session.hex)
        await self.producer.post(
            VERDICTS, encode(verdict), key=session_key(verdict.session.hex), partition=partition, headers=about
        )
        tally.count(verdict)
