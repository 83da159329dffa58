"""The text under a grammar is the text that the grammar has seen, byte for byte."""

from collections.abc import Callable
from pathlib import Path

import pytest
from llguidance import LLMatcher

from galley.grammar.vocabulary import load_vocabulary
from galley.text.stream import TextStream
from galley.text.tokenizer import Tokenizer
from galley.types import Grammar, Output, SamplingParams, Tokens
from tests.text import trained


@pytest.mark.parametrize(
    "make", [trained.byte_level, trained.sentencepiece], ids=["byte-level", "sentencepiece"]
)
def test_a_space_at_the_beginning_stays(make: Callable[[Path], Path], tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(make(tmp_path))
    tokens = tokenizer.encode_plain("x brown")
    spaced = [i for i, t in enumerate(tokens) if tokenizer.token_bytes(t).startswith(b" ")]
    tokens = tokens[spaced[-1] :]
    output = Output(request_id="", result=Tokens(tokens=tokens), finish_reason="stop")
    params = SamplingParams(grammar=Grammar("regex", " .*"))
    assert TextStream.for_request(tokenizer, params, ()).feed(output).text.startswith(" ")


def test_text_that_looks_like_a_marker_is_spelled_and_is_none(tmp_path: Path) -> None:
    """llguidance treats every added token of the form ``<...>`` as special, whatever the file says."""
    folder = trained.byte_level(tmp_path)
    tokenizer = Tokenizer.load(folder)
    marker = next(token for token in tokenizer.added_tokens if token.text == "<think>")
    assert not marker.special
    vocabulary = load_vocabulary(folder)
    matcher = LLMatcher(
        vocabulary, LLMatcher.grammar_from_lark('start: "a <think> b"'), log_level=0
    )
    spelled = [t for word in ("a ", "<", "think", ">", " b") for t in tokenizer.encode_plain(word)]
    for at, token in enumerate(spelled):
        assert not matcher.validate_tokens([marker.id]), at
        assert matcher.consume_token(token), at
    assert matcher.is_accepting()
    assert b"".join(map(tokenizer.token_bytes, spelled)) == b"a <think> b"
    # Where a grammar means the marker itself, it is a single token.
    named = LLMatcher(vocabulary, LLMatcher.grammar_from_lark("start: <think>"), log_level=0)
    assert named.consume_token(marker.id)
    assert named.is_accepting()
