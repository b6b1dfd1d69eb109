"""Which session topics may go: none that somebody may still read or write."""

from __future__ import annotations

from uuid import UUID

import pytest

from parley.ids import new_session, session_from_key
from parley.log.session_topics import SessionTopic, expired, keep_s, last_activity
from parley.settings import ProtocolSettings

PROTOCOL = ProtocolSettings(resume_window_s=100, max_turn_age_s=50)
PREFIX = "chat.tokens.s."
NOW = 1_800_000_000_000


def test_a_topic_stays_for_the_resume_window_and_the_age_of_a_turn() -> None:
    assert keep_s(PROTOCOL) == 150
    young, old = SessionTopic("young", NOW - 150_000), SessionTopic("old", NOW - 150_001)
    assert expired([young, old], PROTOCOL, NOW) == [old]


def test_a_topic_of_unknown_age_stays() -> None:
    assert expired([SessionTopic("unknown", None)], PROTOCOL, NOW) == []


def test_the_newest_record_tells_the_age() -> None:
    name = PREFIX + new_session(now_ms=1).hex
    assert last_activity(name, PREFIX, begin=3, end=9, newest_ms=NOW, kept_ms=5) == NOW


def test_a_topic_whose_newest_record_could_not_be_read_is_of_unknown_age() -> None:
    name = PREFIX + new_session(now_ms=1).hex
    assert last_activity(name, PREFIX, begin=3, end=9, newest_ms=None, kept_ms=5) is None


def test_a_topic_that_retention_has_emptied_is_as_old_as_retention() -> None:
    name = PREFIX + new_session(now_ms=NOW).hex
    assert last_activity(name, PREFIX, begin=9, end=9, newest_ms=None, kept_ms=5) == 5


def test_a_topic_that_was_never_written_counts_from_the_birth_of_its_session() -> None:
    name = PREFIX + new_session(now_ms=NOW).hex
    assert last_activity(name, PREFIX, begin=0, end=0, newest_ms=None, kept_ms=5) == NOW


@pytest.mark.parametrize("suffix", [session_from_key(UUID(int=1), "k").hex, "not-a-session"])
def test_an_empty_topic_whose_id_tells_no_time_is_of_unknown_age(suffix: str) -> None:
    assert last_activity(PREFIX + suffix, PREFIX, begin=0, end=0, newest_ms=None, kept_ms=5) is None
