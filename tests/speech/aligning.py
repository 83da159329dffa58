"""The engine's answer to a request to align words that end at given times."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from galley.speech.word_tokens import split_to_word_tokens
from galley.text.tokenizer import Tokenizer
from galley.types import EngineRequest, Output
from galley.types.audio import Alignment
from tests.payloads import aligned
from tests.speech.answers import EN, SOT
from tests.speech.tiny import token_id

START: Final = [SOT, EN, token_id("<|transcribe|>"), token_id("<|notimestamps|>")]
ROWS: Final = 200


def heard(request: EngineRequest, tokenizer: Tokenizer, ends: Sequence[float]) -> Output:
    """Return the engine's answer for words that end at these seconds into the chunk."""
    prompt = aligned(request).prompt
    text = prompt[len(START) : -1]
    weights = np.full((len(prompt), 1, ROWS), 0.001, np.float32)
    row, begin = len(START) - 1, 0.0
    for word, end in zip(split_to_word_tokens(text, tokenizer, "en"), ends, strict=True):
        for token in range(word.token_count):
            share = (end - begin) / word.token_count
            first = round(50 * (begin + token * share))
            weights[row, 0, first : max(first + 1, round(50 * (begin + (token + 1) * share)))] = 0.5
            row += 1
        begin = end
    weights[row, 0, round(50 * begin) :] = 0.5
    alignment = Alignment(
        tokens=len(weights), heads=1, rows=ROWS, data=weights.astype("<f4").tobytes()
    )
    return Output(request_id=request.id, result=alignment, finish_reason="length")
