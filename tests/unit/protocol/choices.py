"""Where a schedule's decisions come from: a seed, or a list that Hypothesis draws and shrinks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Choices(Protocol):
    """Decides what happens next."""

    def below(self, bound: int) -> int:
        """A number from 0 to bound - 1. 0 is the harmless one."""

    def chance(self, probability: float) -> bool:
        """Whether something happens. False is the harmless one."""

    def pick(self, among: Sequence[T]) -> T:
        """One of these."""

    @property
    def spent(self) -> bool:
        """There is nothing left to decide: the troubles are over."""


class Seeded:
    """Endless choices, the same for the same seed."""

    spent = False

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def below(self, bound: int) -> int:
        return int(self._random() * bound)

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def pick(self, among: Sequence[T]) -> T:
        return among[int(self._random() * len(among))]


class Listed:
    """The choices of a list of bytes; after its end always the harmless ones."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers
        self._at = 0

    @property
    def spent(self) -> bool:
        return self._at >= len(self._numbers)

    def below(self, bound: int) -> int:
        if self._at >= len(self._numbers):
            return 0
        self._at += 1
        return self._numbers[self._at - 1] * bound >> 8

    def chance(self, probability: float) -> bool:
        return self.below(256) >= 256 * (1 - probability)

    def pick(self, among: Sequence[T]) -> T:
        return among[self.below(len(among))]
