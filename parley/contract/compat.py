"""Can a reader with one JSON Schema read everything that a writer with another one writes? Pure.

Both are schemas of pydantic models as schemas.export makes them. A writer writes every property of its schema, also
those with defaults (`model_dump_json` leaves nothing out); a reader ignores properties that it does not know, and
refuses a missing one only when it is required. What is not known to be harmless counts as a break.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]

NOTES = frozenset({"title", "description", "default", "examples", "discriminator", "$schema", "$defs"})
"""Keywords that refuse nothing."""
HANDLED = frozenset(
    {"$ref", "anyOf", "oneOf", "type", "const", "enum", "properties", "required", "additionalProperties"}
    | {"items", "prefixItems", "minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum"}
)
"""Keywords with a rule of their own here; any other must be the same on both sides."""
LOWER, UPPER = ("minimum", "minItems", "minLength"), ("maximum", "maxItems", "maxLength")
_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def breaks(writer: Schema, reader: Schema) -> list[str]:
    """Every way in which something written may be refused, each as place and reason. Empty: the reader reads all."""
    return list(dict.fromkeys(_Comparison(writer, reader).walk(writer, reader, "")))


class _Comparison:
    def __init__(self, writer: Schema, reader: Schema) -> None:
        self._writer = writer
        self._reader = reader

    def walk(self, writer: Schema, reader: Schema, at: str) -> Iterator[str]:
        """The breaks of one place, and of all below it."""
        writer, reader = _resolved(writer, self._writer), _resolved(reader, self._reader)
        if not reader.keys() - NOTES:
            return  # anything goes
        options = _options(writer)
        if options is not None:
            for option in options:
                yield from self.walk(option, reader, at)
            return
        options = _options(reader)
        if options is not None:
            yield from self._any_of(writer, options, at)
            return
        yield from self._values(writer, reader, at)
        yield from _bounds(writer, reader, at)
        yield from self._object(writer, reader, at)
        yield from self._array(writer, reader, at)
        for keyword in sorted(reader.keys() - NOTES - HANDLED):
            if writer.get(keyword) != reader[keyword]:
                yield _said(at, f"{keyword} is {writer.get(keyword, 'free')!r}, the reader wants {reader[keyword]!r}")

    def _any_of(self, writer: Schema, options: Sequence[Schema], at: str) -> Iterator[str]:
        found = [list(self.walk(writer, option, at)) for option in options]
        if all(found):
            # Of several reasons the shortest list is of the option that was meant.
            yield from min(found, key=lambda reasons: ("of another kind" in reasons[0], len(reasons)))

    def _values(self, writer: Schema, reader: Schema, at: str) -> Iterator[str]:
        written, known = _constants(writer), _constants(reader)
        if known is not None:
            if written is None:
                yield _said(at, f"may be anything, the reader knows {known}")
            elif new := [value for value in written if value not in known]:
                yield _said(at, f"may be {', '.join(map(str, new))}, which the reader does not know")
        if "type" in reader:
            kinds = _types(writer, written)
            if not kinds:
                yield _said(at, f"may be anything, the reader wants {reader['type']}")
            for kind in sorted(kinds):
                if kind != reader["type"] and (kind, reader["type"]) != ("integer", "number"):
                    yield _said(at, f"is of another kind: {kind}, the reader wants {reader['type']}")

    def _object(self, writer: Schema, reader: Schema, at: str) -> Iterator[str]:
        written, known = writer.get("properties", {}), reader.get("properties", {})
        for name in reader.get("required", ()):
            if name not in written:
                yield _said(f"{at}.{name}", "is not written, the reader needs it")
        for name in written.keys() & known.keys():
            yield from self.walk(written[name], known[name], f"{at}.{name}")
        rest = reader.get("additionalProperties", True)
        if rest is False:
            for name in sorted(written.keys() - known.keys()):
                yield _said(f"{at}.{name}", "is refused by the reader")
        elif isinstance(rest, Mapping):
            more = writer.get("additionalProperties", True)
            yield from self.walk(more if isinstance(more, Mapping) else {}, rest, f"{at}.*")

    def _array(self, writer: Schema, reader: Schema, at: str) -> Iterator[str]:
        places, known = writer.get("prefixItems"), reader.get("prefixItems")
        if known is not None:
            if places is None:
                yield _said(at, f"may have any length, the reader wants {len(known)} values")
            for number, (one, other) in enumerate(zip(places or (), known, strict=False)):
                yield from self.walk(one, other, f"{at}[{number}]")
        elif "items" in reader:
            for one in places if places is not None else (writer.get("items", {}),):
                yield from self.walk(one, reader["items"], f"{at}[]")


def _resolved(schema: Schema, root: Schema) -> Schema:
    while "$ref" in schema:
        found: Schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
        schema = found
    return schema


def _options(schema: Schema) -> Sequence[Schema] | None:
    options: Sequence[Schema] | None = schema.get("anyOf") or schema.get("oneOf")
    return options


def _constants(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return list(schema["enum"]) if "enum" in schema else None


def _types(schema: Schema, constants: list[Any] | None) -> set[str]:
    if "type" in schema:
        return {schema["type"]}
    return {_JSON_TYPES[type(value)] for value in constants or ()}


def _bounds(writer: Schema, reader: Schema, at: str) -> Iterator[str]:
    for keyword in LOWER:
        if keyword in reader and writer.get(keyword, float("-inf")) < reader[keyword]:
            yield _said(at, f"{keyword} is {writer.get(keyword, 'free')}, the reader wants {reader[keyword]}")
    for keyword in UPPER:
        if keyword in reader and writer.get(keyword, float("inf")) > reader[keyword]:
            yield _said(at, f"{keyword} is {writer.get(keyword, 'free')}, the reader wants {reader[keyword]}")


def _said(at: str, what: str) -> str:
    return f"{at.removeprefix('.') or 'record'} {what}"
