import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from galley.text.detokenizer import detokenizer
from galley.text.tokenizer import Tokenizer
from tests.text import trained

HARD = "😀👩‍👩‍👧e\u0301é你☃\x00 \n\ufffd"


def id_lists() -> st.SearchStrategy[list[int]]:
    """Any ids: special ones, unknown ones, bytes that are not UTF-8."""
    return st.lists(st.integers(0, 700) | st.integers(0, 270), max_size=60)


def streamed(tokenizer: Tokenizer, ids: list[int], cuts: list[int]) -> list[str]:
    stream = detokenizer(tokenizer)
    edges = [0, *sorted(cut % (len(ids) + 1) for cut in cuts), len(ids)]
    parts = [stream.feed(ids[a:b]) for a, b in pairwise(edges)]
    return [*parts, stream.finish()]


@given(ids=id_lists(), cuts=st.lists(st.integers(0, 60)))
def test_any_ids_in_any_cut(tokenizer: Tokenizer, ids: list[int], cuts: list[int]) -> None:
    assert "".join(streamed(tokenizer, ids, cuts)) == tokenizer.decode(ids)


@given(text=st.text(st.sampled_from(HARD) | st.characters(codec="utf-8")))
def test_one_token_at_a_time_never_half_a_character(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode_plain(text)
    parts = streamed(tokenizer, ids, list(range(len(ids))))
    assert "".join(parts) == tokenizer.decode(ids)
    assert "".join(parts).count("\ufffd") == text.count("\ufffd")


@given(data=st.binary(max_size=30))
def test_bytes_of_any_kind(tokenizer: Tokenizer, data: bytes) -> None:
    ids = [byte_token(tokenizer, value) for value in data]
    middle = tokenizer.encode_plain(" ok")
    for tokens in (ids, middle + ids, ids + middle + ids):
        assert "".join(streamed(tokenizer, tokens, list(range(90)))) == tokenizer.decode(tokens)


def test_text_is_not_held_back_without_need(byte_level: Tokenizer) -> None:
    stream = detokenizer(byte_level)
    ids = byte_level.encode_plain("ab☃")
    texts = [stream.feed([token]) for token in ids]
    assert "".join(texts) == "ab☃"
    assert texts[-1] == "☃"


def test_a_run_of_bytes_is_shown_when_it_ends(sentencepiece: Tokenizer) -> None:
    stream = detokenizer(sentencepiece)
    assert [stream.feed([byte_token(sentencepiece, b)]) for b in "☃".encode()] == ["", "", ""]
    assert stream.feed(sentencepiece.encode_plain("a")) == "☃ a"
    assert stream.finish() == ""


def test_an_unfinished_character_ends_as_a_replacement(tokenizer: Tokenizer) -> None:
    ids = [byte_token(tokenizer, value) for value in "☃".encode()[:2]]
    stream = detokenizer(tokenizer)
    assert stream.feed(ids) == ""
    assert stream.finish() == tokenizer.decode(ids) != ""


@pytest.mark.parametrize("special_first", [True, False])
def test_the_leading_space_goes_once(sentencepiece: Tokenizer, special_first: bool) -> None:
    word = trained.token_id(sentencepiece, "▁the")
    ids = [1] * special_first + [word, 2, word]
    assert "".join(streamed(sentencepiece, ids, [0, 1, 2, 3])) == "the the"


def byte_token(tokenizer: Tokenizer, value: int) -> int:
    for token in range(tokenizer.vocab_size):
        if token not in tokenizer.special_ids and tokenizer.token_bytes(token) == bytes([value]):
            return token
    raise AssertionError(value)


def test_added_words_with_characters_beyond_the_byte_alphabet(
    byte_level_folder: Path, tmp_path: Path
) -> None:
    file = json.loads((byte_level_folder / "tokenizer.json").read_text())
    template = next(t for t in file["added_tokens"] if not t["special"])
    for offset, word in enumerate(["é", "Ġ ▁", "<你>", "Ġa"]):
        file["added_tokens"].append(template | {"id": 2000 + offset, "content": word})
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    tokenizer = Tokenizer.load(tmp_path)
    added = [token.id for token in tokenizer.added_tokens if not token.special]
    for ids in ([t] for t in added), ([t, u] for t in added for u in added):
        for tokens in ids:
            assert "".join(streamed(tokenizer, tokens, [1])) == tokenizer.decode(tokens)
