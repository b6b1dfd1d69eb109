"""What a slice of the log is: which offsets are asked for, and whose records within them."""

from __future__ import annotations

import pytest

from parley.errors import ParleyError
from parley.topics import TOKENS, TURNS
from producers.replay.slices import Slice, Wanted, parse_offsets
from schemas.routes import encode_route_record
from tests.unit.core.core_events import SESSION, SOMEBODY_ELSE, USER, ended, opened, response
from tests.unit.replay.replay_parts import prompt, record

OTHER = "01890000000070008000000000000099"


class TestOffsets:
    def test_a_range_ends_before_its_end_and_one_record_is_a_range_too(self) -> None:
        assert parse_offsets(("3:100-120", "7@5")) == {3: (100, 120), 7: (5, 6)}

    def test_without_an_end_it_goes_on_to_the_end_of_the_log(self) -> None:
        start, end = parse_offsets(("0:10-",))[0]
        assert (start, end > 1 << 60) == (10, True)

    @pytest.mark.parametrize("text", ["3", "3:7", "a:1-2", "3:5-4-3", ""])
    def test_what_is_no_range_is_refused_with_what_to_give(self, text: str) -> None:
        with pytest.raises(ParleyError, match="give PARTITION:START-END"):
            parse_offsets((text,))

    def test_a_partition_is_given_once(self) -> None:
        with pytest.raises(ParleyError, match="twice"):
            parse_offsets(("3:1-2", "3:5-6"))

    def test_a_slice_says_where_to_begin(self) -> None:
        assert not Wanted(user=USER).bounded
        assert Wanted(since=0).bounded


class TestWhoseRecords:
    def test_a_session_by_the_key(self) -> None:
        assert Slice(topic=TURNS, spans={}, session=SESSION.hex).takes(record(ended(1), TURNS))
        assert not Slice(topic=TURNS, spans={}, session=OTHER).takes(record(ended(1), TURNS))

    def test_a_session_on_a_shared_lane_by_the_response(self) -> None:
        token = record(encode_route_record((opened(),)), TOKENS, key=response(1).encode())
        assert Slice(topic=TOKENS, spans={}, session=SESSION.hex).takes(token)
        assert not Slice(topic=TOKENS, spans={}, session=OTHER).takes(token)

    def test_a_response_by_the_header_or_the_key(self) -> None:
        one = Slice(topic=TURNS, spans={}, response=response(1))
        assert one.takes(record(ended(1), TURNS))
        assert one.takes(record(encode_route_record((opened(),)), TOKENS, key=response(1).encode()))
        assert not one.takes(record(ended(2), TURNS))

    def test_a_user_by_what_the_record_says(self) -> None:
        assert Slice(topic=TURNS, spans={}, user=USER).takes(record(prompt()))
        assert not Slice(topic=TURNS, spans={}, user=SOMEBODY_ELSE).takes(record(prompt()))
        assert not Slice(topic=TURNS, spans={}, user=USER).takes(record(b"no event"))

    def test_its_size_is_counted_in_offsets(self) -> None:
        assert Slice(topic=TURNS, spans={0: (3, 10), 5: (0, 1)}).size == 8
