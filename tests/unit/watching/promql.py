"""As much of PromQL as is needed to see what a query names."""

from __future__ import annotations

import re
from collections.abc import Iterator

WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}
AGGREGATION = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
NAME = re.compile(r"(?<![\w:.$])[a-zA-Z_:][\w:]*(?!\s*\(|[\w:])")
SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')


def metrics(query: str) -> set[str]:
    """The metrics that a query names."""
    bare = re.sub(r"\[[^\]]*\]", "", AGGREGATION.sub("", re.sub(r"\{[^}]*\}", "", query)))
    return {word for word in NAME.findall(bare) if word not in WORDS}


def grouped_by(query: str) -> set[str]:
    """The labels that it groups or matches by."""
    return {label.strip() for labels in AGGREGATION.findall(query) for label in labels.split(",") if label.strip()}


def matchers(query: str) -> Iterator[tuple[str, str, str]]:
    """(metric, label, value) of each condition."""
    for name, conditions in SELECTOR.findall(query):
        for label, _, value in MATCHER.findall(conditions):
            yield name, label, value
