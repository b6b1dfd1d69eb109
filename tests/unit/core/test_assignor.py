"""Partitions of a group are shared out evenly, by number, and change hands as little as can be."""

from __future__ import annotations

from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from hypothesis import given
from hypothesis import strategies as st

from parley.log.assignor import ByNumber, share_out

NAMES = st.sampled_from("abcdefgh")


@given(st.integers(0, 40), st.dictionaries(NAMES, st.sets(st.integers(0, 50)), min_size=1))
def test_every_number_has_one_holder_and_shares_differ_by_one(count: int, held: dict[str, set[int]]) -> None:
    shares = share_out(range(count), held)
    assert sorted(number for mine in shares.values() for number in mine) == list(range(count))
    sizes = {len(mine) for mine in shares.values()}
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(0, 40), st.sets(NAMES, min_size=1), NAMES)
def test_who_comes_takes_its_share_and_nothing_else_moves(count: int, names: set[str], comes: str) -> None:
    before = share_out(range(count), dict.fromkeys(sorted(names - {comes}) or ["z"], ()))
    after = share_out(range(count), {**before, comes: ()})
    for name, mine in before.items():
        assert set(after[name]) <= set(mine)


@given(st.integers(0, 40), st.sets(NAMES, min_size=2))
def test_who_goes_leaves_its_share_and_nothing_else_moves(count: int, names: set[str]) -> None:
    before = share_out(range(count), dict.fromkeys(names, ()))
    gone = min(names)
    after = share_out(range(count), {name: mine for name, mine in before.items() if name != gone})
    for name, mine in after.items():
        assert set(before[name]) <= set(mine)


class Cluster:
    """Two topics, as a pool's tiers."""

    def partitions_for_topic(self, _topic: str) -> set[int]:
        return set(range(16))


def test_a_number_goes_with_all_its_topics_and_what_was_held_is_remembered() -> None:
    first, second = ByNumber(), ByNumber()
    topics = ["chat.inference.smol.free", "chat.inference.smol.paid"]
    alone = first.assign(Cluster(), {"a": first.metadata(topics)})
    first.on_assignment(alone["a"])
    both = second.assign(Cluster(), {"a": first.metadata(topics), "b": second.metadata(topics)})
    shares = {name: {topic: set(numbers) for topic, numbers in share.assignment} for name, share in both.items()}
    for share in shares.values():
        assert share[topics[0]] == share[topics[1]]
        assert len(share[topics[0]]) == 8
    assert shares["a"][topics[0]] == set(range(8))


def test_a_member_without_a_memory_is_a_new_one() -> None:
    shares = ByNumber().assign(Cluster(), {"a": ConsumerProtocolMemberMetadata(0, ["t"], b"")})
    assert shares["a"].assignment == [("t", list(range(16)))]
