"""docs/errors.md is what API users read: it must say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parley.errors import KINDS, ParleyError, failure

PAGE = Path(__file__).resolve().parents[2] / "docs" / "errors.md"
ROW = re.compile(r"^\| `(\w+)` \| (\d{3}) \| `(\w+)` \| (yes|no) \| (\d{4})? ?\| (.+?) \| (.+?) \|$", re.MULTILINE)


def documented() -> dict[str, tuple[int, str, bool, int | None]]:
    return {
        code: (int(http), kind, retry == "yes", int(close) if close else None)
        for code, http, kind, retry, close, _, _ in ROW.findall(PAGE.read_text())
    }


def test_the_page_has_every_kind_with_its_values() -> None:
    assert documented() == {kind.code: (kind.http, kind.type, kind.retryable, kind.close) for kind in KINDS.values()}


def test_the_page_lists_each_kind_once_in_the_order_of_the_code() -> None:
    assert [row[0] for row in ROW.findall(PAGE.read_text())] == list(KINDS)


def test_no_client_is_told_to_retry_what_cannot_succeed() -> None:
    """SDKs repeat 409, 429 and 5xx by themselves: only `engine_refused` is 5xx and final."""
    repeated = {409, 429, 500, 503}
    assert {kind.code for kind in KINDS.values() if not kind.retryable and kind.http in repeated} == {"engine_refused"}


def test_close_codes_are_those_that_clients_know() -> None:
    allowed = {1000, 1001, 1006, 1008, 1009, 1011, 1012, 1013}
    assert {kind.close for kind in KINDS.values() if kind.close is not None} <= allowed


def test_an_error_becomes_the_failure_of_an_event() -> None:
    error = ParleyError("overloaded", "no slot is free", param="model")
    assert error.failure() == failure("overloaded", "no slot is free")
    assert error.failure().retryable
    assert (str(error), error.param) == ("no slot is free", "model")


def test_a_code_outside_the_taxonomy_is_refused() -> None:
    with pytest.raises(KeyError):
        ParleyError("no_such_code", "")
