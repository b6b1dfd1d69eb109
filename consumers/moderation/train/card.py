"""The model card, written from the figures so that the two can't differ."""

from __future__ import annotations

from typing import Any

from parley.safety.policy import Policy

_RATES = {
    "worth": "what thresholds are chosen for (`figures.worth`)",
    "average_precision_any_category": "area under precision/recall, any category",
    "false_alarms_benign_chat": "benign_chat flagged (limit 1%)",
    "false_alarms_xstest_safe": "XSTest's safe prompts flagged (limit 6%)",
    "false_alarms_hatecheck_not_hate": "HateCheck's non-hateful sentences flagged",
    "recall_xstest_unsafe": "XSTest's unsafe prompts flagged",
    "recall_ailuminate_demo": "AILuminate demo prompts flagged",
    "recall_simple_safety_tests": "SimpleSafetyTests prompts flagged",
    "recall_hatecheck_hate": "HateCheck's hateful sentences flagged",
}

_TEMPLATE = """\
# Model card: Parley's moderation classifier
A fastText classifier (supervised, one-vs-all) of seven categories of harm and "safe". It scores prompts,
instructions and tool outputs before an answer may leave, and answers while they are written. It is the first and
cheapest line; it reads n-grams, not meaning.

- file: `moderation.bin`, SHA-256 `{sha}`, version `{version}`
- policy made with it: `policy.yaml`, version `{policy}`
- made by: `python -m consumers.moderation.train --data DIR --out models/moderation`; one thread, fixed seed, repeats
  exactly
- trained on {rows:,} rows of public English-language sets under permissive licences (CC0, MIT, Apache-2.0, CC BY 3.0
  and 4.0, CDLA-Permissive-2.0) and on sentences written for Parley (`own_texts.py`); no data set text is in this
  repository
- size: the trained 32 dimensions are projected on the 7 + 1 that scores depend on (4.5 MB in place of 16.6 MB,
  scores equal to rounding). Product quantisation to 2.5 MB was tried and dropped: AILuminate recall fell from .31 to
  .12 at the same limits (an earlier fit)

## Figures
All on development sets that were used to choose the thresholds (none was trained on); expect less elsewhere. "input"
is the whole prompt or its worst window of {window} words, "output" the worst of all windows that the guard scores as
words arrive. "baseline" is fastText with common settings (lr .2, 200,000 buckets, lower-casing only), thresholds
chosen by the same rules.

| | input | output | baseline |
|---|---|---|---|
{rates}

Recall by category (flagged by any category, thresholds of the default policy):

| set / category | input | output | baseline |
|---|---|---|---|
{recall}

AILuminate prompts put between 80 harmless words on either side: {whole:.1%} flagged when scored as a whole,
{windows:.1%} with windows.

Thresholds of the default policy ("recorded": scored and kept in the verdict, never blocks):

| category | input | output |
|---|---|---|
{thresholds}

{right} of {samples} prompts written for Parley get the wanted decision (`metrics.json` has each){wrong}. {taught} of
them are also training sentences and show only that they were learned; of the other {unseen}, {right_unseen} go
right. The training sentences were written while looking at such prompts, so these too are no independent test.

## Limits
- English. Other languages pass mostly unjudged; thresholds below .15 are not used, since text that the model knows
  nothing of scores up to .07.
- It knows phrases, not intent: polite, indirect or fictional requests pass ({missed:.0%} of AILuminate's prompts),
  and a harmless sentence with harmful phrases may be blocked. HateCheck's counter-speech is flagged often.
- "harassment" and "jailbreak" have no examples in the development sets; their thresholds only avoid false alarms.
- Letters are unmasked where that is cheap (full-width and styled letters, invisible characters, Cyrillic and Greek
  look-alikes inside Latin words); digits for letters and spaced-out letters are not.
- A low score is no proof of safety: put a stronger classifier behind it where the stakes are high.
"""


def render(metrics: dict[str, Any], policy: Policy) -> str:
    """The card's text for the figures in metrics.json."""
    columns = (metrics["input"], metrics["output"], metrics["baseline"])

    def row(title: str, values: list[float]) -> str:
        return f"| {title} | " + " | ".join(f"{value:.3f}" for value in values) + " |"

    samples = metrics["samples"]
    wrong = [sample["text"] for sample in samples if sample["decision"] != sample["wanted"]]
    unseen = [sample for sample in samples if not sample["trained_on"]]
    return _TEMPLATE.format(
        sha=metrics["model_sha256"],
        version=metrics["model_version"],
        policy=metrics["policy_version"],
        rows=metrics["rows"],
        window=policy.window,
        rates="\n".join(row(title, [column[key] for column in columns]) for key, title in _RATES.items()),
        recall="\n".join(
            row(key, [column["recall_by_category"][key] for column in columns])
            for key in metrics["input"]["recall_by_category"]
        ),
        whole=metrics["buried_in_160_harmless_words"]["recall_whole_text"],
        windows=metrics["buried_in_160_harmless_words"]["recall_windows"],
        thresholds="\n".join(
            f"| {name} | {_rule(category.input.threshold, category.input.action)} "
            f"| {_rule(category.output.threshold, category.output.action)} |"
            for name, category in policy.categories.items()
        ),
        right=len(samples) - len(wrong),
        samples=len(samples),
        taught=len(samples) - len(unseen),
        unseen=len(unseen),
        right_unseen=sum(sample["decision"] == sample["wanted"] for sample in unseen),
        wrong="; not: " + "; ".join(wrong) if wrong else "",
        missed=1 - metrics["input"]["recall_ailuminate_demo"],
    )


def _rule(threshold: float, action: str) -> str:
    return f"{threshold:.2f}" if action == "block" else "recorded"
