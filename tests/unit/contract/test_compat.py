"""Which changes of an event old code and new code live with, and which they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from click.testing import CliRunner
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from parley.contract import releases
from parley.contract.cli import schemas
from parley.contract.compat import breaks
from parley.errors import ParleyError
from parley.topics import load_topics


class Value(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class A(Value):
    type: Literal["a"] = "a"
    n: int


class B(Value):
    type: Literal["b"] = "b"


class C(Value):
    type: Literal["c"] = "c"


def schema(**fields: Any) -> dict[str, Any]:
    return model(**fields).model_json_schema()


def model(**fields: Any) -> type[BaseModel]:
    """A model with these fields; a type alone is a required one."""
    given = {name: kind if isinstance(kind, tuple) else (kind, ...) for name, kind in fields.items()}
    return type(
        "Event",
        (Value,),
        {
            "__annotations__": {name: kind for name, (kind, _) in given.items()},
            **{name: default for name, (_, default) in given.items() if default is not ...},
            "__module__": __name__,
        },
    )


AB = Annotated[A | B, Field(discriminator="type")]
ABC = Annotated[A | B | C, Field(discriminator="type")]

FINE = [
    ("the same", {"x": int}, {"x": int}),
    ("a field more at the writer's", {"x": int, "y": str}, {"x": int}),
    ("a field more with a default at the reader's", {"x": int}, {"x": int, "y": (str, "")}),
    ("required now, and always written", {"x": (int, 1)}, {"x": int}),
    ("more values known than written", {"x": Literal["a"]}, {"x": Literal["a", "b"]}),
    ("a value in place of any text", {"x": Literal["a"]}, {"x": str}),
    ("never null any more", {"x": int}, {"x": int | None}),
    ("whole numbers to a reader of any", {"x": int}, {"x": float}),
    ("narrower bounds", {"x": Annotated[int, Field(ge=5, le=6)]}, {"x": Annotated[int, Field(ge=0)]}),
    ("an option fewer", {"x": AB}, {"x": ABC}),
    ("anything to who takes anything", {"x": Any}, {"x": Any}),
    ("a list of the same", {"x": tuple[A, ...]}, {"x": tuple[A, ...]}),
    ("pairs to a reader of lists", {"x": tuple[int, int]}, {"x": tuple[int, ...]}),
    ("a map of the same", {"x": dict[str, int]}, {"x": dict[str, float]}),
]

BROKEN = [
    ("a field less", {"x": int}, {"x": int, "y": str}, "y is not written, the reader needs it"),
    ("a new value", {"x": Literal["a", "b"]}, {"x": Literal["a"]}, "x may be b, which the reader does not know"),
    ("any text to who knows values", {"x": str}, {"x": Literal["a"]}, "x may be anything, the reader knows ['a']"),
    ("null now", {"x": int | None}, {"x": int}, "x is of another kind: null, the reader wants integer"),
    ("another kind", {"x": str}, {"x": int}, "x is of another kind: string, the reader wants integer"),
    ("fractions", {"x": float}, {"x": int}, "x is of another kind: number, the reader wants integer"),
    ("wider bounds", {"x": int}, {"x": Annotated[int, Field(ge=0)]}, "x minimum is free, the reader wants 0"),
    (
        "longer text",
        {"x": Annotated[str, Field(max_length=9)]},
        {"x": Annotated[str, Field(max_length=5)]},
        "x maxLength is 9, the reader wants 5",
    ),
    ("a new option", {"x": ABC}, {"x": AB}, "x.type may be c, which the reader does not know"),
    ("anything", {"x": Any}, {"x": int}, "x may be anything, the reader wants integer"),
    ("lists to a reader of pairs", {"x": tuple[int, ...]}, {"x": tuple[int, int]}, "x may have any length"),
    ("longer tuples", {"x": tuple[int, int, int]}, {"x": tuple[int, int]}, "x maxItems is 3, the reader wants 2"),
    ("another kind within a map", {"x": dict[str, str]}, {"x": dict[str, int]}, "x.* is of another kind"),
    ("a field less within a list", {"x": tuple[B, ...]}, {"x": tuple[A, ...]}, "x[].n is not written"),
    (
        "another pattern",
        {"x": Annotated[str, Field(pattern="^a")]},
        {"x": Annotated[str, Field(pattern="^b")]},
        "x pattern is '^a', the reader wants '^b'",
    ),
]


@pytest.mark.parametrize(("writer", "reader"), [case[1:] for case in FINE], ids=[case[0] for case in FINE])
def test_what_readers_live_with(writer: dict[str, Any], reader: dict[str, Any]) -> None:
    assert breaks(schema(**writer), schema(**reader)) == []


@pytest.mark.parametrize(("writer", "reader", "why"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_what_readers_refuse(writer: dict[str, Any], reader: dict[str, Any], why: str) -> None:
    found = breaks(schema(**writer), schema(**reader))
    assert any(one.startswith(why) for one in found), found


SAMPLES: list[dict[str, Any]] = [
    *({"x": value} for value in (0, 5, -1, 1.5, "a", "b", "ab", None, [1, 2], [1, 2, 3], {"k": 1}, {"k": "t"})),
    *({"x": value} for value in ({"type": "a", "n": 1}, {"type": "b"}, {"type": "c"}, [{"type": "b"}], "aaaaaaa")),
    {"x": 1, "y": "t"},
]


@pytest.mark.parametrize("case", [*FINE, *BROKEN], ids=lambda case: str(case[0]))
def test_pydantic_agrees(case: tuple[Any, ...]) -> None:
    """Where the check finds nothing, no sample that the writer can write is refused by the reader's own validation."""
    writer, reader = model(**case[1]), model(**case[2])
    refused = []
    for sample in SAMPLES:
        try:
            written = writer.model_validate_json(_json(sample)).model_dump_json()
        except ValidationError:
            continue
        try:
            reader.model_validate_json(written)
        except ValidationError:
            refused.append(written)
    assert not refused or breaks(writer.model_json_schema(), reader.model_json_schema())


