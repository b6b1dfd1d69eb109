"""Fits, measures and writes the model, the default policy, the figures and the card."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import click
import fasttext
import numpy as np
import yaml

from consumers.moderation.train import own_texts
from consumers.moderation.train.card import render
from consumers.moderation.train.figures import DevSets, Scores, choose_thresholds, worth
from consumers.moderation.train.fit import BASELINE, PARLEY, Row, fit, lower, narrow, read
from parley.safety.classifier import WINDOW_WORDS, Classifier, Window
from parley.safety.policy import Policy
from parley.safety.text import words

UNJUDGED = ("harassment", "jailbreak")
"""Categories without examples in the development sets."""
RECORDED_ONLY = {"input": ("harassment",), "output": ("jailbreak",)}
"""Swearing at the assistant is no reason to refuse; an answer is no attack on the assistant."""
HOLD_BACK = 4
REFUSAL = {
    "input": "I can't help with that request.",
    "output": "I can't continue this answer.",
}
POLICY_HEADER = (
    "# Written by consumers.moderation.train. Thresholds belong to this model file; give every change a new version.\n"
)
DEV_SETS = ("ailuminate_demo", "benign_chat", "hatecheck", "simple_safety_tests", "xstest")


def peaks(classifier: Classifier, text: str) -> Scores:
    """The highest scores that the output guard would see in an answer with the default hold-back."""
    window, worst = Window(classifier, WINDOW_WORDS), np.zeros(len(classifier.categories))
    for position, word in enumerate(words(text)):
        window.push(word)
        if position >= HOLD_BACK:
            np.maximum(worst, window.probabilities(), out=worst)
    highest: Scores = np.maximum(worst, window.probabilities())
    return highest


def predict(model: fasttext.FastText._FastText, categories: tuple[str, ...], tokens: list[str]) -> Scores:
    """fastText's own scores of a whole text."""
    found = {
        label.removeprefix("__label__"): p for p, label in model.f.predict(" ".join(tokens) + "\n", -1, 0.0, "strict")
    }
    return np.array([found.get(category, 0.0) for category in categories])


def summary(dev: DevSets, thresholds: Scores) -> dict[str, Any]:
    """The figures of one scorer under its thresholds."""
    return {
        "average_precision_any_category": round(dev.average_precision(), 4),
        "worth": round(worth(dev.rates(thresholds)), 4),
        **dev.rates(thresholds),
        "recall_by_category": dev.recall_by_category(thresholds),
        "thresholds": dict(zip(dev.categories, thresholds.tolist(), strict=True)),
    }


def judge(dev: DevSets) -> Scores:
    """Thresholds by the rules that every compared model gets alike."""
    return choose_thresholds(dev, UNJUDGED)


def buried(rows: list[Row], benign: list[Row]) -> list[str]:
    """Each text with 80 harmless words before and 80 after: a window finds it, an average over all words doesn't."""
    filler = " ".join(row.text for row in benign).split()
    return [" ".join([*filler[i : i + 80], row.text, *filler[i + 80 : i + 160]]) for i, row in enumerate(rows)]


def policy_of(inputs: Scores, outputs: Scores, categories: tuple[str, ...], version: str) -> dict[str, Any]:
    """The default policy's content."""

    def rule(stage: str, category: str, threshold: float) -> dict[str, Any]:
        return {"threshold": threshold, "action": "allow" if category in RECORDED_ONLY[stage] else "block"}

    return {
        "version": f"default-{version[:8]}",
        "hold_back": HOLD_BACK,
        "window": WINDOW_WORDS,
        "refusal": REFUSAL,
        "categories": {
            category: {"input": rule("input", category, before), "output": rule("output", category, after)}
            for category, before, after in zip(categories, inputs.tolist(), outputs.tolist(), strict=True)
        },
    }


@click.command()
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="Folder with train.jsonl.gz and dev/*.jsonl.gz; it is read only.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Folder for the model, policy.yaml, metrics.json and MODEL_CARD.md; files there are replaced.",
)
def main(data: Path, out: Path) -> None:
    """Trains the moderation classifier. About a minute on one core; the same data gives the same bytes."""
    out.mkdir(parents=True, exist_ok=True)
    rows = read(data / "train.jsonl.gz")
    dev_rows = {name: read(data / "dev" / f"{name}.jsonl.gz") for name in DEV_SETS}

    model = fit(PARLEY, [*rows, *(Row(text, frozenset(labels)) for text, labels in own_texts.rows())])
    narrow(model)
    model.save_model(str(out / "moderation.bin"))
    classifier = Classifier.load(out / "moderation.bin")
    categories = classifier.categories

    before = DevSets.score(dev_rows, categories, lambda text: classifier.probabilities(words(text)))
    after = DevSets.score(dev_rows, categories, lambda text: peaks(classifier, text))
    input_thresholds, output_thresholds = judge(before), judge(after)

    content = policy_of(input_thresholds, output_thresholds, categories, classifier.version)
    (out / "policy.yaml").write_text(
        POLICY_HEADER + yaml.safe_dump(content, sort_keys=False, allow_unicode=True), "utf-8"
    )
    policy = Policy.load(out / "policy.yaml")
    deciding = {stage: np.minimum(policy.limits(stage, categories), 2.0) for stage in ("input", "output")}

    baseline = fit(BASELINE, rows)
    reference = DevSets.score(dev_rows, categories, lambda text: predict(baseline, categories, lower(text)))
    long_texts = buried(dev_rows["ailuminate_demo"], dev_rows["benign_chat"])
    whole = np.stack([predict(model, categories, words(text)) for text in long_texts])
    windows = np.stack([classifier.probabilities(words(text)) for text in long_texts])

    taught = {tuple(words(text)) for text, _ in own_texts.rows()}
    samples = yaml.safe_load((Path(__file__).parent / "samples.yaml").read_text("utf-8"))
    metrics = {
        "model_sha256": hashlib.sha256((out / "moderation.bin").read_bytes()).hexdigest(),
        "model_version": classifier.version,
        "policy_version": policy.version,
        "rows": len(rows),
        "input": summary(before, deciding["input"]),
        "output": summary(after, deciding["output"]),
        "baseline": summary(reference, judge(reference)),
        "buried_in_160_harmless_words": {
            "recall_whole_text": round(float((whole >= deciding["input"]).any(1).mean()), 4),
            "recall_windows": round(float((windows >= deciding["input"]).any(1).mean()), 4),
        },
        "samples": [
            {
                "text": text,
                "wanted": wanted,
                "trained_on": tuple(words(text)) in taught,
                "decision": (decision := policy.decide("input", classifier.scores(text))).action,
                "scores": {name: round(score, 4) for name, score in decision.scores.items()},
            }
            for wanted, texts in samples.items()
            for text in texts
        ],
    }
    (out / "metrics.json").write_text(json.dumps(metrics, indent=1, ensure_ascii=False) + "\n", "utf-8")
    (out / "MODEL_CARD.md").write_text(render(metrics, policy), "utf-8")
    click.echo(f"model {classifier.version} and policy {policy.version} are in {out}")


if __name__ == "__main__":
    main()
