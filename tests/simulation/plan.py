"""What a seed makes of the world: how many talk, what goes wrong, and when.

Swarm testing: each seed switches most kinds of trouble off, so that what is left meets itself often.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from tests.simulation.cluster import Trouble

if TYPE_CHECKING:
    from tests.simulation.world import Simulation

RATES = {
    "send_slow": 0.05,
    "send_fails": 0.02,
    "send_fails_and_lands": 0.02,
    "send_without_offset": 0.01,
    "request_lost": 0.03,
    "answer_lost": 0.03,
    "request_lingers": 0.03,
    "fetch_stalls": 0.01,
    "engine_refuses": 0.15,
    "engine_breaks": 0.01,
    "engine_silent": 0.004,
    "store_down": 0.5,
}
"""The greatest likelihood of each kind, each time that it may happen."""

SHORT_AGES = {
    "max_turn_age_s": 10.0,
    "start_deadline_s": 0.5,
    "answer_limit_s": 0.6,
    "moderation_deadline_s": 0.4,
    "margin_s": 5.0,
}
"""Everything is soon too late; what the times must be to each other holds."""

ACTS = (
    "kill",
    "blackout",
    "outage",
    "freeze",
    "zombie",
    "straggle",
    "cut",
    "rebalance",
    "restart",
    "coordinator",
    "engine_down",
)


@dataclass(slots=True)
class Plan:
    """A seed's world. Without anything: two sessions and no trouble."""

    seed: int
    name: str
    sessions: int = 2
    turns: int = 3
    cancels: float = 0.0
    repeats: float = 0.0
    branches: float = 0.0
    deletes: float = 0.0
    harm: float = 0.0
    skew_s: float = 0.0
    start_s: float = 1.0
    trouble_s: float = 5.0
    patience_s: float = 0.0
    trouble: Trouble = field(default_factory=Trouble)
    kinds: tuple[str, ...] = ()
    count: int = 0
    protocol: dict[str, Any] = field(default_factory=dict)
    script: Callable[[Simulation], None] = lambda simulation: None
    """What a scenario decrees before anything runs."""
    sessions_mb: float = 128
    """0: the orchestrator forgets a session as soon as it may."""

    def acts(self, simulation: Simulation) -> Iterator[tuple[float, Callable[[], object]]]:
        """When to do what."""
        rng = random.Random(self.seed * 7 + 1)
        hosts = list(simulation.hosts.values())
        weights = [3 if host.name.startswith(("orchestrator", "worker")) else 1 for host in hosts]
        for _ in range(self.count if self.kinds else 0):
            at = 1.0 + (self.trouble_s - 1.0) * rng.random()
            host, kind = rng.choices(hosts, weights)[0], rng.choice(self.kinds)
            yield at, _act(simulation, host, kind, rng.random(), rng.random())


def _act(simulation: Simulation, host: Any, kind: str, one: float, two: float) -> Callable[[], object]:
    long = 0.3 + 9 * one**2
    match kind:
        case "kill":
            return lambda: host.kill(0.05 + 5 * one**3)
        case "blackout":
            return lambda: [each.kill(3 * one * two) for each in simulation.hosts.values()]
        case "outage":
            role = host.name.partition("-")[0]
            return lambda: [
                each.kill(12 * one) for each in simulation.hosts.values() if each.name.startswith(f"{role}-")
            ]
        case "freeze":
            return lambda: host.freeze(long, None)
        case "zombie":
            return lambda: host.freeze(long, long * two)
        case "straggle":
            return lambda: host.straggle(0.5 + 4 * one, 0.6 * two**2)
        case "cut":
            return lambda: host.cut(long)
        case "rebalance":
            groups = ("orchestrator", "worker-synthetic", "moderation")
            return lambda: simulation.coordinators.rebalance(groups[int(3 * one)])
        case "restart":
            return host.restart
        case "coordinator":
            return lambda: simulation.coordinators.move(3 * one)
        case "engine_down":
            engine = simulation.engines["engine-0" if one < 0.5 else "engine-1"]

            def down() -> None:
                engine.down, engine.mute = True, two < 0.5
                simulation.loop.outside(8 * two, up)

            def up() -> None:
                engine.down = False

            return down
    raise ValueError(kind)


def plan_of(seed: int) -> Plan:
    """Seed 0 is a quiet day."""
    rng = random.Random(seed)
    if seed == 0:
        return Plan(seed, "seed 0")
    trouble = Trouble()
    for each in fields(Trouble):
        if rng.random() < 0.25:
            setattr(trouble, each.name, RATES[each.name] * rng.random())
    protocol: dict[str, Any] = {}
    if rng.random() < 0.2:
        protocol["window"] = rng.choice((2, 3, 5))
    if rng.random() < 0.2:
        protocol["waiting_turns"] = rng.choice((0, 1, 2))
    kinds = tuple(kind for kind in ACTS if rng.random() < 0.35)
    if rng.random() < 0.15:
        protocol |= SHORT_AGES
    return Plan(
        seed,
        f"seed {seed}",
        sessions=rng.randint(1, 4),
        turns=rng.randint(1, 4),
        cancels=rng.choice((0.0, 0.0, 0.3, 0.6)),
        repeats=rng.choice((0.0, 0.5)),
        branches=rng.choice((0.0, 0.0, 0.3)),
        deletes=rng.choice((0.0, 0.0, 0.3)),
        harm=rng.choice((0.0, 0.2)),
        skew_s=rng.choice((0.0, 0.0, 5.0)),
        start_s=rng.choice((0.2, 3.0)),
        trouble_s=rng.uniform(5, 25),
        trouble=trouble,
        kinds=kinds,
        count=rng.randint(0, 12),
        protocol=protocol,
        sessions_mb=rng.choice((0, 128)),
    )
