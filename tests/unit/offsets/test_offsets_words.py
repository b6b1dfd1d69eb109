"""What an operator is told before offsets are moved, when that is refused, and what is shown."""

from __future__ import annotations

import click
import pytest
from aiokafka import TopicPartition
from rich.console import Console

from consumers.lag.groups import expected
from parley.errors import ParleyError
from parley.log.groups import GroupState, Member
from parley.offsets.cli import Where
from parley.offsets.consequences import in_use, known, require_empty, require_sound, words
from parley.offsets.plan import At, Place, Plan, Target, plan
from parley.offsets.show import done, table, title
from parley.ownership import Claim
from parley.settings import ProtocolSettings
from parley.topics import load_topics

PROTOCOL = ProtocolSettings()
WHERE = TopicPartition("chat.turns", 3)
GROUPS = [group.name for group in expected(load_topics(), PROTOCOL)]


def moved(group: str, target: Target, committed: int | None = 40, *, takeover: int = 0) -> Plan:
    metadata = Claim("x:1", takeover).encode(40) if takeover else ""
    place = Place(WHERE, 10, 100, None if committed is None else (committed, metadata))
    return plan(group, target, [place], claimed=bool(takeover))


def said(planned: Plan) -> str:
    return "\n".join(words(planned, PROTOCOL))


def shown(planned: Plan) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table(planned), markup=False)
    return capture.get()


def state(kafka_state: str, *members: str, group: str = "history-sessions") -> GroupState:
    held = frozenset({WHERE})
    return GroupState(group, kafka_state, tuple(Member(m, "10.0.0.1", frozenset(), held) for m in members), {})


class TestRefusals:
    def test_a_group_with_members_is_told_with_its_state_who_they_are_and_what_to_stop(self) -> None:
        with pytest.raises(ParleyError) as refused:
            require_empty(state("Stable", "history-sessions-0"))
        message = refused.value.message
        assert "is Stable with 1 member: history-sessions-0 at 10.0.0.1 with 1 partitions" in message
        assert "every `parley history --store sessions` first" in message

    def test_a_workers_command_has_its_pool(self) -> None:
        assert "`parley worker --pool smol`" in (in_use(state("Stable", "a", group="worker-smol")) or "")

    @pytest.mark.parametrize("kafka_state", ["PreparingRebalance", "CompletingRebalance", "Dead"])
    def test_only_an_empty_group_is_moved(self, kafka_state: str) -> None:
        assert kafka_state in (in_use(state(kafka_state)) or "")
        assert in_use(state("Empty")) is None

    def test_history_messages_never_skips_what_it_has_not_stored(self) -> None:
        """Its offset is the orchestrators' watermark."""
        with pytest.raises(ParleyError, match="would skip 60 records"):
            require_sound(moved("history-messages", "latest"))
        with pytest.raises(ParleyError, match="would skip"):
            require_sound(moved("history-messages", "latest", None))
        require_sound(moved("history-messages", "earliest"))
        require_sound(moved("history-messages", "earliest", 2))  # retention took the rest
        require_sound(moved("history-sessions", "latest"))


class TestWords:
    @pytest.mark.parametrize("group", GROUPS)
    def test_every_group_of_ours_is_known_by_what_reading_again_does(self, group: str) -> None:
        assert known(group) is not None
        assert "read again: " in said(moved(group, "earliest"))

    @pytest.mark.parametrize("group", sorted(set(GROUPS) - {"history-messages"}))
    def test_and_by_what_skipping_loses(self, group: str) -> None:
        assert "skipped: " in said(moved(group, "latest"))

    def test_turns_that_lose_their_end_are_named(self) -> None:
        assert "never answered" in said(moved("orchestrator", "latest", takeover=3))
        assert "no end until the orchestrator ends them, 30m after" in said(moved("worker-smol", "latest", takeover=3))

    def test_who_wants_answers_again_is_shown_the_way(self) -> None:
        told = said(moved("orchestrator", "earliest", takeover=3))
        assert "older than 30m are never run" in told
        assert "`parley replay run`" in told

    def test_a_claim_that_another_tool_has_lost_is_told(self) -> None:
        assert "no claim in chat.turns-3" in said(moved("orchestrator", "earliest"))
        assert "no claim" not in said(moved("orchestrator", "earliest", takeover=3))
        assert "no claim" not in said(moved("history-sessions", "earliest"))

    def test_of_strange_groups_nothing_is_promised(self) -> None:
        assert "none of Parley's groups" in said(moved("billing", "earliest"))


class TestShown:
    def test_the_group_and_the_target(self) -> None:
        assert title(state("Empty"), moved("history-sessions", At(1_796_040_000_123))) == (
            "history-sessions: Empty, no members; to the first record from 2026-11-30 12:00:00.123 UTC on"
        )

    def test_each_partition_with_what_is_special_about_it(self) -> None:
        [line] = [
            line for line in shown(moved("orchestrator", "earliest", takeover=7)).splitlines() if "turns-3" in line
        ]
        assert line.split() == ["chat.turns-3", "10–100", "40", "10", "30", "0", "takeover", "7", "->", "8"]
        assert "no record since then: the end" in shown(moved("g", At(1)))
        assert "400 past the log's end" in shown(moved("g", "earliest", 500))
        assert "retention took 8 before they were done" in shown(moved("g", "latest", 2))
        assert "stays" in shown(moved("g", 40))

    def test_what_is_read_back_is_compared_with_what_was_committed(self) -> None:
        planned = moved("g", "earliest", takeover=7)
        commits = planned.commits("ada@desk:00")
        assert done(planned, commits, commits) == (["chat.turns-3  40 -> 10"], 0)
        assert done(planned, commits, {WHERE: (100, "")}) == (["chat.turns-3  40 -> 100  WRONG: not 10"], 1)
        assert done(planned, commits, {WHERE: (10, "")}) == (["chat.turns-3  40 -> 10  WRONG: another's claim"], 1)
        assert done(planned, commits, {}) == (["chat.turns-3  40 -> none  WRONG: not 10"], 1)


class TestWhere:
    @pytest.mark.parametrize(
        ("text", "target"),
        [
            ("earliest", "earliest"),
            ("latest", "latest"),
            ("120", 120),
            ("2026-11-30T12:00:00.123", At(1_796_040_000_123)),
        ],
    )
    def test_what_can_be_asked_for(self, text: str, target: Target) -> None:
        assert Where().convert(text, None, None) == target

    @pytest.mark.parametrize("text", ["newest", "-5", "12:00x", ""])
    def test_anything_else_is_refused_with_what_can(self, text: str) -> None:
        with pytest.raises(click.BadParameter, match="neither earliest, latest, an offset"):
            Where().convert(text, None, None)
