"""The moderation classifier: a fastText model, read once into a table of fixed-point contributions.

fastText (supervised, one-vs-all loss) scores a text by averaging the rows of its features (words, character n-grams,
hashed word pairs), multiplying the mean by the labels' matrix and squashing it. All but the squashing is linear, so
each row is multiplied by the labels' matrix when the model is loaded: a text's score is then a sum of vectors with
one number per label, and a sliding window is kept by adding the word that enters and subtracting the one that leaves.

The sums are integers. Integer addition is exact, so a window's score depends on its words alone, never on how the
window came about: a stream that is continued on another machine is judged as if it had never moved.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import fasttext
import numpy as np
import numpy.typing as npt

from parley.safety.text import words

Sums = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float64]
Probabilities = npt.NDArray[np.float64]

WINDOW_WORDS = 32
_STRIDE = 8
_SAFE = "safe"
_LABEL_PREFIX = "__label__"
_END_OF_TEXT = "</s>"
_FIXED_POINT = float(1 << 24)
_PAIR_FACTOR = 116049371
_MASK = (1 << 64) - 1
_REMEMBERED_WORDS = 50_000


class ModelUnusable(ValueError):
    """The model file can't be read, or was trained in a way that this code does not score."""


class _Word(NamedTuple):
    sums: Sums
    packed: bytes
    features: int
    hash: int


