"""F19: no letter of a stop string gets out, and no letter of anything else is lost."""

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_workers.engine.stops import StopStrings


def run(stops: list[str], pieces: list[str], prior: str = "") -> tuple[list[str], str | None]:
    cutter = StopStrings(stops, prior)
    released = [cutter.feed(piece) for piece in pieces]
    return [*released, cutter.finish()], cutter.matched


def test_a_stop_string_of_several_tokens_never_shows() -> None:
    released, matched = run(["DEFGHIJ"], ["ABC", "DEF", "G", "HI", "J", "K"])
    assert (released, matched) == (["ABC", "", "", "", "", "", ""], "DEFGHIJ")


def test_what_only_began_like_a_stop_string_follows() -> None:
    released, matched = run(["\nUser:"], ["ok\nUs", "ing it"])
    assert (released, matched) == (["ok", "\nUsing it", ""], None)


def test_what_was_held_back_comes_at_the_end() -> None:
    released, matched = run(["\nUser:"], ["ok\nUs"])
    assert (released, matched) == (["ok", "\nUs"], None)


def test_without_stop_strings_text_passes_at_once() -> None:
    assert run([], ["a", "b"]) == (["a", "b", ""], None)


def test_a_stop_string_across_the_place_where_an_answer_was_taken_over_is_seen() -> None:
    released, matched = run(["STOP"], ["P and more"], prior="text ST" + "O")
    assert ("".join(released), matched) == ("", "STOP")


def test_a_stop_string_wholly_in_the_text_before_is_not_seen_again() -> None:
    released, matched = run(["ab", "longer"], ["c"], prior="ab")
    assert ("".join(released), matched) == ("c", None)


def test_a_beginning_in_the_text_before_holds_back_what_goes_on_with_it() -> None:
    cutter = StopStrings(["STOP"], prior="S")
    assert cutter.feed("TO") == ""
    assert cutter.feed("RY") == "TORY"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])


LETTERS = st.text("abc", min_size=1, max_size=4)


@given(st.lists(LETTERS, max_size=3), st.text("abc", max_size=12), st.text("abc", max_size=40), st.data())
def test_the_result_does_not_depend_on_how_the_text_was_cut(
    stops: list[str], prior: str, text: str, data: st.DataObject
) -> None:
    pieces = []
    rest = text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        pieces.append(rest[:size])
        rest = rest[size:]
    released, matched = run(stops, pieces, prior)
    by_letter, matched_by_letter = run(stops, list(text), prior)
    assert ("".join(released), matched) == ("".join(by_letter), matched_by_letter)
    assert text.startswith("".join(released))
    if matched is None:
        assert "".join(released) == text


@given(st.lists(LETTERS, min_size=1, max_size=3), st.text("abc", max_size=40))
def test_no_stop_string_is_ever_released(stops: list[str], text: str) -> None:
    released, _ = run(stops, list(text))
    assert all(stop not in "".join(released) for stop in stops)


def test_the_embedded_engine_cuts_inside_a_token(answer_module: ModuleType) -> None:
    tokens = ["ABC", "DEF", "G", "HI", "J", "K"]
    answer = answer_module.Answer(lambda ids: "".join(tokens[i] for i in ids), ["BCDEFGHIJ"])
    seen = []
    for token in range(5):
        answer.ids.append(token)
        seen.append(answer.text(over=False))
    assert seen == [("A", None)] * 4 + [("A", "BCDEFGHIJ")]


def test_the_embedded_engine_loses_nothing_at_the_end(answer_module: ModuleType) -> None:
    answer = answer_module.Answer(lambda ids: "ok\nUs", ["\nUser:"])
    answer.ids.append(0)
    assert answer.text(over=False) == ("ok", None)
    assert answer.text(over=True) == ("ok\nUs", None)
