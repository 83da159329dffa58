"""The text under a grammar is the text that the grammar has seen, byte for byte."""

from collections.abc import Callable
from pathlib import Path

import pytest

from galley.text.stream import TextStream
from galley.text.tokenizer import Tokenizer
from galley.types import Grammar, Output, SamplingParams
from tests.text import trained


@pytest.mark.parametrize(
    "make", [trained.byte_level, trained.sentencepiece], ids=["byte-level", "sentencepiece"]
)
def test_a_space_at_the_beginning_stays(make: Callable[[Path], Path], tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(make(tmp_path))
    tokens = tokenizer.encode_plain("x brown")
    spaced = [i for i, t in enumerate(tokens) if tokenizer.token_bytes(t).startswith(b" ")]
    tokens = tokens[spaced[-1] :]
    output = Output(request_id="", tokens=tokens, finish_reason="stop")
    params = SamplingParams(grammar=Grammar("regex", " .*"))
    assert TextStream.for_request(tokenizer, params, ()).feed(output).text.startswith(" ")
