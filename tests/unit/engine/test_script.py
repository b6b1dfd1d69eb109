"""The synthetic engine's answers: numbered words, continued where they stopped, or as a script has them."""

import json
from types import ModuleType
from typing import Any

import pytest


def prompt(message: str, said: str = "") -> str:
    return f"<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n{said}"


class Engine:
    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def answer(self, message: str, said: str = "", max_tokens: int = 100) -> Any:
        text = prompt(message, said)
        default = self.module.Script(words=10, first_ms=50, period_ms=20)
        return self.module.Answer(text, self.module.script_of(text, default), max_tokens)

    def text(self, message: str, said: str = "", max_tokens: int = 100) -> tuple[str, str]:
        answer = self.answer(message, said, max_tokens)
        while answer.finish is None:
            answer.advance()
        return answer.text.decode(), answer.finish

    def script(self, **script: Any) -> str:
        return "Hello\n::script " + json.dumps(script)


@pytest.fixture
def engine(script_module: ModuleType) -> Engine:
    return Engine(script_module)


WHOLE = " ".join(f"w{n:03d}" for n in range(1, 11))


def test_an_answer_is_numbered_words_to_its_end(engine: Engine) -> None:
    assert engine.text("Hi") == (WHOLE, "stop")


def test_an_answer_has_exactly_max_tokens(engine: Engine) -> None:
    assert engine.text("Hi", max_tokens=3) == ("w001 w002 w003", "length")


@pytest.mark.parametrize("cut", range(len(WHOLE)))
def test_an_answer_goes_on_where_it_stopped_also_inside_a_word(engine: Engine, cut: int) -> None:
    rest, _ = engine.text("Hi", said=WHOLE[:cut])
    assert WHOLE[:cut] + rest == WHOLE


def test_after_another_text_its_words_are_counted(engine: Engine) -> None:
    assert engine.text("Hi", said="one two", max_tokens=1) == (" w003", "length")


def test_only_the_open_turn_is_continued(engine: Engine) -> None:
    earlier = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nw001 w002<|im_end|>\n"
    assert engine.text("More", max_tokens=1)[0] == "w001"
    assert engine.module._open_text(earlier) == ""


@pytest.mark.parametrize("cut", ["", "👋", "👋你"])
def test_a_script_gives_the_bytes_of_each_token(engine: Engine, cut: str) -> None:
    message = engine.script(pieces_hex=["f09f", "918b", "e4bd", "a0", "21"], finish="length")
    assert engine.text(message, said=cut) == ("👋你!".removeprefix(cut), "length")


def test_half_a_character_shows_as_a_replacement(engine: Engine) -> None:
    answer = engine.answer(engine.script(pieces_hex=["61f09f", "918b"]))
    answer.advance()
    assert answer.text.decode() == "a\ufffd"
    answer.advance()
    assert answer.text.decode() == "a👋"


def test_only_the_newest_message_holds_the_script(engine: Engine) -> None:
    before = prompt(engine.script(word="old"), said="old001<|im_end|>\n")
    assert engine.module.script_of(before + prompt("Hi"), engine.module.Script(10, 50, 20)).word == "w"


def test_an_incident_is_counted_from_the_beginning_of_the_whole_answer(engine: Engine) -> None:
    message = engine.script(words=5, die_after=2)
    first = engine.answer(message)
    first.advance()
    assert first.incident is None
    first.advance()
    assert first.incident == "die"
    assert engine.text(message, said="w001 w002") == (" w003 w004 w005", "stop")
    assert engine.answer(message, said="w001 w002").incident is None


@pytest.mark.parametrize("wrong", ["::script {", "::script []", '::script {"pieces": []}'])
def test_a_script_that_makes_no_sense_is_refused(engine: Engine, wrong: str) -> None:
    with pytest.raises(ValueError, match="script"):
        engine.answer(wrong)
