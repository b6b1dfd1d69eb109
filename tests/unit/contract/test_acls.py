"""Each role may do what its code does, and no more: topics.yaml says it, and the code is asked."""

from __future__ import annotations

import ast
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import parley.topics
from consumers.lag.groups import expected
from parley.contract.acls import GROUPS, Acl, acls, command, roles
from parley.settings import ProtocolSettings
from parley.topics import AUDIT, CAPACITY, CONTROL, DLQ, POOLS, PROMPTS, TOKENS, TURNS, VERDICTS, load_topics
from parley.topics_cli import topics as topics_command

ROOT = Path(__file__).parents[3]
TOPICS = load_topics()
ACLS = acls(TOPICS)
CODE = {
    "edge": ("producers/edge",),
    "moderation": ("consumers/moderation",),
    "orchestrator": ("consumers/orchestrator",),
    "worker": ("inference_workers",),
    "history": ("consumers/history",),
    "usage": ("consumers/usage",),
    "traces": ("consumers/traces",),
}
"""Where each role's own code is."""
SHARED = {
    "parley/side_inputs.py": {"orchestrator", "worker"},
    "parley/log/views.py": {"history", "traces"},
    "parley/drains.py": {"orchestrator", "worker"},
}
"""Code of several roles that names topics: whose it is."""
NAMES = {
    name: value for name, value in vars(parley.topics).items() if isinstance(value, str) and value.startswith("chat.")
}
SENDS = {"send", "post", "send_keyed"}


def modules(role: str) -> Iterator[ast.Module]:
    for folder in CODE[role]:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield ast.parse(path.read_text())
    for path, whose in SHARED.items():
        if role in whose:
            yield ast.parse((ROOT / path).read_text())


def used(role: str) -> tuple[set[str], set[str]]:
    """(written, read): topics that the role's code sends to, and those that it names in any other way."""
    written, read = set(), set()
    for module in modules(role):
        ours = {
            a.asname or a.name
            for n in ast.walk(module)
            if isinstance(n, ast.ImportFrom) and n.module == "parley.topics"
            for a in n.names
        }
        sent = set()
        for node in ast.walk(module):
            match node:
                case ast.Call(func=ast.Attribute(attr=attr), args=[ast.Name() as first, *_]) if attr in SENDS:
                    if first.id in NAMES:
                        written.add(NAMES[first.id])
                        sent.add(id(first))
                case ast.Call(func=ast.Name(id="dead_letter")):
                    written.add(DLQ)
        read |= {
            NAMES[node.id]
            for node in ast.walk(module)
            if isinstance(node, ast.Name) and node.id in NAMES and node.id in ours and id(node) not in sent
        }
    return written, read


def may(role: str, operation: str) -> set[str]:
    return {acl.name for acl in ACLS if acl.role == role and acl.resource == "topic" and operation in acl.operations}


COUNTED = {("worker", CAPACITY), *((role, DLQ) for role in ("orchestrator", "worker", "usage", "history", "traces"))}
"""Topics that are named beside a send to know how many partitions they have."""


@pytest.mark.parametrize("role", CODE)
def test_a_role_may_write_what_its_code_writes_and_nothing_else_that_has_a_name(role: str) -> None:
    written, _ = used(role)
    named = may(role, "Write") & set(NAMES.values()) - {TOKENS}
    assert written - {TOKENS} == named, "tokens go to a route, whose topic has no name in the code"


@pytest.mark.parametrize("role", CODE)
def test_a_role_may_read_what_its_code_reads_and_nothing_else_that_has_a_name(role: str) -> None:
    _, read = used(role)
    read -= {topic for whose, topic in COUNTED if whose == role}
    named = may(role, "Read") & set(NAMES.values())
    routes = {TOKENS} if role in ("orchestrator", "worker") else set()
    assert read | routes == named


def test_the_scan_sees_what_there_is_to_see() -> None:
    """A scan that finds nothing agrees with everything."""
    assert used("edge") == ({PROMPTS, CONTROL, TURNS}, {TURNS, TOKENS, CAPACITY})
    assert used("moderation") == ({VERDICTS}, {PROMPTS})


def test_groups_are_those_that_there_are() -> None:
    names = {group.name for group in expected(TOPICS, ProtocolSettings())}
    for name in names:
        fitting = [
            role for role, (group, prefixed) in GROUPS.items() if name == group or (prefixed and name.startswith(group))
        ]
        assert len(fitting) == 1, name
    joined = {acl.role for acl in ACLS if acl.resource == "group" and "Read" in acl.operations}
    assert joined - {"operators", "admins"} == set(GROUPS)


def test_only_admins_move_the_offsets_of_groups_and_the_audit_says_so() -> None:
    moved = {acl.name for acl in ACLS if acl.role == "admins" and acl.resource == "group" and "Read" in acl.operations}
    assert moved == {group for group, _ in GROUPS.values()}
    assert may("admins", "Write") == {AUDIT}
    assert not any(
        acl.role == "operators" and acl.resource == "group" and "Read" in acl.operations
        for acl in ACLS
        if acl.name != "replay."
    )


def test_only_edges_make_topics_and_only_conversations_own() -> None:
    makers = {(acl.role, acl.name) for acl in ACLS if "Create" in acl.operations and acl.resource == "topic"}
    assert makers == {("edge", "chat.tokens.s."), ("operators", "replay."), ("admins", "*")}


def test_operators_read_everything_and_write_only_what_they_redrive_and_that_they_looked() -> None:
    assert set(TOPICS.topics) <= may("operators", "Read")
    assert may("operators", "Write") == {AUDIT, POOLS, PROMPTS, TURNS, "replay."}


def test_commands_are_those_of_kafkas_tool() -> None:
    one = Acl("edge", "topic", "chat.tokens.s.", True, ("Create", "Read"))
    assert command(one, "User:CN={role},O=Parley Inc", ["--command-config", "admin.properties"]) == (
        "kafka-acls --command-config admin.properties --add --allow-principal 'User:CN=edge,O=Parley Inc' "
        "--operation Create --operation Read --topic chat.tokens.s. --resource-pattern-type prefixed"
    )
    cluster = Acl("operators", "cluster", "kafka-cluster", False, ("Describe",))
    assert command(cluster, "User:{role}").endswith("--operation Describe --cluster")


def test_the_command_prints_one_line_each_and_json() -> None:
    lines = CliRunner().invoke(topics_command, ["acls"]).output.splitlines()
    assert len(lines) == len(ACLS)
    assert {shlex.split(line)[0] for line in lines} == {"kafka-acls"}
    told = json.loads(CliRunner().invoke(topics_command, ["acls", "--role", "moderation", "--json"]).output)
    assert {(acl["resource"], acl["name"], tuple(acl["operations"])) for acl in told} == {
        ("topic", PROMPTS, ("Read",)),
        ("topic", VERDICTS, ("Write",)),
        ("group", "moderation", ("Read",)),
    }
    wrong = CliRunner().invoke(topics_command, ["acls", "--role", "nobody"])
    assert (wrong.exit_code, "there are admins, edge" in wrong.output) == (1, True)
    assert "moderation" in roles(TOPICS)
