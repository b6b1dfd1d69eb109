"""The moderation policy: a YAML file that says what is blocked, at which score, and how far output is held back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

Stage = Literal["input", "output"]
Action = Literal["allow", "block"]


class PolicyInvalid(ValueError):
    """The policy file can't be read, or does not fit the model. The message says what to change."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the policy says of one text: `categories` are those it is blocked for, worst first."""

    action: Action
    categories: tuple[str, ...]
    scores: dict[str, float]

    @property
    def blocked(self) -> bool:
        return self.action == "block"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Rule(_Strict):
    """What happens to a text whose score in a category reaches `threshold`; "allow" only records it."""

    threshold: Annotated[float, Field(gt=0, le=1)]
    action: Action


class Category(_Strict):
    """A category's rules for prompts (with instructions and tool outputs) and for answers."""

    input: Rule
    output: Rule


class Refusals(_Strict):
    """What a user reads in place of what was blocked."""

    input: Annotated[str, Field(min_length=1)]
    output: Annotated[str, Field(min_length=1)]


class Policy(_Strict):
    """The whole policy. `version` travels with every verdict: change it whenever anything else here changes."""

    version: Annotated[str, Field(min_length=1, max_length=64)]
    hold_back: Annotated[int, Field(ge=0, le=64)] = 4
    """Words of an answer that stay behind the newest scored word; 0 scores and releases at once (mode "score")."""
    window: Annotated[int, Field(ge=8, le=512)] = 64
    """Words that the output guard looks at together."""
    refusal: Refusals
    categories: dict[str, Category]

    @classmethod
    def load(cls, path: Path | str) -> Policy:
        """Reads a policy file.

        Raises PolicyInvalid naming each field that is wrong, or why the file can't be read.
        """
        try:
            return cls.model_validate(yaml.safe_load(Path(path).read_text("utf-8")))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise PolicyInvalid(f"cannot read moderation policy {path}: {error}") from error
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
            raise PolicyInvalid(f"moderation policy {path}: {wrong}") from error

    def decide(self, stage: Stage, scores: Mapping[str, float]) -> Decision:
        """Blocks when a category with the action "block" reaches its threshold; unknown categories are only kept."""
        over = [
            name
            for name, rule in self._rules(stage)
            if rule.action == "block" and scores.get(name, 0.0) >= rule.threshold
        ]
        over.sort(key=lambda name: -scores[name])
        return Decision("block" if over else "allow", tuple(over), dict(scores))

    def limits(self, stage: Stage, categories: Sequence[str]) -> npt.NDArray[np.float64]:
        """The scores that block, in the order of `categories`; infinity where nothing does.

        Raises PolicyInvalid when the policy and the model do not speak of the same categories: a rule that is never
        applied must not look like protection.
        """
        if set(categories) != set(self.categories):
            names = ", ".join(sorted(set(categories) ^ set(self.categories)))
            raise PolicyInvalid(f"the policy's categories and the model's differ: {names}")
        rules = dict(self._rules(stage))
        return np.array([rules[c].threshold if rules[c].action == "block" else np.inf for c in categories])

    def _rules(self, stage: Stage) -> list[tuple[str, Rule]]:
        return [
            (name, category.input if stage == "input" else category.output)
            for name, category in self.categories.items()
        ]
