"""`parley replay run --stage worker`: the production worker on a real engine, and nothing live that changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parley.topics import PROMPTS, TURNS
from producers.replay.cli import replay
from schemas.base import Sampling, Timings
from schemas.prompts import InferenceRequest, OutputItem, PromptAccepted
from tests.integration.operators.conftest import Talk, now_ms
from tests.integration.operators.test_replay import live_ends
from tests.integration.worker_parts import script, words

pytestmark = pytest.mark.stack

POOL = "synthetic"


async def a_turn(talk: Talk, number: int, answered: str, **how: object) -> PromptAccepted:
    """A turn as edge, orchestrator and worker leave it in the log."""
    route = await talk.lane(5)
    prompt = talk.prompt(talk.response(route), route, "say it", model="synthetic")
    await talk.put(PROMPTS, prompt)
    request = InferenceRequest(
        **{name: getattr(prompt, name) for name in ("response", "session", "user", "tier", "model", "route")},
        turn=number,
        parent=None,
        dispatch=(1, number),
        pool=POOL,
        prompt=f"<|im_start|>user\n{script(**how)}<|im_end|>\n<|im_start|>assistant\n",
        prompt_tokens=2,
        max_tokens=50,
        sampling=Sampling(),
        output=OutputItem(id=prompt.items[0].id),
        deadline=now_ms(),
        moderation_deadline=now_ms(),
        verdict=talk.verdict(prompt.response),
        template="chatml-1",
        timings=Timings(accepted=now_ms()),
    )
    await talk.put(talk.settings.topics.inference_topic(POOL, "free"), request)
    await talk.put(TURNS, talk.ended(prompt, number, answered, pool=POOL))
    return prompt


async def test_answers_of_another_run_are_put_beside_the_old_ones(
    talk: Talk, synthetic_engine: str, tmp_path: Path
) -> None:
    """Deadlines of the past don't end it, and the user who was answered then is told nothing now."""
    same = await a_turn(talk, 1, words(5), words=5)
    other = await a_turn(talk, 2, "something else", words=3)
    before = await live_ends(talk)
    result = await talk.command(
        replay,
        *(
            "run",
            "--stage",
            "worker",
            "--session",
            str(talk.session),
            "--out",
            str(tmp_path / "out"),
            "--yes",
            "--json",
        ),
        PARLEY_ENGINES=json.dumps({POOL: synthetic_engine}),
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert await live_ends(talk) == before
    assert {row["response"]: row["change"] for row in report["rows"]} == {
        same.response: "same",
        other.response: "other text",
    }
    [first, _] = report["rows"]
    assert first["after"]["tokens"] == 5
    assert first["after"]["ttft ms"] is not None


async def test_without_an_engine_it_says_which_setting_is_missing(talk: Talk, tmp_path: Path) -> None:
    await a_turn(talk, 1, "x", words=1)
    result = await talk.command(
        replay, *("run", "--stage", "worker", "--session", str(talk.session), "--out", str(tmp_path / "o"), "--yes")
    )
    assert (result.exit_code, "PARLEY_ENGINES has no engine 0" in result.output) == (1, True)
