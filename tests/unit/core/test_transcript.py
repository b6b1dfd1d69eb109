"""The fold of a route: what counts, what is void, and that every reader folds to the same text and the same end."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from core_events import delta, fence, opened, terminal
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.transcript import Transcript, Void
from schemas.base import Epoch
from schemas.routes import Delta, Fence, Opened, Terminal, decode_route_record, encode_delta, encode_route_record

RouteEvent = Opened | Fence | Delta | Terminal


def folded(*events: RouteEvent) -> Transcript:
    transcript = Transcript()
    for event in events:
        transcript.apply(event)
    return transcript


class TestFences:
    def test_the_first_fence_becomes_current(self) -> None:
        transcript = Transcript()
        assert transcript.apply(fence((1, 1, 1, 1), "w1")) is None
        assert transcript.epoch == (1, 1, 1, 1)
        assert transcript.holds(fence((1, 1, 1, 1), "w1"))

    @pytest.mark.parametrize("greater", [(2, 1, 1, 1), (1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2)])
    def test_a_fence_is_greater_by_its_first_number_that_differs(self, greater: Epoch) -> None:
        transcript = folded(fence((1, 1, 1, 1), "w1"))
        assert transcript.apply(fence(greater, "w2")) is None
        assert transcript.apply(fence((1, 1, 1, 1), "w1")) is Void.OLD_EPOCH
        assert transcript.holds(fence(greater, "w2"))

    def test_dispatch_comes_before_takeover_and_takeover_before_run(self) -> None:
        transcript = folded(fence((1, 2, 1, 1), "w2"))
        assert transcript.apply(fence((1, 1, 9, 9), "w1")) is Void.OLD_EPOCH

    def test_an_equal_fence_is_void_and_its_writer_does_not_hold(self) -> None:
        transcript = folded(fence((1, 1, 1, 1), "w1"))
        assert transcript.apply(fence((1, 1, 1, 1), "w2")) is Void.OLD_EPOCH
        assert not transcript.holds(fence((1, 1, 1, 1), "w2"))

    def test_a_greater_fence_keeps_the_text_and_says_where_it_was_continued(self) -> None:
        transcript = folded(fence(), delta(0, "Hel"), delta(1, "lo"), fence((1, 1, 2, 1), "w2"), delta(2, "!", "w2"))
        assert transcript.text == "Hello!"
        assert transcript.joins == [5]

    def test_a_fence_before_the_first_text_is_no_join(self) -> None:
        assert folded(fence(), fence((1, 1, 1, 2), "w2"), delta(0, "a", "w2")).joins == []

    def test_nothing_follows_the_end(self) -> None:
        transcript = folded(fence(), delta(0, "a"), terminal(1))
        late = [fence((9, 9, 9, 9), "w9"), delta(1, "b"), delta(2, "b"), terminal(1), terminal(2)]
        assert [transcript.apply(event) for event in late] == [Void.ENDED] * 5
        assert transcript.text == "a"
        assert transcript.voids == 5


class TestDeltasAndTerminals:
    def test_nothing_counts_before_the_first_fence(self) -> None:
        transcript = Transcript()
        assert transcript.apply(delta(0, "a")) is Void.OTHER_WRITER
        assert transcript.apply(terminal(0)) is Void.OTHER_WRITER

    def test_deltas_are_appended_in_their_sequence(self) -> None:
        transcript = folded(fence(), delta(0, "a", tokens=2), delta(1, "b", tokens=3))
        assert (transcript.text, transcript.seq, transcript.tokens) == ("ab", 2, 5)

    @pytest.mark.parametrize("seq", [0, 2])
    def test_a_delta_that_repeats_or_skips_is_void(self, seq: int) -> None:
        transcript = folded(fence(), delta(0, "a"))
        assert transcript.apply(delta(seq, "b")) is Void.WRONG_SEQ
        assert transcript.text == "a"

    def test_an_older_writer_is_void_after_its_successors_fence(self) -> None:
        transcript = folded(fence((1, 1, 1, 1), "w1"), delta(0, "a", "w1"), fence((1, 1, 2, 1), "w2"))
        assert transcript.apply(delta(1, "zombie", "w1")) is Void.OTHER_WRITER
        assert transcript.apply(terminal(1, "w1")) is Void.OTHER_WRITER
        assert transcript.apply(delta(1, "b", "w2")) is None

    def test_the_terminal_needs_the_next_number_too(self) -> None:
        transcript = folded(fence(), delta(0, "a"))
        assert transcript.apply(terminal(0)) is Void.WRONG_SEQ
        assert transcript.apply(terminal(2)) is Void.WRONG_SEQ
        assert transcript.apply(terminal(1)) is None
        assert transcript.terminal == terminal(1)


class TestOpened:
    def test_it_may_come_first_in_between_or_after_the_end(self) -> None:
        run: list[RouteEvent] = [fence(), delta(0, "a"), terminal(1)]
        for place in range(4):
            transcript = folded(*run[:place], opened(waiting=True), *run[place:])
            assert transcript.opened == opened(waiting=True)
            assert (transcript.text, transcript.terminal) == ("a", terminal(1))

    def test_only_the_first_counts(self) -> None:
        transcript = folded(opened(waiting=True))
        assert transcript.apply(opened(waiting=False)) is Void.OPENED_AGAIN
        assert transcript.opened == opened(waiting=True)


# Writers that know nothing of each other: each fences, and then goes on from what the log said at its fence, for as
# long as it likes. The order in which their records land is the schedule.
epochs = st.tuples(st.just(1), st.integers(1, 2), st.integers(1, 3), st.integers(1, 2))
texts = st.sampled_from(["a", "bc", "def", "é", "🙂"])


@st.composite
def routes(draw: st.DrawFn) -> list[RouteEvent]:
    """A log as writers leave it that obey the protocol and may be zombies: stalled at any moment, waking later."""
    random_of = random.Random(draw(st.integers(0, 2**32)))
    log: list[RouteEvent] = []
    waiting: list[list[RouteEvent]] = []
    for number, epoch in enumerate(draw(st.lists(epochs, min_size=1, max_size=5, unique=True))):
        writer = f"w{number}"
        log.append(fence(epoch, writer))
        seen = folded(*log)
        if not seen.holds(fence(epoch, writer)):
            continue
        pieces = draw(st.lists(texts, max_size=4))
        rest: list[RouteEvent] = [delta(seen.seq + at, text, writer) for at, text in enumerate(pieces)]
        if draw(st.booleans()):
            rest.append(terminal(seen.seq + len(pieces), writer))
        waiting.append(rest)
        for _ in range(draw(st.integers(0, 6))):  # anybody who is awake writes, each in its own order
            if writers := [records for records in waiting if records]:
                log.append(random_of.choice(writers).pop(0))
    while writers := [records for records in waiting if records]:
        log.append(random_of.choice(writers).pop(0))
    for _ in range(draw(st.integers(0, 2))):
        log.insert(random_of.randrange(len(log) + 1), opened(waiting=draw(st.booleans())))
    return log


@settings(max_examples=300)
@given(routes())
def test_a_reader_at_any_moment_has_seen_a_beginning_of_what_everybody_will_see(log: list[RouteEvent]) -> None:
    transcript = Transcript()
    seen = [""]
    for event in log:
        transcript.apply(event)
        seen.append(transcript.text)
    assert all(later.startswith(earlier) for earlier, later in pairwise(seen))


@settings(max_examples=100)
@given(routes())
def test_two_readers_fold_to_the_same(log: list[RouteEvent]) -> None:
    assert folded(*log) == folded(*log)


@settings(max_examples=100)
@given(routes())
def test_void_events_might_as_well_not_be_there(log: list[RouteEvent]) -> None:
    whole, kept = Transcript(), list[RouteEvent]()
    for event in log:
        if whole.apply(event) is None:
            kept.append(event)
    without = folded(*kept)
    assert without.voids == 0
    assert (without.deltas, without.terminal, without.opened) == (whole.deltas, whole.terminal, whole.opened)
    assert without.joins == whole.joins


@settings(max_examples=100)
@given(routes())
def test_what_each_run_adds_follows_what_was_there_at_its_fence(log: list[RouteEvent]) -> None:
    """A writer goes on from the fold at its fence, so no text is lost or said twice, whoever else was writing."""
    transcript, at_fence = Transcript(), dict[str, int]()
    for event in log:
        before = transcript.seq
        counts = transcript.apply(event) is None
        if isinstance(event, Fence) and counts:
            at_fence[event.writer] = before
        elif isinstance(event, Delta) and counts:
            assert event.seq >= at_fence[event.writer]
            assert event.writer == (transcript.fence.writer if transcript.fence else None)


@settings(max_examples=100)
@given(routes())
def test_records_may_pack_several_events(log: list[RouteEvent]) -> None:
    """How a writer cuts its events into records changes nothing."""
    packed = decode_route_record(encode_route_record(tuple(log)))
    assert packed == tuple(log)
    assert folded(*packed) == folded(*log)


@given(st.text(), st.integers(0, 1_000), st.integers(0, 10))
def test_the_fast_encoding_of_a_delta_reads_like_the_ordinary_one(text: str, seq: int, tokens: int) -> None:
    event = delta(seq, text, tokens=tokens)
    assert decode_route_record(encode_delta("w1", seq, text, tokens)) == (event,)
    assert decode_route_record(encode_route_record((event,))) == (event,)
