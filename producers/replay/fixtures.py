"""From incident to test: events of a conversation or turn as a small fixture, and a test that holds what was seen."""

from __future__ import annotations

from pathlib import Path

from parley.archive.source import open_source
from parley.errors import ParleyError
from parley.safety.policy import Policy
from parley.settings import Settings
from parley.timeline.audit import record_reading
from parley.timeline.fold import Entry
from parley.timeline.read import Window, read_timeline
from parley.timeline.target import Target
from parley.topics import TOKENS, TURNS, VERDICTS
from producers.replay.anonymous import Disguise
from producers.replay.incidents import Happened, Incident, Seen, observe
from schemas.prompts import Verdict

KEPT = frozenset({TURNS, TOKENS, VERDICTS})
"""Topics that a pure part folds or judges."""

_TEST = '''"""What happened to {what} must stay as it was seen: exported by `parley replay export --as-fixture`."""

from __future__ import annotations

from pathlib import Path

from producers.replay.incidents import Incident

INCIDENT = Incident.load(Path(__file__).with_name("{fixture}"))
NOW, THEN = INCIDENT.replayed(), INCIDENT.seen


def test_the_state_log_counts_what_it_counted() -> None:
    assert NOW.state_log == THEN.state_log


def test_the_session_has_the_turns_that_it_had() -> None:
    assert NOW.turns == THEN.turns


def test_readers_of_a_route_pass_over_what_they_passed_over() -> None:
    assert NOW.routes == THEN.routes


def test_readers_of_a_route_see_the_text_and_the_end_that_they_saw() -> None:
    assert NOW.answers == THEN.answers
'''
_POLICY_TEST = """

def test_the_policy_decides_as_it_did() -> None:
    assert NOW.decisions == THEN.decisions
"""


async def export_fixture(
    settings: Settings, target: Target, window: Window, folder: Path, *, archive: Path | None, content: bool
) -> Path:
    """Write the fixture and its test into `folder`; gives the test.

    Raises:
        ParleyError: not_found: the log holds nothing of it; invalid_request: what was seen can't be held; the folder
            has such files already; log_unavailable.
    """
    if content:
        await record_reading(
            settings, "parley replay export --as-fixture", target.text, session=target.session, response=target.response
        )
    async with open_source(settings.kafka, "parley-replay", archive) as source:
        timeline = await read_timeline(settings, source, target, window)
    entries = [entry for entry in timeline.entries if entry.event is not None and _topic(entry) in KEPT]
    if not entries:
        raise ParleyError("not_found", f"the log holds no turn, token or verdict of {target.text}")
    incident = incident_of(target, entries, live_policy(settings), content=content)
    return write_fixture(folder, incident, "a turn" if target.response else "a conversation")


def incident_of(target: Target, entries: list[Entry], policy: tuple[str, Policy] | None, *, content: bool) -> Incident:
    """The entries of a timeline as an incident, disguised.

    Raises:
        ParleyError: invalid_request: these events alone don't show what all of the conversation's showed.
    """
    real = [_happened(entry) for entry in entries]
    chosen = policy if policy is not None and _decided(entries, policy[1]) else None
    before = observe(target.session, real)
    if not _agrees(before, entries):
        raise ParleyError("invalid_request", "a turn alone does not show what was seen: export its --session")
    disguise = Disguise(content=content)
    session = disguise.uuid(target.session)
    events = tuple(
        Happened(
            topic=each.topic,
            response=disguise.response(each.response) if each.response else None,
            event=disguise.event(each.event),
        )
        for each in real
    )
    seen = observe(session, events, chosen[1] if chosen else None)
    if (seen.state_log, [*seen.routes.values()]) != (before.state_log, [*before.routes.values()]):
        raise ParleyError("internal", "disguised, the events fold otherwise than they did")
    return Incident(session=session, policy=chosen[0] if chosen else None, events=events, seen=seen)


def _decided(entries: list[Entry], policy: Policy) -> bool:
    """The verdicts on prompts are this policy's, and what it makes of their scores."""
    verdicts = [entry.event for entry in entries if isinstance(entry.event, Verdict) and entry.event.stage == "input"]
    again = [policy.decide("input", verdict.scores) for verdict in verdicts]
    return bool(verdicts) and all(
        (verdict.policy, verdict.decision, verdict.categories) == (policy.version, decision.action, decision.categories)
        for verdict, decision in zip(verdicts, again, strict=True)
    )


def live_policy(settings: Settings) -> tuple[str, Policy] | None:
    """The policy file that is live here, and what it says; None: it can't be read."""
    try:
        return settings.moderation.policy.read_text("utf-8"), Policy.load(settings.moderation.policy)
    except (OSError, ValueError):
        return None


def _topic(entry: Entry) -> str:
    """Routes have one name here, whichever topic they are on."""
    return TOKENS if entry.kind in ("opened", "fence", "delta", "terminal") else entry.topic


def _happened(entry: Entry) -> Happened:
    assert entry.event is not None
    return Happened(topic=_topic(entry), response=entry.response, event=entry.event.model_dump(mode="json"))


def _agrees(seen: Seen, entries: list[Entry]) -> bool:
    """The state log judged alone is what it was within the whole session.

    A timeline also calls ends void that only repeat what stands; the session's fold takes those without harm.
    """
    whole = [entry.void for entry in entries if _topic(entry) == TURNS]
    return all(
        alone == judged or (alone is None and _repeats(judged))
        for alone, judged in zip(seen.state_log, whole, strict=True)
    )


def _repeats(void: str | None) -> bool:
    return void is not None and " end" in void


def write_fixture(folder: Path, incident: Incident, what: str) -> Path:
    """Write an incident and its test; gives the test.

    Raises:
        ParleyError: invalid_request: they are there already, or can't be written.
    """
    name = incident.session.hex
    fixture, test = folder / f"incident_{name}.json", folder / f"test_incident_{name}.py"
    if fixture.exists() or test.exists():
        raise ParleyError("invalid_request", f"{test} is there already")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fixture.write_text(incident.model_dump_json(indent=1) + "\n", "utf-8")
        test.write_text(_TEST.format(what=what, fixture=fixture.name) + (_POLICY_TEST if incident.policy else ""))
    except OSError as error:
        raise ParleyError("invalid_request", f"cannot write into {folder}: {error.strerror or error}") from error
    return test
