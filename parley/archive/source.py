"""Where an operator's tool reads from: the brokers, or an archive that takes their place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from parley.archive.read import Archive
from parley.log.spans import Source, open_spans
from parley.settings import KafkaSettings


@asynccontextmanager
async def open_source(settings: KafkaSettings, name: str, archive: Path | None) -> AsyncIterator[Source]:
    """The archive in that folder, or a reader of the log that calls itself `name`.

    Raises:
        ParleyError: invalid_request: the folder is no archive; log_unavailable: no broker answers.
    """
    if archive is not None:
        yield Archive(archive)
    else:
        async with open_spans(settings, name) as spans:
            yield spans
