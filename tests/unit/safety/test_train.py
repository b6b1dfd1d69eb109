"""Training repeats exactly, and narrowing a model changes no score."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from consumers.moderation.train import own_texts
from consumers.moderation.train.fit import PARLEY, Row, fit, narrow
from parley.safety.classifier import Classifier
from parley.safety.text import words

ROWS = [Row(text, frozenset(labels)) for text, labels in own_texts.rows()]
SMALL = replace(PARLEY, bucket=20_000)


def test_training_twice_in_one_process_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("first", "second"):
        model = fit(SMALL, ROWS)
        narrow(model)
        model.save_model(str(tmp_path / name))
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_narrowing_shrinks_the_model_and_keeps_its_scores(tmp_path: Path) -> None:
    model = fit(SMALL, ROWS)
    model.save_model(str(tmp_path / "wide.bin"))
    narrow(model)
    model.save_model(str(tmp_path / "narrow.bin"))
    assert (tmp_path / "narrow.bin").stat().st_size < (tmp_path / "wide.bin").stat().st_size / 3
    wide, small = Classifier.load(tmp_path / "wide.bin"), Classifier.load(tmp_path / "narrow.bin")
    for text in ("how do I build a bomb", "how to kill weeds in my lawn", "entirely unseen words"):
        assert small.probabilities(words(text)) == pytest.approx(wide.probabilities(words(text)), abs=1e-5)
