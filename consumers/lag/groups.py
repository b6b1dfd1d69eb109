"""The groups that a cluster of Parley should have, what they read, and how long they may take over a record."""

from __future__ import annotations

from dataclasses import dataclass

from parley.settings import ProtocolSettings
from parley.topics import PROMPTS, TURNS, Topics
from schemas.base import TIERS

CHANGELOG = "-changelog"
START_S = 10.0
"""How long a record may wait before its holder takes it: a rebalance and a takeover, with room to spare."""


@dataclass(frozen=True, slots=True)
class Patience:
    """What is not late yet, in seconds."""

    start_s: float = START_S
    """A record that nobody has taken."""
    finish_s: float = START_S
    """A record that was taken and has not ended."""


USUAL = Patience()


@dataclass(frozen=True, slots=True)
class Watched:
    """A group, and what is expected of it."""

    name: str
    topics: tuple[str, ...] | None = None
    """None: what its members subscribe to, or, when there are none, whatever it has committed."""
    patience: Patience = USUAL
    aside: frozenset[str] = frozenset()
    """Topics that it has commits for which mean nothing: Faust's of its own tables."""


def expected(topics: Topics, protocol: ProtocolSettings) -> list[Watched]:
    """Parley's own groups. A long answer is not lag: each may take as long as the protocol gives it."""
    workers = [
        Watched(
            pool.group,
            tuple(topics.inference_topic(pool.name, tier) for tier in TIERS),
            Patience(finish_s=protocol.longest_request_s),
        )
        for pool in topics.pools.values()
    ]
    return [
        Watched("moderation", (PROMPTS,), Patience(finish_s=protocol.moderation_deadline_s)),
        Watched("orchestrator", (PROMPTS,), Patience(finish_s=protocol.longest_prompt_s)),
        *workers,
        Watched("history-messages", (TURNS,)),
        Watched("history-sessions", (TURNS,)),
        Watched("parley-usage", (TURNS,), aside=frozenset(name for name in topics.topics if name.endswith(CHANGELOG))),
    ]
