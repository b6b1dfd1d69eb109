"""The slots of an engine: who gets the next one, and that none is ever lost or given twice."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from inference_workers.admission import Admission
from schemas.base import Tier

NOW = 1_000


class Slots:
    """An admission, and the order in which it let turns in."""

    def __init__(self, slots: int) -> None:
        self.admission = Admission(slots)
        self.admitted: list[str] = []

    def enter(self, response: str, tier: Tier = "free", deadline: int = 50, now_ms: int = NOW) -> None:
        self.admission.enter(response, tier, deadline, now_ms, lambda: self.admitted.append(response))

    def leave_all(self) -> list[str]:
        """Give back one slot after the other, for as long as somebody is let in by it."""
        for _ in range(self.admission.running + sum(self.admission.queued().values())):
            self.admission.leave()
        return self.admitted


def test_a_free_slot_is_given_at_once() -> None:
    slots = Slots(2)
    slots.enter("a")
    slots.enter("b")
    assert slots.admitted == ["a", "b"]
    assert slots.admission.running == 2


def test_more_than_there_are_slots_wait() -> None:
    slots = Slots(1)
    slots.enter("a")
    slots.enter("b")
    assert slots.admitted == ["a"]
    slots.admission.leave()
    assert slots.admitted == ["a", "b"]


def test_paid_comes_before_free_then_the_nearer_deadline_then_first_come() -> None:
    slots = Slots(1)
    slots.enter("running")
    slots.enter("free, late", "free", 90)
    slots.enter("free, soon", "free", 10)
    slots.enter("paid, late", "paid", 90)
    slots.enter("paid, soon", "paid", 10)
    slots.enter("paid, soon, second", "paid", 10)
    assert slots.leave_all() == [
        "running",
        "paid, soon",
        "paid, soon, second",
        "paid, late",
        "free, soon",
        "free, late",
    ]


def test_who_withdraws_is_not_let_in_and_takes_no_slot() -> None:
    slots = Slots(1)
    for response in ("a", "b", "c"):
        slots.enter(response)
    slots.admission.withdraw("b")
    slots.admission.withdraw("b")
    slots.admission.withdraw("nobody")
    assert slots.leave_all() == ["a", "c"]
    assert slots.admission.running == 0


def test_a_turn_may_come_again_after_it_withdrew() -> None:
    slots = Slots(1)
    slots.enter("a")
    slots.enter("b")
    slots.admission.withdraw("b")
    slots.enter("b")
    slots.admission.leave()
    assert slots.admitted == ["a", "b"]
    assert slots.admission.running == 1


def test_what_operators_see() -> None:
    slots = Slots(1)
    slots.enter("running")
    slots.enter("old", "free", now_ms=NOW)
    slots.enter("young", "free", now_ms=NOW + 70)
    slots.enter("paid", "paid", now_ms=NOW + 90)
    assert slots.admission.queued() == {"paid": 1, "free": 2}
    assert slots.admission.oldest_ms(NOW + 100) == {"paid": 10, "free": 100}
    slots.leave_all()
    assert slots.admission.queued() == {"paid": 0, "free": 0}
    assert slots.admission.oldest_ms(NOW + 100) == {"paid": 0, "free": 0}


class AnyOrder(RuleBasedStateMachine):
    """Turns come, withdraw and leave in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = Slots(3)
        self.waiting: dict[str, tuple[int, int, int]] = {}
        self.running: set[str] = set()
        self.count = 0

    @rule(tier=st.sampled_from(["paid", "free"]), deadline=st.integers(0, 3))
    def enter(self, tier: Tier, deadline: int) -> None:
        self.count += 1
        self.waiting[f"r{self.count}"] = (0 if tier == "paid" else 1, deadline, self.count)
        self.expecting(lambda: self.slots.enter(f"r{self.count}", tier, deadline))

    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        if self.waiting:
            response = data.draw(st.sampled_from(sorted(self.waiting)))
            del self.waiting[response]
            self.expecting(lambda: self.slots.admission.withdraw(response))

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.running:
            self.running.remove(data.draw(st.sampled_from(sorted(self.running))))
            self.expecting(self.slots.admission.leave)

    def expecting(self, act) -> None:  # type: ignore[no-untyped-def]
        """After it, the first in line have the free slots."""
        self.slots.admitted.clear()
        first = sorted(self.waiting, key=self.waiting.__getitem__)[: 3 - len(self.running)]
        act()
        assert self.slots.admitted == first
        for response in first:
            del self.waiting[response]
            self.running.add(response)

    @invariant()
    def slots_are_neither_lost_nor_lent_twice(self) -> None:
        admission = self.slots.admission
        assert admission.running == len(self.running) <= 3
        assert sum(admission.queued().values()) == len(self.waiting)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


@given(st.integers(1, 200))
def test_nothing_is_kept_of_turns_that_are_gone(turns: int) -> None:
    """A turn that withdraws while all slots are taken leaves at the latest when one becomes free."""
    slots = Slots(1)
    slots.enter("running")
    for number in range(turns):
        slots.enter(f"r{number}")
        slots.admission.withdraw(f"r{number}")
    slots.admission.leave()
    assert slots.admission._heap == []
    assert slots.admission._waiting == {}


def test_fewer_slots_end_nobody_and_more_let_in_who_waits() -> None:
    """A worker whose own engine is dead takes half the slots of another's."""
    slots = Slots(2)
    for response in "abcd":
        slots.enter(response)
    slots.admission.resize(1)
    assert slots.admission.running == 2
    slots.admission.leave()
    assert slots.admitted == ["a", "b"]
    slots.admission.resize(3)
    assert slots.admitted == ["a", "b", "c", "d"]
