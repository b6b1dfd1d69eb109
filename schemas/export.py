"""Every event's JSON Schema, in schemas/json: what the log carries, for readers in other languages and for reviews.

python -m schemas.export            writes the files
python -m schemas.export --check    exits 1 and names them when they differ from the code
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from schemas.wire import EVENTS

FOLDER = Path(__file__).resolve().parent / "json"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def render(event: type[BaseModel]) -> str:
    """The event's schema as it is written by the system. The same code always gives the same text."""
    schema = {"$schema": DIALECT, **event.model_json_schema()}
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def schemas() -> dict[str, str]:
    """File name to content, of every event."""
    return {f"{name}.json": render(event) for name, event in sorted(EVENTS.items())}


def differences(folder: Path = FOLDER) -> list[str]:
    """Names of files that are missing, differ, or belong to no event."""
    wanted = schemas()
    found = {path.name: path.read_text() for path in folder.glob("*.json")}
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def export(folder: Path = FOLDER) -> None:
    """Write every schema, and remove those of events that are no more."""
    folder.mkdir(exist_ok=True)
    wanted = schemas()
    for path in folder.glob("*.json"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text)


def main(arguments: Sequence[str]) -> int:
    """The command; returns its exit code."""
    if list(arguments) not in ([], ["--check"]):
        sys.stderr.write("usage: python -m schemas.export [--check]\n")
        return 2
    if not arguments:
        export()
        return 0
    if differing := differences():
        sys.stderr.write(f"schemas/json differs in {', '.join(differing)}: run `python -m schemas.export`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
