"""Each rule of the protocol taken away once: a schedule shows it. So the checker can see what each rule is for.

The seeds are the first ones, of 5,000, in which a promise breaks; `python -m protocol table 5000` finds them again when
the model has changed. A promise that nothing breaks "but by old age" means that turns end only when they are too old.
"""

from __future__ import annotations

import pytest

from .explore import schedule
from .rules import RULES

FIRST_SEEDS = {
    "epoch-order": 141,
    "takeover-commit": 0,
    "proof": 35,
    "close-at-revoke": 1043,
    "gate": 15,
    "read-back": 0,
    "dispatch-check": 2,
    "orchestrator-fence": 1,
    "raise-run": 901,
    "expired-off-route": 2,
    "own-dispatch": 2,
    "start-first": 2,
    "log-end": 2,
    "fold-to-start": 750,
    "read-where-joined": 71,
    "rejoin": 93,
    "drop-lost": 8,
    "opened-acked": 261,
    "replay-first": 195,
    "dedupe": 11,
    "first-opened": 102,
    "verdict-gate": 13,
    "fail-closed": 36,
    "serial": 0,
    "read-from-start": 3,
    "writer-check": 35,
    "sequence": 337,
    "one-end": 2,
}

UNSEEN = {
    "let-go": "going on behind a void fence only costs an engine's work",
    "keep-if-same": "a member must sleep through a whole holding of another: test_interleavings does it (3)",
    "end-stays": "reopening an ended turn repeats its end; tests/unit/core/test_session.py holds the rule",
    "greater-replaces": "the running turn finds itself void, and the orchestrator ends it by its age",
    "offset-last": "the orchestrator ends by its age what was let go too early: test_interleavings shows it",
    "wait-in-flight": "a commit must linger through a whole rebalance: test_interleavings does it (18)",
}
"""Rules without which no schedule of 5,000 breaks a promise, and why they stay."""


def test_every_rule_is_accounted_for() -> None:
    assert set(FIRST_SEEDS) | set(UNSEEN) == set(RULES)
    assert not set(FIRST_SEEDS) & set(UNSEEN)
    assert all(seed < 5_000 for seed in FIRST_SEEDS.values())


@pytest.mark.parametrize(("rule", "seed"), FIRST_SEEDS.items(), ids=FIRST_SEEDS)
def test_without_the_rule_a_promise_breaks(rule: str, seed: int) -> None:
    assert schedule(seed, [rule]) is not None, f"without it: {RULES[rule]}"
    assert schedule(seed) is None, "and with it none does"
