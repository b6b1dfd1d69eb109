"""Who may do what at the brokers, made from topics.yaml: its writers and readers, and the groups below. Pure.

One principal a role; of workers, one for all pools. What a role is not given it can't do by mistake either: a replay
that is run as `operators` can't write to chat.verdicts, whatever its code says.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from parley.topics import AUDIT, POOLS, PROMPTS, TOKENS, TURNS, Topics

Resource = Literal["topic", "group", "cluster"]
CLUSTER = "kafka-cluster"
"""Kafka's name of the cluster as a resource."""
OFFSETS = "__consumer_offsets"
"""When commits were made stands nowhere else: `parley lag` reads it."""
REPLAYS = "replay."
"""What topics and groups of replays begin with."""

GROUPS: dict[str, tuple[str, bool]] = {
    "moderation": ("moderation", False),
    "orchestrator": ("orchestrator", False),
    "worker": ("worker-", True),
    "history": ("history-", True),
    "usage": ("parley-usage", False),
    "traces": ("traces", False),
}
"""Role to the group that it joins, and whether that is a prefix: a worker's ends with its pool, history's with its
store. Edges join none: each reads all that it needs."""


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """What one role may do with one resource."""

    role: str
    resource: Resource
    name: str
    prefixed: bool
    operations: tuple[str, ...]
    """Kafka's names. Read and Write allow Describe, too; Write allows an idempotent producer (since Kafka 3.0)."""


def acls(topics: Topics) -> list[Acl]:
    """Everything that the roles need, and nothing else."""
    return sorted([*_of_topics(topics), *_of_groups(), *_of_operators(topics), *_of_admins()])


def roles(topics: Topics) -> list[str]:
    """Every role that has a principal."""
    return sorted({acl.role for acl in acls(topics)})


def command(acl: Acl, principal: str, options: Sequence[str] = ()) -> str:
    """The `kafka-acls` call that adds it. `principal`: with `{role}` in it; `options`: of the tool itself."""
    what = ["--cluster"] if acl.resource == "cluster" else [f"--{acl.resource}", acl.name]
    pattern = ["--resource-pattern-type", "prefixed"] if acl.prefixed else []
    operations = [word for operation in acl.operations for word in ("--operation", operation)]
    allowed = principal.replace("{role}", acl.role)
    return shlex.join(["kafka-acls", *options, "--add", "--allow-principal", allowed, *operations, *what, *pattern])


def _of_topics(topics: Topics) -> Iterator[Acl]:
    tokens = topics.topics[TOKENS]
    named = [(topic.name, False, topic.writers, topic.readers) for topic in topics.topics.values()]
    prefix = topics.session_topics.prefix
    for name, prefixed, writers, readers in [*named, (prefix, True, tokens.writers, tokens.readers)]:
        for role in sorted({*writers, *readers} - {"operators"}):
            may = [*(["Read"] if role in readers else []), *(["Write"] if role in writers else [])]
            if prefixed and role == "edge":
                may.append("Create")  # a conversation's own topic, when it opens
            yield Acl(role, "topic", name, prefixed, tuple(may))


def _of_groups() -> Iterator[Acl]:
    for role, (group, prefixed) in GROUPS.items():
        yield Acl(role, "group", group, prefixed, ("Read",))
    # How far the message store has come, below which the orchestrator may forget.
    yield Acl("orchestrator", "group", "history-", True, ("Describe",))


def _of_operators(topics: Topics) -> Iterator[Acl]:
    """Their tools read everything; `dlq redrive` and `pool drain` write; replays have topics of their own."""
    role = "operators"
    for name in topics.topics:
        may = ("Read", "Write") if name in (AUDIT, POOLS, PROMPTS, TURNS) else ("Read",)
        yield Acl(role, "topic", name, False, (*may, "DescribeConfigs"))
    yield Acl(role, "topic", topics.session_topics.prefix, True, ("Read", "DescribeConfigs"))
    yield Acl(role, "topic", OFFSETS, False, ("Read",))
    yield Acl(role, "topic", REPLAYS, True, ("Create", "Delete", "DescribeConfigs", "Read", "Write"))
    yield Acl(role, "group", "*", False, ("Describe",))
    yield Acl(role, "group", REPLAYS, True, ("Delete", "Read"))
    yield Acl(role, "cluster", CLUSTER, False, ("Describe", "DescribeConfigs"))


def _of_admins() -> Iterator[Acl]:
    """`parley topics apply|gc`, and `parley group reset`: a group's offsets are committed by who may read as it."""
    may = ("Alter", "AlterConfigs", "Create", "Delete", "Describe", "DescribeConfigs", "Read")
    yield Acl("admins", "topic", "*", False, may)
    for group, prefixed in GROUPS.values():
        yield Acl("admins", "group", group, prefixed, ("Read",))
    yield Acl("admins", "cluster", CLUSTER, False, ("Create", "Describe", "DescribeConfigs"))
