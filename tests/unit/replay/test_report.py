"""A report as page and terminal table, and the manifest that vouches for it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from parley.errors import ParleyError
from producers.replay.manifest import Input, Manifest
from producers.replay.page import page
from producers.replay.report import Report, histogram, spread, tally
from producers.replay.running import REPORT, write, written_report
from producers.replay.show import table
from producers.replay.verdicts import Judged, compare
from tests.unit.core.core_events import response
from tests.unit.replay.replay_parts import manifest, prompt, taken

HOSTILE = "<script>alert(1)</script> \x1b[31m & co"


def a_report(content: bool = True) -> Report:
    before = {response(1): Judged("allow", (), {"hate": 0.2}, "p1", "m1")}
    after = {response(1): Judged("block", ("hate",), {"hate": 0.9}, "p2", "m1")}
    return compare(
        manifest(content=content, counts={"taken": 1, "replayed": 2}), taken(prompt(1, HOSTILE)), before, after
    )


class TestCharts:
    def test_values_on_an_edge_belong_to_the_higher_bin_and_the_greatest_to_the_last(self) -> None:
        chart = histogram("", [0.0, 0.5, 1.0], [0.49], [0.0, 0.5, 1.0])
        assert (chart.before, chart.after) == ((1.0, 2.0), (1.0, 0.0))

    def test_a_spread_covers_both_series(self) -> None:
        chart = spread("", [10, 15], [110])
        assert chart is not None
        assert (sum(chart.before), sum(chart.after), chart.before[0], chart.after[-1]) == (2, 1, 2, 1)
        assert spread("", [], []) is None

    def test_equal_values_are_one_bar(self) -> None:
        chart = spread("", [7, 7], [7])
        assert chart is not None
        assert max(chart.before) == 2

    def test_words_are_counted_in_both_series(self) -> None:
        chart = tally("", ["a", "b", "a"], ["c"])
        assert dict(zip(chart.labels, zip(chart.before, chart.after, strict=True), strict=True)) == {
            "a": (2, 0), "b": (1, 0), "c": (0, 1),
        }  # fmt: skip


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "br", "rect", "line"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("rect", "line"):
            assert self.open.pop() == tag


class TestThePage:
    def test_it_is_whole_draws_and_asks_for_nothing_from_elsewhere(self) -> None:
        tags = Tags()
        tags.feed(page(a_report()))
        assert tags.open == []
        assert {"svg", "rect", "table"} <= tags.names
        assert not {"script", "link", "img", "iframe"} & tags.names
        assert tags.addresses == []

    def test_what_somebody_wrote_is_text_and_never_markup(self) -> None:
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page(a_report())
        assert "alert" not in page(a_report(content=False))

    def test_it_names_the_versions_the_totals_and_the_turn(self) -> None:
        text = re.sub(r"<[^>]+>", " ", page(a_report()))
        assert re.search(r"policy\s+p1\s+p2", text)
        assert re.search(r"1\s+newly blocked", text)
        assert response(1) in text


class TestTheTable:
    def test_it_shows_what_differs_and_steers_no_terminal(self) -> None:
        console = Console(width=200, record=True, force_terminal=False)
        with console.capture() as capture:
            console.print(table(a_report()), markup=False)
        shown = capture.get()
        assert "\x1b" not in shown
        assert "decision allow" in shown
        assert "2 passed over (replayed)" in shown
        assert "model m1" not in shown, "it is the same before and now"


class TestTheManifest:
    def test_a_report_is_read_back_as_it_was_written(self, tmp_path: Path) -> None:
        written = write(a_report(), tmp_path)
        assert written_report(tmp_path) == written
        assert {output.name for output in Manifest.load(tmp_path).outputs} == {"report.json", "report.html"}

    def test_a_folder_that_may_hold_what_people_wrote_is_its_owners(self, tmp_path: Path) -> None:
        manifest(content=True).save(tmp_path / "replay-r1")
        assert (tmp_path / "replay-r1").stat().st_mode & 0o077 == 0

    def test_a_file_that_was_changed_is_not_shown_as_the_report(self, tmp_path: Path) -> None:
        write(a_report(), tmp_path)
        (tmp_path / REPORT).write_text((tmp_path / REPORT).read_text().replace("newly blocked", "same"))
        with pytest.raises(ParleyError, match="not as it was written"):
            written_report(tmp_path)

    def test_a_replay_that_is_not_done_says_how_to_go_on(self, tmp_path: Path) -> None:
        manifest().save(tmp_path)
        with pytest.raises(ParleyError, match="parley replay resume"):
            written_report(tmp_path)

    def test_a_folder_of_something_else_is_none(self, tmp_path: Path) -> None:
        with pytest.raises(ParleyError, match=r"holds no manifest\.json"):
            Manifest.load(tmp_path)

    def test_a_policy_that_was_edited_meanwhile_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "policy.yaml"
        file.write_text("one")
        given = Input.of(file)
        assert given.check() == file
        file.write_text("two")
        with pytest.raises(ParleyError, match="has changed since"):
            given.check()
