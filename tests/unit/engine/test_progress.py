"""F15 and F16: what a client sees of a growing text is whole characters, and all of it."""

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel

from inference_workers.engine.errors import EngineError
from inference_workers.engine.progress import REPLACEMENT, CumulativeProgress, PieceProgress

FAMILY = "👩\u200d👩\u200d👧"
F15_PIECES = [b"\xf0\x9f", b"\x91\x8b", b"\xe4\xbd", b"\xa0", "👩\u200d".encode(), FAMILY.encode()[7:], b"\xe2"]
F15_TEXT = "👋你" + FAMILY + REPLACEMENT


def so_far(pieces: list[bytes]) -> list[bytes]:
    """What a cumulative engine says after each piece: the text, in which half a character is U+FFFD."""
    return [b"".join(pieces[: n + 1]).decode(errors="replace").encode() for n in range(len(pieces))]


def deltas(progress: CumulativeProgress | PieceProgress, responses: list[bytes]) -> list[str]:
    return [progress.advance(said, n == len(responses) - 1) for n, said in enumerate(responses)]


def test_half_characters_wait_for_their_other_half_in_a_cumulative_stream() -> None:
    seen = deltas(CumulativeProgress(), so_far(F15_PIECES))
    assert seen == ["", "👋", "", "你", "👩\u200d", FAMILY[2:], REPLACEMENT]
    assert "".join(seen) == F15_TEXT


def test_half_characters_wait_for_their_other_half_in_a_stream_of_pieces() -> None:
    seen = deltas(PieceProgress(), F15_PIECES)
    assert seen == ["", "👋", "", "你", "👩\u200d", FAMILY[2:], REPLACEMENT]


@given(st.text(st.characters(exclude_categories=["Cs"])), st.lists(st.integers(1, 5)))
def test_any_text_cut_anywhere_arrives_whole(text: str, sizes: list[int]) -> None:
    rest, pieces = text.encode(), []
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    pieces.append(rest)
    for progress, responses in ((CumulativeProgress(), so_far(pieces)), (PieceProgress(), pieces)):
        seen = deltas(progress, responses)
        assert "".join(seen) == text
        if REPLACEMENT not in text:
            assert all(REPLACEMENT not in delta for delta in seen)


@given(st.lists(st.binary(max_size=4), min_size=1))
def test_bytes_that_are_no_text_change_nothing_in_the_sum(pieces: list[bytes]) -> None:
    assert "".join(deltas(PieceProgress(), pieces)) == b"".join(pieces).decode(errors="replace")


def test_invalid_bytes_do_not_stall_the_stream() -> None:
    progress = CumulativeProgress()
    assert progress.advance(("a" + REPLACEMENT * 5).encode(), over=False) == "a" + REPLACEMENT * 2
    assert progress.advance(("a" + REPLACEMENT * 5 + "b").encode(), over=False) == REPLACEMENT * 3 + "b"


def test_responses_may_be_skipped() -> None:
    progress = CumulativeProgress()
    assert progress.advance(b"one", over=False) == "one"
    assert progress.advance(b"one two three", over=False) == " two three"


def test_a_repeated_response_releases_nothing() -> None:
    progress = CumulativeProgress()
    assert progress.advance(b"one", over=False) == "one"
    assert progress.advance(b"one", over=True) == ""


@pytest.mark.parametrize("changed", ["on", "One", "two"])
def test_text_that_was_released_must_not_change(changed: str) -> None:
    progress = CumulativeProgress()
    progress.advance(b"one", over=False)
    with pytest.raises(EngineError, match="changed text"):
        progress.advance(changed.encode(), over=False)


def test_the_sum_is_what_all_ids_decode_to_where_a_token_alone_loses_its_space(answer_module: ModuleType) -> None:
    vocabulary = {"▁Deep": 0, "▁learning": 1, "▁is": 2, "▁深": 3, "度": 4}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="度"))
    tokenizer.decoder = decoders.Metaspace()
    assert tokenizer.decode([1]) == "learning"
    ids = [0, 1, 2, 3, 4, 1, 2, 0, 4, 3, 3, 1]
    for at_once in (1, 3, 8):
        answer, progress, seen = answer_module.Answer(tokenizer.decode), CumulativeProgress(), []
        for start in range(0, len(ids), at_once):
            answer.ids += ids[start : start + at_once]
            over = start + at_once >= len(ids)
            text, _ = answer.text(over)
            seen.append(progress.advance(text.encode(), over))
        assert "".join(seen) == tokenizer.decode(ids)


def test_a_byte_tokenizer_that_takes_a_character_back_for_a_moment_is_waited_for(answer_module: ModuleType) -> None:
    byte_tokens = {f"<0x{byte:02X}>": byte for byte in range(256)}
    tokenizer = Tokenizer(WordLevel(byte_tokens, unk_token="<0x00>"))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    ids = list("你👋!".encode())
    # Half a character makes it show the whole one before as U+FFFD, too.
    assert tokenizer.decode(ids[:4]) == REPLACEMENT * 4
    answer, progress, seen = answer_module.Answer(tokenizer.decode), CumulativeProgress(), []
    for n, token in enumerate(ids):
        answer.ids.append(token)
        seen.append(progress.advance(answer.text(over=False)[0].encode(), n == len(ids) - 1))
    assert seen == ["", "", "你", "", "", "", "👋", "!"]
