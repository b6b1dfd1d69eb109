"""Faults that were found here, each as a quiet day on which just that goes wrong.

Seeds can't keep a fault: any change of the code draws other numbers. What a seed has found is written down as a decree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

from parley.ids import new_session
from tests.simulation.cluster import Fate
from tests.simulation.plan import Plan
from tests.simulation.world import Simulation


def _quiet(name: str, script: Callable[[Simulation], None]) -> Plan:
    return Plan(1, name, sessions=1, turns=1, start_s=0.1, trouble_s=20.0, script=script)


def request_not_acknowledged() -> Plan:
    """A request counts as failed, its worker answers all the same, and the turn ends before it is sent again.

    The prompt was never let go: its partition's prefix stood still until the next holder.
    """

    def script(simulation: Simulation) -> None:
        for tier in ("paid", "free"):
            simulation.cluster.fates[f"send chat.inference.synthetic.{tier}"] = [Fate(lands_s=0.0, fails_s=9.0)]

    return _quiet("request_not_acknowledged", script)


def takeover_lands_late() -> Plan:
    """A takeover's commit counts as failed, and lands when the holder has let its last record go.

    The committed offset went back, and nobody committed again.
    """

    def script(simulation: Simulation) -> None:
        simulation.cluster.fates["commit moderation"] = [Fate(lands_s=9.0, fails_s=0.01)]

    return _quiet("takeover_lands_late", script)


def takeover_number_comes_back() -> Plan:
    """Of two takeover commits without an answer the first lands last: the partition had a number that was in use.

    The holder after the next would have had it too: then its fences are void, and it lets turns go that nobody runs.
    """

    def script(simulation: Simulation) -> None:
        simulation.cluster.fates["commit moderation"] = [Fate(3.0, fails_s=0.01), Fate(0.0, fails_s=0.01)]

    return _quiet("takeover_number_comes_back", script)


def parent_is_being_ended() -> Plan:
    """A prompt that follows a cancelled one is begun while the cancelled one's end is still on its way.

    What it remembered depended on who was faster: the same log made two prompts.
    """

    def script(simulation: Simulation) -> None:
        users = simulation.users

        async def talk() -> None:
            user, session = UUID(int=1), new_session(0, simulation.cluster.now_ms())
            await asyncio.sleep(2)
            first = users.say(user, session, [])
            await users.until_ended(first.response)
            simulation.cluster.fates["send chat.tokens"] = [None, Fate(lands_s=0.0, fails_s=3.0)]
            second = users.say(user, session, [first.response])
            users.cancel(second)
            await asyncio.sleep(0.5)
            users.say(user, session, [first.response, second.response])

        simulation.users.run = talk  # type: ignore[method-assign]

    return _quiet("parent_is_being_ended", script)


def named_parent_has_no_start_yet() -> Plan:
    """A prompt names a cancelled one as its parent, whose TurnStarted is not in the log yet.

    It failed: there was no such response in the conversation.
    """

    def script(simulation: Simulation) -> None:
        users = simulation.users

        async def talk() -> None:
            user, session = UUID(int=1), new_session(0, simulation.cluster.now_ms())
            await asyncio.sleep(2)
            simulation.cluster.fates["send chat.turns"] = [Fate(lands_s=None, fails_s=1.0)]
            first = users.say(user, session, [])
            users.cancel(first)
            await asyncio.sleep(0.3)
            users.say(user, session, [first.response], parent=first.response)

        simulation.users.run = talk  # type: ignore[method-assign]

    return _quiet("named_parent_has_no_start_yet", script)


SCENARIOS: dict[str, Callable[[], Plan]] = {
    scenario.__name__: scenario
    for scenario in (
        request_not_acknowledged,
        takeover_lands_late,
        takeover_number_comes_back,
        parent_is_being_ended,
        named_parent_has_no_start_yet,
    )
}
