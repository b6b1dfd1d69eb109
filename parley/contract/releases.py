"""The schemas of released versions, in schemas/released/VERSION, and whether this version can live beside the last one.

A rolling update has both at once: the new code reads what the old has written, and the old what the new writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parley import __version__
from parley.contract.compat import breaks
from parley.errors import ParleyError
from parley.topics import Topic, Topics
from schemas import export

FOLDER = export.FOLDER.parent / "released"


@dataclass(frozen=True, slots=True)
class Break:
    """Something that one version writes and the other does not read."""

    event: str
    writer: str
    """The version that writes, e.g. `0.1.0`, or `this code`."""
    reader: str
    what: str


def last(folder: Path = FOLDER) -> str:
    """The greatest released version.

    Raises:
        ParleyError: not_found: none was released.
    """
    versions = [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    if not versions:
        raise ParleyError("not_found", f"{folder} has no version: `parley schemas release` makes one")
    return max(versions, key=lambda version: tuple(map(int, version.split("."))))


def load(version: str, folder: Path = FOLDER) -> dict[str, Any]:
    """Event type to schema of a released version."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((folder / version).glob("*.json"))}


def current() -> dict[str, Any]:
    """Event type to schema of this code."""
    return {name.removesuffix(".json"): json.loads(text) for name, text in export.schemas().items()}


def compare(version: str, released: Mapping[str, Any], now: Mapping[str, Any], topics: Topics) -> list[Break]:
    """All breaks between a release and this code, in both directions."""
    here = "this code"
    found = []
    for event in sorted(released.keys() | now.keys()):
        if event not in now:
            found.append(Break(event, version, here, "there is no such event any more"))
        elif event not in released:
            met = [t.name for t in topics.topics.values() if event in t.events and _meets_readers(t, released)]
            found += [Break(event, here, version, f"is new on {topic}, whose readers don't know it") for topic in met]
        else:
            found += [Break(event, version, here, what) for what in breaks(released[event], now[event])]
            found += [Break(event, here, version, what) for what in breaks(now[event], released[event])]
    return found


def _meets_readers(topic: Topic, released: Mapping[str, Any]) -> bool:
    """Roles of the release read the topic already. Operators' tools show what they don't know as unreadable."""
    return bool(released.keys() & set(topic.events)) and set(topic.readers) != {"operators"}


def release(folder: Path = FOLDER) -> str:
    """Keep this code's schemas as those of its version; gives the version.

    Raises:
        ParleyError: invalid_request: this version was released, with other schemas.
    """
    place = folder / __version__
    if place.exists() and export.differences(place):
        raise ParleyError("invalid_request", f"{__version__} was released with other schemas: raise the version first")
    place.mkdir(parents=True, exist_ok=True)
    export.export(place)
    return __version__
