"""What a cluster lacks of topics.yaml: a pure comparison.

Only settings that topics.yaml sets are compared: what operators set beside them is theirs. Partition counts are never
changed, since the records of a session would change their partition; a topic that the file does not know is listed
and never deleted by a plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from parley.topics import Topic, Topics


@dataclass(frozen=True, slots=True)
class LiveTopic:
    """A topic as the cluster has it."""

    name: str
    partitions: int
    replication: int
    config: Mapping[str, str]
    """Effective values, whether set on the topic or inherited."""
    own: Mapping[str, str]
    """Values set on the topic itself."""
    internal: bool = False


@dataclass(frozen=True, slots=True)
class Alteration:
    """A setting of a topic that differs."""

    topic: str
    name: str
    live: str | None
    wanted: str


@dataclass(frozen=True, slots=True)
class PartitionConflict:
    """A topic whose partition count can't be made right."""

    topic: str
    live: int
    wanted: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What `apply` would do, and what it would not."""

    create: tuple[Topic, ...]
    alter: tuple[Alteration, ...]
    conflicts: tuple[PartitionConflict, ...]
    unknown: tuple[str, ...]
    """Topics of the cluster that topics.yaml does not name."""
    session_topics: int
    """Session token topics in existence."""

    @property
    def changes(self) -> bool:
        """There is something to apply."""
        return bool(self.create or self.alter)

    def alterations(self) -> dict[str, dict[str, str]]:
        """Wanted values by topic."""
        by_topic: dict[str, dict[str, str]] = {}
        for change in self.alter:
            by_topic.setdefault(change.topic, {})[change.name] = change.wanted
        return by_topic


def plan(topics: Topics, live: Iterable[LiveTopic]) -> Plan:
    """The difference between the file and the cluster."""
    existing = {topic.name: topic for topic in live if not topic.internal and not topic.name.startswith("__")}
    create: list[Topic] = []
    alter: list[Alteration] = []
    conflicts: list[PartitionConflict] = []
    for wanted in topics.topics.values():
        found = existing.get(wanted.name)
        if found is None:
            create.append(wanted)
            continue
        if found.partitions != wanted.partitions:
            conflicts.append(PartitionConflict(wanted.name, found.partitions, wanted.partitions))
        alter.extend(_alterations(wanted, found, topics.min_insync_replicas))
    others = sorted(existing.keys() - topics.topics.keys())
    unknown = tuple(name for name in others if not name.startswith(topics.session_topics.prefix))
    return Plan(tuple(create), tuple(alter), tuple(conflicts), unknown, len(others) - len(unknown))


def _alterations(wanted: Topic, found: LiveTopic, min_insync_replicas: int) -> Iterable[Alteration]:
    for name, value in wanted.config(min_insync_replicas).items():
        if found.config.get(name) != value:
            yield Alteration(wanted.name, name, found.config.get(name), value)
