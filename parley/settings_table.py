"""Every setting as a row: for `parley settings` and the README."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_json

from parley.settings import ROOT, Settings


@dataclass(frozen=True, slots=True)
class Row:
    """One setting."""

    variable: str
    default: str
    meaning: str


def rows(model: type[BaseModel] = Settings, prefix: str = "PARLEY_") -> Iterator[Row]:
    """The settings of a model and of the groups in it."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from rows(kind, f"{prefix}{name.upper()}__")
        else:
            yield Row(prefix + name.upper(), _default(field), field.description or "")


def markdown(model: type[BaseModel] = Settings, prefix: str = "PARLEY_") -> str:
    """A table of the README; a test holds the two together."""
    lines = ["| variable | default | meaning |", "|---|---|---|"]
    for row in rows(model, prefix):
        default = f"`{row.default}`" if row.default not in ("", "None") else ""
        lines.append(f"| `{row.variable}` | {default} | {row.meaning} |")
    return "\n".join(lines)


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if hasattr(value, "get_secret_value"):
        value = value.get_secret_value()
    text = to_json(value).decode() if isinstance(value, dict) else str(value)
    return text.replace(f"{ROOT}/", "")
