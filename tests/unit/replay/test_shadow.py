"""A replay's names and marks, and what a role in shadow is given."""

from __future__ import annotations

import pytest

from parley.errors import ParleyError
from parley.log.held import Held
from parley.log.ranges import Record
from parley.topics import CONTROL, DLQ, PROMPTS, TOKENS, TURNS, VERDICTS, load_topics
from producers.replay.prompts import Prompts
from producers.replay.shadow import SOURCE_HEADER, Shadow, ShadowRole
from producers.replay.stage import own_topic
from schemas.wire import REPLAY_HEADER, BadRecord, header
from tests.unit.core.core_events import response
from tests.unit.replay.replay_parts import prompt, record

SHADOW = Shadow("r1")
MARKS = ((REPLAY_HEADER, b"r1"), (SOURCE_HEADER, b"chat.prompts-3@120"))


class Noting:
    """A role that notes what it is given."""

    def __init__(self) -> None:
        self.given: list[Record] = []

    async def take(self, taken: list[Held]) -> None: ...

    def record(self, held: Held, record: Record) -> None:
        self.given.append(record)

    async def give_up(self, held: Held, record: Record, error: BadRecord) -> None: ...

    def drop(self, held: Held) -> None: ...


class Ends:
    """Of a holding, what a shadow uses: which records were ended."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def end(self, offset: int) -> None:
        self.offsets.append(offset)


class TestNames:
    def test_every_name_is_the_replays_own(self) -> None:
        assert SHADOW.name("chat.verdicts") == "replay.r1.chat.verdicts"

    @pytest.mark.parametrize("name", ["", "a.b", "Upper", "-x", "x" * 41, "a b", "../x"])
    def test_a_name_that_could_reach_another_replays_topics_is_none(self, name: str) -> None:
        with pytest.raises(ParleyError, match="names no replay"):
            Shadow(name)


class TestTopics:
    @pytest.mark.parametrize("name", [PROMPTS, VERDICTS, TOKENS, TURNS, CONTROL, DLQ])
    def test_what_was_done_yesterday_is_there_when_it_goes_on_today(self, name: str) -> None:
        """Live verdicts and tokens are kept for two hours; the commits that say that they are there, for days."""
        live = load_topics().topics[name]
        own = own_topic(SHADOW, live)
        assert own.retention_ms is not None
        assert own.retention_ms >= 2 * 86_400_000
        assert (own.name, own.partitions, own.cleanup) == (f"replay.r1.{name}", live.partitions, "delete")


class TestMarks:
    def test_what_it_writes_carries_its_id_once_and_the_source_of_the_response(self) -> None:
        shadow = Shadow("r1", {response(1): "chat.prompts-3@120"})
        written = shadow.marked((("response", response(1).encode()), (REPLAY_HEADER, b"other")))
        assert [pair for pair in written if pair[0] in (REPLAY_HEADER, SOURCE_HEADER)] == [MARKS[1], MARKS[0]]

    def test_the_role_meets_a_record_as_it_was_live(self) -> None:
        role, ends = Noting(), Ends()
        mine = record(prompt(), "replay.r1.chat.prompts", more=MARKS)
        ShadowRole(role, SHADOW).record(ends, mine)  # type: ignore[arg-type]
        [met] = role.given
        assert (met.topic, met.value) == ("chat.prompts", mine.value)
        assert header(met.headers, REPLAY_HEADER) is None
        assert header(met.headers, "response") == response(1)
        assert SHADOW.sources[response(1)] == "chat.prompts-3@120"

    @pytest.mark.parametrize("marks", [(), ((REPLAY_HEADER, b"r2"),)])
    def test_what_another_hand_put_into_its_topic_is_let_go(self, marks: tuple[tuple[str, bytes], ...]) -> None:
        role, ends = Noting(), Ends()
        ShadowRole(role, SHADOW).record(ends, record(prompt(), "replay.r1.chat.prompts", 7, more=marks))  # type: ignore[arg-type]
        assert (role.given, ends.offsets) == ([], [7])


class TestPromptsOfASlice:
    def test_what_a_replay_wrote_is_not_replayed_again(self) -> None:
        found = Prompts()
        found.add(record(prompt(1)))
        found.add(record(prompt(2), more=MARKS))
        assert list(found.taken) == [response(1)]
        assert found.passed_over["replayed"] == 1

    def test_one_that_an_edge_sent_twice_is_one_prompt_and_an_unreadable_one_is_counted(self) -> None:
        found = Prompts()
        for value in (prompt(1), prompt(1), b"{"):
            found.add(record(value))
        assert len(found.taken) == 1
        assert found.passed_over == {"replayed": 0, "repeated": 1, "unreadable": 1}
