"""Ids that carry their own address, and that nobody but their user can use."""

from __future__ import annotations

from uuid import UUID

import pytest
from core_events import KEYS, SOMEBODY_ELSE, USER
from hypothesis import given
from hypothesis import strategies as st

from parley.ids import (
    SESSION_TOPIC_LANE,
    Keys,
    UnknownId,
    conversation_id,
    message_id,
    new_response_id,
    new_session,
    parse_conversation_id,
    parse_message_id,
    parse_response_id,
    response_address,
    session_created_ms,
    session_from_key,
)

NOW = 1_764_500_000_123
OLD_KEY, NEW_KEY = b"old" * 8, b"new" * 8
sessions = st.builds(new_session, st.integers(0, 4095), st.integers(0, 2**48 - 1))
users = st.uuids()


class TestSessions:
    @given(st.integers(0, 4095), st.integers(0, 2**48 - 1))
    def test_a_session_is_a_uuid7_that_holds_its_cell(self, cell: int, now_ms: int) -> None:
        session = new_session(cell, now_ms)
        assert (session.version, session.variant) == (7, UUID(int=0x8 << 60).variant)
        assert (session.int >> 64) & 0xFFF == cell
        assert session_created_ms(session) == now_ms

    def test_two_of_a_millisecond_differ(self) -> None:
        assert new_session(0, NOW) != new_session(0, NOW)

    @given(users, st.text(max_size=64), st.integers(0, 4095))
    def test_a_key_names_the_same_session_on_every_edge(self, user: UUID, key_hash: str, cell: int) -> None:
        session = session_from_key(user, key_hash, cell)
        assert session == session_from_key(user, key_hash, cell)
        assert session.version == 8
        assert (session.int >> 64) & 0xFFF == cell
        assert session_created_ms(session) is None

    def test_the_same_key_of_two_users_names_two_sessions(self) -> None:
        assert session_from_key(USER, "k") != session_from_key(SOMEBODY_ELSE, "k")


class TestRoundTrips:
    @given(users, sessions)
    def test_conversation(self, user: UUID, session: UUID) -> None:
        assert parse_conversation_id(KEYS, user, conversation_id(KEYS, user, session)) == session

    @given(users, sessions, st.integers(0, 0xFFFF), st.integers(0, 2**48 - 1), st.integers(0, 2**48 - 1))
    def test_response(self, user: UUID, session: UUID, lane: int, start: int, now_ms: int) -> None:
        text = new_response_id(KEYS, user, session, lane, start, now_ms)
        address = parse_response_id(KEYS, user, text)
        assert (address.session, address.lane, address.start) == (session, lane, start)
        assert address.accepted_ms == now_ms
        assert response_address(text) == address

    @given(sessions, st.integers(0, 0xFFFF))
    def test_message(self, session: UUID, position: int) -> None:
        response = new_response_id(KEYS, USER, session, 1, 2, NOW)
        assert parse_message_id(message_id(response, position)) == (response, position)

    def test_two_responses_of_one_moment_differ(self) -> None:
        session = new_session()
        assert new_response_id(KEYS, USER, session, 1, 2, NOW) != new_response_id(KEYS, USER, session, 1, 2, NOW)


class TestRoutes:
    def test_a_lane(self) -> None:
        address = response_address(new_response_id(KEYS, USER, new_session(), 5, 99, NOW))
        route = address.route("chat.tokens", "chat.tokens.s.")
        assert (route.topic, route.partition, route.start) == ("chat.tokens", 5, 99)

    def test_the_sessions_own_topic(self) -> None:
        session = new_session()
        address = response_address(new_response_id(KEYS, USER, session, SESSION_TOPIC_LANE, 7, NOW))
        route = address.route("chat.tokens", "chat.tokens.s.")
        assert (route.topic, route.partition, route.start) == (f"chat.tokens.s.{session.hex}", 0, 7)


class TestRefusals:
    def test_somebody_elses(self) -> None:
        session = new_session()
        with pytest.raises(UnknownId):
            parse_conversation_id(KEYS, SOMEBODY_ELSE, conversation_id(KEYS, USER, session))
        with pytest.raises(UnknownId):
            parse_response_id(KEYS, SOMEBODY_ELSE, new_response_id(KEYS, USER, session, 1, 2, NOW))

    def test_an_id_of_another_kind(self) -> None:
        session = new_session()
        response = new_response_id(KEYS, USER, session, 1, 2, NOW)
        conversation = conversation_id(KEYS, USER, session)
        with pytest.raises(UnknownId):
            parse_conversation_id(KEYS, USER, "conv_" + response.removeprefix("resp_"))
        with pytest.raises(UnknownId):
            parse_response_id(KEYS, USER, "resp_" + conversation.removeprefix("conv_"))
        with pytest.raises(UnknownId):
            parse_response_id(KEYS, USER, conversation)

    @given(st.integers(0, 55), st.sampled_from("ABab01-_"))
    def test_one_letter_changed(self, at: int, letter: str) -> None:
        text = new_response_id(KEYS, USER, new_session(), 1, 2, NOW)
        place = len("resp_") + at
        changed = text[:place] + letter + text[place + 1 :]
        if changed != text:
            with pytest.raises(UnknownId):
                parse_response_id(KEYS, USER, changed)

    @given(st.text(max_size=80))
    def test_anything_else_that_somebody_may_type(self, text: str) -> None:
        for kind in ("", "conv_", "resp_", "msg_"):
            with pytest.raises(UnknownId):
                parse_conversation_id(KEYS, USER, kind + text)
            with pytest.raises(UnknownId):
                parse_response_id(KEYS, USER, kind + text)
            with pytest.raises(UnknownId):
                parse_message_id(kind + text)

    def test_an_id_has_one_spelling(self) -> None:
        session = new_session()
        text = conversation_id(KEYS, USER, session)
        padded, spaced = text + "==", text[:9] + "\n" + text[9:]
        standard = text.replace("-", "+").replace("_", "/").replace("conv/", "conv_")
        for other in {padded, spaced, standard, text + " ", text.upper()} - {text}:
            with pytest.raises(UnknownId):
                parse_conversation_id(KEYS, USER, other)

    def test_the_message_does_not_tell_a_foreign_id_from_a_forged_one(self) -> None:
        text = conversation_id(KEYS, USER, new_session())
        reasons = set()
        for keys, user in ((KEYS, SOMEBODY_ELSE), (Keys((b"another",)), USER)):
            with pytest.raises(UnknownId) as refused:
                parse_conversation_id(keys, user, text)
            reasons.add(str(refused.value))
        assert len(reasons) == 1


class TestKeyRotation:
    def test_ids_of_the_key_before_are_still_accepted(self) -> None:
        session = new_session()
        old = conversation_id(Keys((OLD_KEY,)), USER, session)
        assert parse_conversation_id(Keys((NEW_KEY, OLD_KEY)), USER, old) == session

    def test_new_ids_are_made_with_the_first(self) -> None:
        session = new_session()
        assert conversation_id(Keys((NEW_KEY, OLD_KEY)), USER, session) == conversation_id(
            Keys((NEW_KEY,)), USER, session
        )

    def test_ids_of_a_key_that_is_gone_are_refused(self) -> None:
        old = conversation_id(Keys((OLD_KEY,)), USER, new_session())
        with pytest.raises(UnknownId):
            parse_conversation_id(Keys((NEW_KEY,)), USER, old)
