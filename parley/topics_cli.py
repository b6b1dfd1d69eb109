"""`parley topics`: what the cluster lacks of topics.yaml, making it so, proving its numbers, clearing session topics.

Exit codes for scripts: 0 nothing to do (or done), 1 an error or a broken rule, 2 `plan` has changes to apply.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import Any, TypeVar

import click
from pydantic import ValidationError

from parley.contract.acls import acls, command, roles
from parley.errors import ParleyError
from parley.log.admin import connect
from parley.log.session_topics import expired, keep_s, survey
from parley.log.topic_plan import LiveTopic, Plan, plan
from parley.log.topic_rules import Rule, broken, broker_rules, file_rules, span
from parley.settings import Settings
from parley.topics import Topic, Topics

T = TypeVar("T")
CHANGES = 2
as_json = click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")


@click.group()
def topics() -> None:
    """Topics of the cluster, as topics.yaml wants them."""
    # What fails is said in one line by the command that failed.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


@topics.command("plan")
@as_json
def plan_command(as_json: bool) -> None:
    """Show what `apply` would do. Exit code 0: nothing, 2: changes, 1: it can't be done."""
    settings = _settings()
    difference, _ = _run(lambda: _compare(settings))
    click.echo(json.dumps(plan_json(difference), indent=2) if as_json else "\n".join(plan_text(difference)))
    if difference.conflicts:
        raise SystemExit(1)
    raise SystemExit(CHANGES if difference.changes else 0)


@topics.command("apply")
@click.option("--delete", multiple=True, metavar="NAME", help="Delete this topic with all its records. Repeatable.")
@as_json
def apply_command(delete: tuple[str, ...], as_json: bool) -> None:
    """Create missing topics and correct settings. Deletes only what --delete names."""
    settings = _settings()
    if named := [name for name in delete if name in settings.topics.topics]:
        raise click.ClickException(f"topics.yaml names {', '.join(named)}: take it out of the file before deleting it")
    difference, deleted = _run(lambda: _apply(settings, delete))
    if as_json:
        click.echo(json.dumps({**plan_json(difference), "deleted": deleted}, indent=2))
    else:
        click.echo("\n".join(plan_text(difference, done=True)))
        for name in delete:
            click.echo(f"{'deleted' if name in deleted else 'was not there'}: {name}")
    if difference.conflicts:
        raise SystemExit(1)


@topics.command("check")
@click.option("--brokers", is_flag=True, help="Also check the brokers' own settings (asks the cluster).")
@as_json
def check_command(brokers: bool, as_json: bool) -> None:
    """Prove the inequalities between timeouts and retentions. Exit code 1: a rule is broken."""
    settings = _settings()
    rules = file_rules(settings.topics, settings.protocol)
    if brokers:
        rules += _run(lambda: _broker_rules(settings))
    if as_json:
        click.echo(json.dumps([{"rule": r.text, "holds": r.holds, "numbers": r.numbers} for r in rules], indent=2))
    else:
        for rule in rules:
            click.echo(f"{'ok    ' if rule.holds else 'BROKEN'} {rule.text}: {rule.numbers}")
    if broken(rules):
        raise SystemExit(1)


@topics.command("gc")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted.")
def gc_command(dry_run: bool) -> None:
    """Delete session token topics that nobody can resume from any more."""
    settings = _settings()
    for line in _run(lambda: _gc(settings, dry_run)):
        click.echo(line)


@topics.command("acls")
@click.option("--role", "chosen", multiple=True, metavar="NAME", help="Only this role's. Repeatable.")
@click.option("--principal", default="User:parley-{role}", show_default=True, help="Who a role is to the brokers.")
@click.option("--option", "options", multiple=True, metavar="WORD", help="Of kafka-acls itself. Repeatable.")
@as_json
def acls_command(chosen: tuple[str, ...], principal: str, options: tuple[str, ...], as_json: bool) -> None:
    """Print the kafka-acls commands that let each role do what topics.yaml says that it does, and no more."""
    wanted = _settings().topics
    known = roles(wanted)
    if unknown := set(chosen) - set(known):
        raise click.ClickException(f"no role {', '.join(sorted(unknown))}: there are {', '.join(known)}")
    made = [acl for acl in acls(wanted) if not chosen or acl.role in chosen]
    if as_json:
        click.echo(json.dumps([asdict(acl) for acl in made], indent=2))
        return
    bootstrap = () if options else ("--bootstrap-server", _settings().kafka.bootstrap)
    for acl in made:
        click.echo(command(acl, principal, (*bootstrap, *options)))