def _hash(word: str) -> int:
    """fastText's FNV-1a over signed bytes, widened from int32 to uint64 as its word pairs do."""
    value = 2166136261
    for byte in word.encode("utf-8", "surrogatepass"):
        value = ((value ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619) & 0xFFFFFFFF
    return value if value < 1 << 31 else value | 0xFFFFFFFF00000000


class Classifier:
    """Scores text by category, each between 0 and 1. Read-only after loading, so any number of threads may share one.

    `version` is the first 16 hex digits of the model file's SHA-256; `categories` are the labels without "safe".
    """

    def __init__(self, model: fasttext.FastText._FastText, model_file: bytes) -> None:
        args = model.f.getArgs()
        if args.wordNgrams != 2 or args.loss.name != "ova":
            raise ModelUnusable("it needs wordNgrams 2 and loss ova: train it with consumers.moderation.train")
        if model.is_quantized():
            raise ModelUnusable("a quantised model does not give its matrices: use the .bin file")
        labels = [label.removeprefix(_LABEL_PREFIX) for label in model.get_labels()]
        kept = [i for i, label in enumerate(labels) if label != _SAFE]
        self.categories: tuple[str, ...] = tuple(labels[i] for i in kept)
        self.version = hashlib.sha256(model_file).hexdigest()[:16]
        self._subwords = model.get_subwords
        self._known = len(model.get_words())
        self._bucket = int(args.bucket)
        rows, output = model.get_input_matrix(), model.get_output_matrix()[kept]
        self._table: Sums = np.rint(rows.astype(np.float64) @ output.T.astype(np.float64) * _FIXED_POINT).astype(
            np.int64
        )
        self._words: dict[str, _Word] = {}
        end = model.get_word_id(_END_OF_TEXT)
        self._end = self._entry([end] if end >= 0 else [], _END_OF_TEXT)

    @classmethod
    def load(cls, path: Path | str) -> Classifier:
        """Reads a .bin file (a fraction of a second).

        Raises ModelUnusable with what to do when the file is missing, not a fastText model, or of another kind.
        """
        try:
            return cls(fasttext.load_model(str(path)), Path(path).read_bytes())
        except (OSError, ValueError) as error:
            raise ModelUnusable(f"cannot use moderation model {path}: {error}") from error

    def scores(self, text: str) -> dict[str, float]:
        """Each category's score of the whole text or, beyond `WINDOW_WORDS`, of its worst window."""
        return self.named(self.probabilities(words(text)))

    def score_parts(self, parts: Iterable[str]) -> dict[str, float]:
        """The highest score of each category over several texts (the prompt, instructions, outputs of tools)."""
        worst = np.zeros(len(self.categories))
        for part in parts:
            np.maximum(worst, self.probabilities(words(part)), out=worst)
        return self.named(worst)

    def named(self, probabilities: Probabilities) -> dict[str, float]:
        """An array in the order of `categories` as a mapping."""
        return dict(zip(self.categories, probabilities.tolist(), strict=True))

    def probabilities(self, text_words: Sequence[str]) -> Probabilities:
        """Scores in the order of `categories`; zeros for no words at all."""
        if not text_words:
            return np.zeros(len(self.categories))
        entries = [self.word(word) for word in text_words]
        singles = np.frombuffer(b"".join([entry.packed for entry in entries]), np.int64).reshape(len(entries), -1)
        hashes = np.array([entry.hash for entry in entries] + [self._end.hash], np.uint64)
        buckets = (hashes[:-1] * np.uint64(_PAIR_FACTOR) + hashes[1:]) % np.uint64(self._bucket)
        pairs = self._table[buckets.astype(np.intp) + self._known]
        if len(entries) <= WINDOW_WORDS:
            features = sum([entry.features for entry in entries]) + len(entries) + self._end.features
            return squash((singles.sum(0) + pairs.sum(0) + self._end.sums) / (features * _FIXED_POINT))
        return self._worst_window(entries, singles, pairs)

    def _worst_window(self, entries: list[_Word], singles: Sums, pairs: Sums) -> Probabilities:
        last = len(entries) - WINDOW_WORDS
        first = np.append(np.arange(0, last, _STRIDE), last)
        after = first + WINDOW_WORDS
        single_sums = np.vstack([np.zeros((1, singles.shape[1]), np.int64), singles.cumsum(0)])
        pair_sums = np.vstack([np.zeros((1, pairs.shape[1]), np.int64), pairs.cumsum(0)])
        counts = np.append(0, np.cumsum([entry.features for entry in entries]))
        ends = np.array([self.pair(entries[i - 1], self._end) for i in after])
        sums = single_sums[after] - single_sums[first] + pair_sums[after - 1] - pair_sums[first] + ends + self._end.sums
        features = counts[after] - counts[first] + WINDOW_WORDS + self._end.features
        worst: Logits = (sums / (features[:, None] * _FIXED_POINT)).max(0)
        return squash(worst)

    def word(self, word: str) -> _Word:
        """What a folded word contributes; remembered, since most words of a text have been seen before."""
        entry = self._words.get(word)
        if entry is None:
            entry = self._entry(self._subwords(word)[1], word)
            if len(self._words) < _REMEMBERED_WORDS:
                self._words[word] = entry
        return entry

    def _entry(self, features: Sequence[int], word: str) -> _Word:
        sums: Sums = self._table[np.asarray(features, np.intp)].sum(0)
        return _Word(sums, sums.tobytes(), len(features), _hash(word))

    def pair(self, first: _Word, second: _Word) -> Sums:
        """What two words contribute by standing next to each other."""
        row: Sums = self._table[self._known + (first.hash * _PAIR_FACTOR + second.hash & _MASK) % self._bucket]
        return row

    @property
    def end(self) -> _Word:
        """The mark at the end of every text that fastText was trained on."""
        return self._end


class Window:
    """The last `size` words of a stream and their score, a few microseconds a word whatever the size."""

    def __init__(self, classifier: Classifier, size: int) -> None:
        self._classifier = classifier
        self._size = size
        self._words: deque[tuple[_Word, Sums]] = deque()
        self._sums: Sums = classifier.end.sums.copy()
        self._features = classifier.end.features

    def push(self, word: str) -> None:
        """One folded word enters; the oldest leaves when the window is full."""
        classifier, entry = self._classifier, self._classifier.word(word)
        # Each word is kept with its pair with the word before; the first has none, but the text's end adds one pair.
        pair = classifier.pair(self._words[-1][0], entry) if self._words else np.zeros_like(entry.sums)
        self._words.append((entry, pair))
        self._sums += entry.sums
        self._sums += pair
        self._features += entry.features + 1
        if len(self._words) > self._size:
            oldest, _ = self._words.popleft()
            self._sums -= oldest.sums
            self._sums -= self._words[0][1]
            self._features -= oldest.features + 1

    def logits(self) -> Logits:
        """The scores before squashing, in the order of the classifier's categories; IndexError while empty."""
        with_end = self._sums + self._classifier.pair(self._words[-1][0], self._classifier.end)
        logits: Logits = with_end / (self._features * _FIXED_POINT)
        return logits

    def probabilities(self) -> Probabilities:
        """Scores of the window in the order of the classifier's categories; zeros while it is empty."""
        return squash(self.logits()) if self._words else np.zeros(len(self._classifier.categories))

    def __bool__(self) -> bool:
        return bool(self._words)


def squash(logits: Logits) -> Probabilities:
    """The logistic function, as fastText's one-vs-all loss has it."""
    probabilities: Probabilities = 1.0 / (1.0 + np.exp(-logits))
    return probabilities
