"""`parley lag` on a real broker, in each situation in which lag tools are known to mislead."""

from __future__ import annotations

import asyncio
import secrets

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import OffsetAndMetadata

from consumers.lag.groups import Patience, Watched
from consumers.lag.states import State
from consumers.lag.survey import PartitionLag, Survey
from parley.log.groups import GroupReader
from parley.log.spans import open_spans
from tests.integration.lag.conftest import Stage, holding

pytestmark = pytest.mark.stack

HASTY = Patience(start_s=1, finish_s=1)


def group_name() -> str:
    return f"lag-{secrets.token_hex(4)}"


async def test_no_commit_is_told_from_nothing_to_do_and_from_being_done(stage: Stage) -> None:
    """Field case F67: p0 has 100 records and no commit, p1 is empty, p2 caught up."""
    topic, group = await stage.topic(3), group_name()
    await stage.write(topic, 100, partition=0)
    await stage.write(topic, 5, partition=2)
    await stage.commit(group, topic, {2: 5})

    code, seen = await stage.json(group)
    assert code == 4
    assert [(p["state"], p["committed"], p["lag"], p["available"]) for p in seen["partitions"]] == [
        ("NO_COMMIT", None, None, 100),
        ("OK", None, None, 0),
        ("OK", 5, 0, 0),
    ]
    assert (seen["unfinished"], seen["no_commit"], seen["state"]) == (0, 1, "NO_COMMIT")


async def test_a_group_that_never_was_has_an_answer(stage: Stage) -> None:
    code, seen = await stage.json(group_name())
    assert (code, seen["kafka_state"], seen["members"], seen["partitions"]) == (0, "Dead", 0, [])


async def test_a_groups_name_is_shown_as_it_is(stage: Stage) -> None:
    topic, group = await stage.topic(), f"[/{group_name()}]"
    await stage.commit(group, topic, {0: 0})
    result = await stage.command("--group", group, "--once")
    assert (result.exit_code, group in result.output) == (0, True), result.exception


async def test_a_look_that_takes_long_says_that_it_lives(stage: Stage) -> None:
    """Of the exporter's loop, which would be restarted for being stuck, and never come to the end of a look."""
    beats: list[int] = []
    survey = Survey([Watched(group_name()), Watched(group_name())], 60)
    async with GroupReader(stage.settings.kafka) as reader, open_spans(stage.settings.kafka, "test") as spans:
        await survey.look(reader, spans, lambda: beats.append(len(beats)))
    assert len(beats) == 4, "each group is read, then judged"


async def test_what_retention_took_is_not_backlog_and_its_loss_is_named(stage: Stage) -> None:
    """Field case F68: 1,000 records, deleted up to 900; group A has no commit, group B committed 500."""
    topic, a, b = await stage.topic(), group_name(), group_name()
    await stage.write(topic, 1_000)
    await stage.delete_records(topic, 900)
    await stage.commit(b, topic, {0: 500})

    [never] = (await stage.look(Watched(a, (topic,)))).partitions
    assert (never.verdict.state, never.counts.end - never.counts.start, never.counts.lost) == (State.NO_COMMIT, 100, 0)
    code, seen = await stage.json(b)
    assert (code, seen["partitions"][0]["lag"], seen["partitions"][0]["lost"]) == (5, 100, 400)
    assert "retention took up to 400" in (await stage.command("--group", b)).output


async def test_a_log_that_is_shorter_than_the_commit_is_a_rewind(stage: Stage) -> None:
    topic, group = await stage.topic(), group_name()
    await stage.write(topic, 10)
    await stage.commit(group, topic, {0: 500})
    code, seen = await stage.json(group)
    assert (code, seen["state"], seen["partitions"][0]["lag"]) == (5, "REWIND", 0)


@pytest.mark.parametrize("looks", [40, pytest.param(200, marks=pytest.mark.long)])
async def test_it_is_never_negative_while_records_come_and_go(stage: Stage, looks: int) -> None:
    """Field case F69: commits are asked for before ends, so the skew can only add records, never take some away."""
    topic, group = await stage.topic(), group_name()
    stop = asyncio.Event()

    async def produce() -> None:
        while not stop.is_set():
            await stage.write(topic, 50)

    async with holding(stage.settings, group, topic, lambda held, record: False):
        producing = asyncio.create_task(produce())
        try:
            watched = Watched(group, (topic,))
            await stage.look_until(watched, lambda p: p[0].look.committed is not None and p[0].look.committed > 100)
            for _ in range(looks):
                [seen] = (await stage.look(watched)).partitions
                assert seen.look.committed is not None
                assert seen.look.committed <= seen.look.end
                assert min(seen.counts.running, seen.counts.waiting, seen.counts.lost) >= 0
        finally:
            stop.set()
            await producing


