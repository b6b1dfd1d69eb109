"""Names that Faust makes of the application and its tables; topics.yaml has the topics."""

from __future__ import annotations

APP = "parley-usage"
"""Faust's application, and its consumer group."""
HOURS_CHANGELOG = f"{APP}-hours-changelog"
TURNS_CHANGELOG = f"{APP}-turns-changelog"