def _json(sample: dict[str, Any]) -> str:
    import json

    return json.dumps(sample)


class TestReleases:
    def test_this_code_lives_beside_the_last_release(self) -> None:
        """The check of continuous integration: old records are read by new code, and new ones by old."""
        version = releases.last()
        assert releases.compare(version, releases.load(version), releases.current(), load_topics()) == []

    def test_the_newest_version_is_the_last_one_by_number(self, tmp_path: Path) -> None:
        for version in ("0.9.0", "0.10.0", "0.2.11"):
            (tmp_path / version).mkdir()
        assert releases.last(tmp_path) == "0.10.0"
        with pytest.raises(ParleyError, match="parley schemas release"):
            releases.last(tmp_path / "none")

    def test_a_new_event_is_a_break_where_old_readers_meet_it(self) -> None:
        now = releases.current()
        old = {name: told for name, told in now.items() if name != "feedback"}
        [found] = releases.compare("0.0.9", old, now, load_topics())
        assert (found.event, found.writer, found.reader) == ("feedback", "this code", "0.0.9")
        assert "chat.turns" in found.what
        alone = {name: told for name, told in now.items() if name != "pool.drain"}
        assert releases.compare("0.0.9", alone, now, load_topics()) == [], "nobody read chat.pools then"
        shown = {name: told for name, told in now.items() if name != "offsets.moved"}
        assert releases.compare("0.0.9", shown, now, load_topics()) == [], "only tools read chat.audit"

    def test_an_event_that_is_gone_is_a_break_for_what_lies_in_the_log(self) -> None:
        now = releases.current()
        [found] = releases.compare("0.0.9", now | {"nudge": {}}, now, load_topics())
        assert (found.event, found.writer, found.reader) == ("nudge", "0.0.9", "this code")

    def test_a_version_is_released_once(self, tmp_path: Path) -> None:
        version = releases.release(tmp_path)
        assert releases.release(tmp_path) == version
        (tmp_path / version / "cancel.json").write_text("{}")
        with pytest.raises(ParleyError, match="raise the version first"):
            releases.release(tmp_path)

    def test_the_command_says_it_in_its_exit_code(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert CliRunner().invoke(schemas, ["check"]).exit_code == 0
        released = releases.load(releases.last())
        del released["cancel"]["properties"]["at"]
        monkeypatch.setattr(releases, "load", lambda version: released)
        broken = CliRunner().invoke(schemas, ["check", "--json"])
        assert broken.exit_code == 1
        assert "at is not written, the reader needs it" in broken.output