async def test_an_idle_topic_is_ok_without_any_commit_in_the_window(stage: Stage) -> None:
    """Field case F71 (a): caught up, and no commit for longer than the window."""
    topic, group = await stage.topic(), group_name()
    await stage.write(topic, 1)
    await stage.commit(group, topic, {0: 1})
    await asyncio.sleep(1.1)
    result = await stage.command("--group", group, "--window", "1", "--check", "--json")
    assert result.exit_code == 0
    assert '"commit_age_s": null' in result.output


async def test_a_consumer_that_hangs_with_a_heartbeat_is_stopped_and_its_lag_grows(stage: Stage) -> None:
    """Field case F71 (b): the member is there, and polls no more, while producers go on."""
    topic, group = await stage.topic(), group_name()
    watched = Watched(group, (topic,), HASTY)
    await stage.write(topic, 3)
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=stage.settings.kafka.bootstrap, group_id=group, auto_offset_reset="earliest"
    ) as consumer:
        read = 0
        while read < 3:
            read += sum(len(records) for records in (await consumer.getmany(timeout_ms=500)).values())
        await consumer.commit()
        [caught_up] = (await stage.look(watched)).partitions
        assert (caught_up.verdict.state, caught_up.counts.unfinished) == (State.OK, 0)

        await stage.write(topic, 4)
        seen = await stage.look_until(watched, lambda p: p[0].verdict.state is State.STOP)
        assert (seen.members, seen.partitions[0].counts.waiting) == (1, 4)
        await stage.write(topic, 4)
        [later] = (await stage.look(watched)).partitions
        assert later.counts.waiting == 8
        assert later.ages.unfinished_s > seen.partitions[0].ages.unfinished_s


async def test_one_stuck_record_of_one_partition_is_named_among_eight(stage: Stage) -> None:
    """Field cases F71 (c), F32: the member lives, seven partitions and what comes after the record go on."""
    topic, group = await stage.topic(8), group_name()
    watched = Watched(group, (topic,), Patience(start_s=10, finish_s=5))
    async with holding(stage.settings, group, topic, lambda held, record: held.partition == 3 and record.offset == 1):

        async def more() -> None:
            while True:
                await asyncio.gather(*(stage.write(topic, 1, partition) for partition in range(8)))
                await asyncio.sleep(0.1)

        producing = asyncio.create_task(more())
        try:
            seen = await stage.look_until(watched, lambda p: p[3].verdict.state is State.STALL)
        finally:
            producing.cancel()
            await asyncio.gather(producing, return_exceptions=True)
    assert seen.state is State.STALL
    stuck = {p.where.partition: p for p in seen.partitions}
    assert [n for n, p in stuck.items() if p.verdict.state is not State.OK] == [3]
    assert stuck[3].look.committed == 1
    assert stuck[3].counts.running >= 1
    assert "a record has run for" in stuck[3].verdict.reason


async def test_running_is_told_from_waiting_and_both_have_their_oldest(stage: Stage) -> None:
    topic, group = await stage.topic(), group_name()
    watched = Watched(group, (topic,))
    async with holding(
        stage.settings, group, topic, lambda held, record: record.offset not in (1, 2), window=5
    ) as held:
        await stage.write(topic, 12)
        seen = await stage.look_until(watched, lambda p: p[0].counts.running == 3)
        [p] = seen.partitions
        assert (p.look.committed, p.counts.position, p.counts.waiting) == (0, 5, 7)
        assert p.ages.running_s is not None
        assert p.ages.waiting_s is not None
        assert p.ages.running_s >= p.ages.waiting_s >= 0
        assert (p.look.claim.holder, p.look.claim.takeover) == (held.holder, 1)
        assert p.members == (held.holder,)


async def test_a_dead_group_keeps_its_figures(stage: Stage) -> None:
    """The holder of the last claim is shown, and nothing runs under it."""
    topic, group = await stage.topic(), group_name()
    watched = Watched(group, (topic,), HASTY)
    async with holding(stage.settings, group, topic, lambda held, record: record.offset != 1):
        await stage.write(topic, 3)
        await stage.look_until(watched, lambda p: p[0].look.committed == 3 or p[0].counts.running == 2)
    seen = await stage.look_until(watched, lambda p: p[0].verdict.state is State.STOP)
    [p] = seen.partitions
    assert (seen.members, p.counts.running, p.counts.waiting) == (0, 0, 2)
    assert "the group has no members" in p.verdict.reason
    assert "nobody (was" in (await stage.command("--group", group)).output


