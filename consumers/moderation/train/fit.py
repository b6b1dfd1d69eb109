"""From labelled rows to a fastText model, the same model each time."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fasttext
import numpy as np

from parley.safety.text import words

Tokenizer = Callable[[str], list[str]]

_FIXED_SETTINGS = {"wordNgrams": 2, "minn": 4, "maxn": 5, "minCount": 3, "thread": 1, "verbose": 0}


@dataclass(frozen=True)
class Row:
    """One text and what it is: `labels` as the data set has them."""

    text: str
    labels: frozenset[str]


@dataclass(frozen=True)
class Recipe:
    """fastText's settings, and how often a row is repeated: the largest factor of its labels."""

    lr: float
    bucket: int
    repeat: Mapping[str, int]
    tokenize: Tokenizer
    dim: int = 32
    epoch: int = 4


def lower(text: str) -> list[str]:
    """The baseline's reading of a text."""
    return text.lower().split()


BASELINE = Recipe(
    lr=0.2, bucket=200_000, tokenize=lower, repeat={"self-harm": 5, "jailbreak": 4, "violence": 3, "sexual": 3}
)
PARLEY = Recipe(
    lr=0.1, bucket=100_000, tokenize=words, repeat={"self-harm": 3, "jailbreak": 3, "violence": 2, "sexual": 2}
)


def read(path: Path) -> list[Row]:
    """The rows of a gzipped JSON-lines file of {"text", "labels", …}."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [Row(row["text"], frozenset(row["labels"])) for row in map(json.loads, lines)]


def fit(recipe: Recipe, rows: Iterable[Row]) -> fasttext.FastText._FastText:
    """Trains on the rows; equal input gives equal bytes.

    Raises CalledProcessError when fastText fails; its message is on standard error.
    """
    lines = []
    for row in rows:
        tokens = recipe.tokenize(row.text)
        if tokens:
            labels = " ".join(f"__label__{label}" for label in sorted(row.labels))
            lines += [f"{labels} {' '.join(tokens)}\n"] * max(recipe.repeat.get(label, 1) for label in row.labels)
    random.Random(1).shuffle(lines)
    settings = {"loss": "ova", "lr": recipe.lr, "dim": recipe.dim, "epoch": recipe.epoch, "bucket": recipe.bucket}
    with tempfile.TemporaryDirectory() as folder:
        corpus, model = Path(folder, "corpus.txt"), Path(folder, "model.bin")
        corpus.write_text("".join(lines), "utf-8")
        train_in_fresh_memory(corpus, model, {**_FIXED_SETTINGS, **settings})
        return fasttext.load_model(str(model))


def train_in_fresh_memory(corpus: Path, model: Path, settings: dict[str, Any]) -> None:
    """fastText with one thread fills only a tenth of its input matrix and takes the rest as malloc returns it.

    In a process with a past that is reused memory: training failed with "Encountered NaN" or differed between runs. In
    a new process whose allocator takes large blocks from the kernel it is zeros. It has failed so even there, once in a
    hundred times or less: then it is tried again.
    """
    command = [sys.executable, "-m", "consumers.moderation.train.child", str(corpus), str(model), json.dumps(settings)]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 16)}
    for last in (False, False, True):
        if subprocess.run(command, check=last, env=environment).returncode == 0:
            return


def narrow(model: fasttext.FastText._FastText) -> None:
    """Turns a model of any dimension into one of as many dimensions as it has labels, with the same scores.

    A score is output @ mean(rows), and the output matrix has no higher rank than it has labels: projected on its right
    singular vectors, the rows lose nothing that a score could see. Quantising, to compare, loses a third of the recall.
    """
    left, scale, right = np.linalg.svd(model.get_output_matrix().astype(np.float64), full_matrices=False)
    rows = model.get_input_matrix().astype(np.float64) @ right.T
    model.set_matrices(rows.astype(np.float32), (left * scale).astype(np.float32))
