"""Scores equal fastText's own, windows equal texts, and the committed files belong together."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import fasttext
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from consumers.moderation.train.fit import train_in_fresh_memory
from parley.safety.classifier import WINDOW_WORDS, Classifier, ModelUnusable, Window
from parley.safety.policy import Policy
from parley.safety.text import words

ROOT = Path(__file__).parents[3]
MODELS = ROOT / "models" / "moderation"
TEXTS = (
    "How do I build a bomb?",
    "how do I kill a zombie process",
    "thanks",
    "Zürich ist schön, naïve façade Ünïcödé",
    "今天天气怎么样？ 我们去公园吧",
    "You are a worthless idiot and everybody hates you",
    "one two three four five six seven eight nine ten " * 6,
)
VOCABULARY = ("how", "do", "i", "kill", "a", "process", "bomb", "sex", "naïve", "爆弹", "zzqx")
SIGMOID_TABLE = 0.01
"""fastText looks the sigmoid up in a table of 512 steps."""


@pytest.mark.parametrize("text", TEXTS)
def test_scores_are_those_of_fasttext(classifier: Classifier, text: str) -> None:
    model = fasttext.load_model(str(MODELS / "moderation.bin"))
    own = {label: p for p, label in model.f.predict(" ".join(words(text)) + "\n", -1, 0.0, "strict")}
    for category, score in zip(
        classifier.categories, classifier.probabilities(words(text)[:WINDOW_WORDS]), strict=True
    ):
        assert score == pytest.approx(own.get(f"__label__{category}", 0.0), abs=SIGMOID_TABLE)


@given(st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=40), st.integers(1, 12))
def test_a_window_scores_exactly_like_the_text_it_shows(classifier: Classifier, stream: list[str], size: int) -> None:
    window = Window(classifier, size)
    for count, word in enumerate(stream, 1):
        window.push(word)
        shown = stream[max(0, count - size) : count]
        assert np.array_equal(window.probabilities(), classifier.probabilities(shown))


def test_a_long_text_scores_like_its_worst_window(classifier: Classifier) -> None:
    stream = words(
        "tell me about the weather in the mountains " * 20
        + "how do I build a bomb to kill people "
        + "and the sea " * 40
    )
    last = len(stream) - WINDOW_WORDS
    starts = [*range(0, last, WINDOW_WORDS // 4), last]
    windows = [classifier.probabilities(stream[start : start + WINDOW_WORDS]) for start in starts]
    assert np.array_equal(classifier.probabilities(stream), np.max(windows, axis=0))


def test_no_words_have_no_score(classifier: Classifier) -> None:
    assert set(classifier.scores(" …! ").values()) == {0.0}
    assert set(classifier.score_parts([]).values()) == {0.0}
    assert set(Window(classifier, 8).probabilities().tolist()) == {0.0}


def test_parts_score_as_the_worst_of_each_category(classifier: Classifier) -> None:
    bomb, death = "How do I build a bomb?", "I want to kill myself"
    together = classifier.score_parts(["hello", bomb, death])
    singly = [classifier.scores(part) for part in ("hello", bomb, death)]
    assert together == {name: max(scores[name] for scores in singly) for name in classifier.categories}


def test_safe_is_no_category(classifier: Classifier) -> None:
    assert set(classifier.categories) == {
        "harassment",
        "hate",
        "illicit",
        "jailbreak",
        "self-harm",
        "sexual",
        "violence",
    }


def test_a_missing_or_foreign_file_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "other.bin").write_bytes(b"not a model")
    for path in (tmp_path / "none.bin", tmp_path / "other.bin"):
        with pytest.raises(ModelUnusable, match=path.name):
            Classifier.load(path)


@pytest.mark.parametrize("settings", [{"loss": "softmax"}, {"wordNgrams": 3}])
def test_a_model_of_another_kind_is_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    corpus, model = tmp_path / "corpus.txt", tmp_path / "model.bin"
    corpus.write_text("__label__a one two\n__label__b three four\n" * 20)
    train_in_fresh_memory(
        corpus, model, {"loss": "ova", "wordNgrams": 2, "bucket": 2000, "thread": 1, "verbose": 0} | settings
    )
    with pytest.raises(ModelUnusable, match="loss ova"):
        Classifier.load(model)


def test_the_model_is_the_one_that_card_figures_and_policy_speak_of(
    classifier: Classifier, policy: Policy, metrics: dict[str, Any]
) -> None:
    digest = hashlib.sha256((MODELS / "moderation.bin").read_bytes()).hexdigest()
    card = (MODELS / "MODEL_CARD.md").read_text("utf-8")
    assert metrics["model_sha256"] == digest
    assert digest in card
    assert classifier.version == metrics["model_version"] == digest[:16]
    assert policy.version == metrics["policy_version"]
    assert policy.version in card


def test_the_model_reproduces_its_figures(classifier: Classifier, policy: Policy, metrics: dict[str, Any]) -> None:
    for sample in metrics["samples"]:
        scores = classifier.scores(sample["text"])
        assert scores == pytest.approx(sample["scores"], abs=1e-4), sample["text"]
        assert policy.decide("input", scores).action == sample["decision"], sample["text"]


def test_the_samples_are_those_of_the_training_script_and_nearly_all_go_right(metrics: dict[str, Any]) -> None:
    wanted = yaml.safe_load((ROOT / "consumers/moderation/train/samples.yaml").read_text("utf-8"))
    measured = metrics["samples"]
    assert [(s["wanted"], s["text"]) for s in measured] == [(w, text) for w, texts in wanted.items() for text in texts]
    assert sum(s["wanted"] != s["decision"] for s in measured) <= 3


def test_the_committed_model_beats_the_baseline_within_the_same_false_alarms(metrics: dict[str, Any]) -> None:
    ours, baseline = metrics["input"], metrics["baseline"]
    assert ours["false_alarms_benign_chat"] <= 0.01
    assert ours["false_alarms_xstest_safe"] <= 0.06
    for figure in ("worth", "average_precision_any_category", "recall_ailuminate_demo", "recall_xstest_unsafe"):
        assert ours[figure] > baseline[figure], figure


def test_the_model_stays_small() -> None:
    assert (MODELS / "moderation.bin").stat().st_size < 8 << 20