async def test_a_topic_that_the_group_left_is_named_and_not_counted(stage: Stage) -> None:
    """Field case F72: the group moved from T1 to T2; T3, which it should read, does not exist."""
    t1, t2, group = await stage.topic(2), await stage.topic(2), group_name()
    await stage.write(t1, 10)
    await stage.commit(group, t1, {0: 1})
    async with holding(stage.settings, group, t2, lambda held, record: False):
        await stage.write(t2, 4)
        seen = await stage.look_until(Watched(group), lambda p: bool(p) and p[0].look.committed == 4)
        assert (seen.left, seen.unfinished, {p.where.topic for p in seen.partitions}) == ((t1,), 0, {t2})
        assert [len(p.members) for p in seen.partitions] == [1, 1], "no partition has two owners"
        wanting = await stage.look(Watched(group, (t2, "lag.gone")))
        assert wanting.missing == ("lag.gone",)
        result = await stage.command("--group", group, "--check")
        assert (result.exit_code, "read no more: not counted" in result.output) == (0, True)


async def test_transaction_markers_are_no_records(stage: Stage) -> None:
    """Each marker has an offset that no consumer ever sees: a group that has read all has no lag."""
    topic, group = await stage.topic(), group_name()
    async with (
        AIOKafkaProducer(
            bootstrap_servers=stage.settings.kafka.bootstrap, transactional_id=secrets.token_hex(4)
        ) as producer,
        producer.transaction(),
    ):
        for _ in range(3):
            await producer.send_and_wait(topic, b"x", partition=0)
    await stage.commit(group, topic, {0: 3})
    [p] = (await stage.look(Watched(group, (topic,)))).partitions
    assert (p.look.committed, p.look.end) == (3, 4)
    assert (p.verdict.state, p.counts.unfinished, p.ages.unfinished_s) == (State.OK, 0, 0)


async def test_a_group_that_catches_up_is_ok_and_one_that_falls_behind_warns(stage: Stage) -> None:
    """Old records, commits that advance: whether the lag shrinks makes the difference."""
    topic, group = await stage.topic(), group_name()
    watched = Watched(group, (topic,), Patience(start_s=4, finish_s=4))
    await stage.write(topic, 100)
    await asyncio.sleep(4.5)
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=stage.settings.kafka.bootstrap, group_id=group, enable_auto_commit=False
    ) as consumer:
        [where] = await assigned(consumer)

        async def commit(offset: int) -> PartitionLag:
            await consumer.commit({where: OffsetAndMetadata(offset, "")})
            await asyncio.sleep(0.1)
            [seen] = (await stage.look(watched)).partitions
            return seen

        await commit(10)
        await stage.write(topic, 50)
        behind = await commit(20)
        assert behind.verdict.state is State.WARN, behind.verdict
        catching_up = await commit(90)
        assert catching_up.verdict.state is State.OK, catching_up.verdict
        assert "catches up" in catching_up.verdict.reason
        back = await commit(30)
        assert back.verdict.state is State.REWIND, back.verdict


async def test_a_static_member_that_was_replaced_in_time_holds_what_it_held(stage: Stage) -> None:
    """Kafka goes on to tell the name of the first process's client, since there was no rebalance."""
    topic, group = await stage.topic(), group_name()
    settings = stage.settings.model_copy(update={"instance": f"{group}-0"})
    watched = Watched(group, (topic,))
    holders = []
    for _ in range(2):
        async with holding(settings, group, topic, lambda held, record: True):
            await stage.write(topic, 1)
            took = len(holders) + 1
            seen = await stage.look_until(watched, lambda p, took=took: p[0].counts.running == took)  # type: ignore[misc]
            assert seen.partitions[0].look.held
            holders.append(seen.partitions[0].look.claim.holder)
    assert holders[0] != holders[1]
    assert {holder.split(":")[0] for holder in holders} == {f"{group}-0"}


async def assigned(consumer: AIOKafkaConsumer) -> list[object]:
    async with asyncio.timeout(10):
        while not consumer.assignment():
            await consumer.getmany(timeout_ms=100)
    return list(consumer.assignment())


async def test_our_own_groups_are_there_on_an_empty_cluster_and_no_broker_is_one_line(stage: Stage) -> None:
    result = await stage.command("--once")
    assert result.exit_code == 0, result.output
    assert "worker-synthetic" in result.output
    from click.testing import CliRunner

    from consumers.lag.cli import lag

    dead = await asyncio.to_thread(CliRunner().invoke, lag, ["--once"], env={"PARLEY_KAFKA__BOOTSTRAP": "127.0.0.1:1"})
    assert (dead.exit_code, dead.output) == (
        1,
        "Error: no Kafka broker answers at 127.0.0.1:1 (PARLEY_KAFKA__BOOTSTRAP)\n",
    )