def plan_text(difference: Plan, *, done: bool = False) -> list[str]:
    """The plan for people, or what was done."""
    create, alter = ("created", "changed") if done else ("create", "change")
    lines = [f"{create} {topic.name}: {topic.partitions} partitions, {_kept(topic)}" for topic in difference.create]
    lines += [f"{alter} {c.topic}: {c.name} {c.live} -> {c.wanted}" for c in difference.alter]
    lines += [
        f"ERROR {c.topic} has {c.live} partitions, topics.yaml says {c.wanted}: "
        "the count never changes in the life of a cell; correct topics.yaml, or make a new cell"
        for c in difference.conflicts
    ]
    lines += [f"unknown {name}: not in topics.yaml, left alone" for name in difference.unknown]
    if difference.session_topics:
        lines.append(f"session topics: {difference.session_topics}")
    if not difference.changes and not difference.conflicts:
        lines.append("nothing to do")
    return lines


def plan_json(difference: Plan) -> dict[str, Any]:
    """The plan for scripts."""
    return {
        "create": [{"topic": topic.name, "partitions": topic.partitions} for topic in difference.create],
        "change": [{"topic": c.topic, "setting": c.name, "live": c.live, "wanted": c.wanted} for c in difference.alter],
        "conflicts": [{"topic": c.topic, "live": c.live, "wanted": c.wanted} for c in difference.conflicts],
        "unknown": list(difference.unknown),
        "session_topics": difference.session_topics,
    }


async def apply_topics(settings: Settings) -> Plan:
    """Make the cluster as topics.yaml wants it; gives what was done. Nothing is deleted.

    Raises:
        ParleyError: log_unavailable.
    """
    return (await _apply(settings, ()))[0]


async def _compare(settings: Settings) -> tuple[Plan, list[LiveTopic]]:
    async with connect(settings.kafka) as admin:
        live = await admin.topics(list(settings.topics.topics))
    return plan(settings.topics, live), live


async def _apply(settings: Settings, delete: tuple[str, ...]) -> tuple[Plan, list[str]]:
    wanted: Topics = settings.topics
    difference, live = await _compare(settings)
    async with connect(settings.kafka) as admin:
        await admin.create(
            difference.create, replication=wanted.replication, min_insync_replicas=wanted.min_insync_replicas
        )
        await admin.alter(difference.alterations(), live)
        deleted = await admin.delete(delete)
    return difference, deleted


async def _broker_rules(settings: Settings) -> list[Rule]:
    async with connect(settings.kafka) as admin:
        brokers = await admin.brokers()
    return [
        rule for name, config in brokers.items() for rule in broker_rules(settings.topics, settings.kafka, name, config)
    ]


async def _gc(settings: Settings, dry_run: bool) -> list[str]:
    async with connect(settings.kafka) as admin:
        found = await survey(settings.kafka, settings.topics.session_topics, await admin.names())
        now_ms = time.time_ns() // 1_000_000
        gone = expired(found, settings.protocol, now_ms)
        if not dry_run:
            await admin.delete([topic.name for topic in gone])
    word = "would delete" if dry_run else "deleted"
    lines = [f"{word} {topic.name}: idle for {span(round(topic.idle_s(now_ms) or 0))}" for topic in gone]
    kept = len(found) - len(gone)
    return [*lines, f"{word} {len(gone)}, kept {kept} used within {span(keep_s(settings.protocol))} or of unknown age"]


def _kept(topic: Topic) -> str:
    return "compacted" if topic.retention_ms is None else f"kept {span(topic.retention_ms / 1000)}"


def _settings() -> Settings:
    try:
        settings = Settings()
        _ = settings.topics
    except (ValidationError, OSError, ValueError) as error:
        raise click.ClickException(f"settings: {error}") from None
    return settings


def _run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        return asyncio.run(work())
    except ParleyError as error:
        raise click.ClickException(error.message) from None
