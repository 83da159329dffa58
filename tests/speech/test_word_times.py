"""Words of a text and their times; the splitting equals transformers' own."""

import itertools
import math
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words

from galley.speech.tokens import DecodedSegment
from galley.speech.word_times import time_words
from galley.speech.word_tokens import split_to_word_tokens
from galley.text.tokenizer import Tokenizer
from tests.speech import tiny

LANGUAGES = {"en": "english", "zh": "chinese", "de": "german", "ja": "japanese"}
TEXTS = (
    " Hello, this is Maria Kowalska.",
    " “My broadband” keeps dropping (every evening) - again!",
    "No space first, and double  spaces, 4,821 and 3.9; don't.",
    " Ich möchte meinen Vertrag kündigen, bitte.",
    "你好。我想要?是 的!",
    " naïve 😀 emoji",
    " ...",
)


def words_of_transformers(tokens: Sequence[int], tokenizer: Tokenizer, language: str) -> list[str]:
    theirs: Any = SimpleNamespace(
        decode=lambda ids, **_: tokenizer.decode(ids), eos_token_id=tiny.TEXT_TOKENS
    )
    words: list[str] = _combine_tokens_into_words(theirs, list(tokens), LANGUAGES[language])[0]
    return words


def piece(text: str, tokenizer: Tokenizer, start: float = 0.0, end: float = 60.0) -> DecodedSegment:
    tokens = tuple(tokenizer.encode_plain(text))
    return DecodedSegment(start, end, tokens, (-0.5,) * len(tokens))


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("text", TEXTS)
def test_words_are_those_of_transformers(text: str, language: str, tokenizer: Tokenizer) -> None:
    said = piece(text, tokenizer)
    words_and_counts = split_to_word_tokens(said.tokens, tokenizer, language)
    assert "".join(word.text for word in words_and_counts) == text
    assert sum(word.token_count for word in words_and_counts) == len(said.tokens)
    times = [0.1 * i for i in range(len(said.tokens) + 1)]
    (words,) = time_words([said], times, tokenizer, language)
    assert [w.text for w in words] == words_of_transformers(said.tokens, tokenizer, language)


def test_a_text_that_ends_in_half_a_character_keeps_its_tokens(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode_plain(" a 你")
    whole = split_to_word_tokens(tokens, tokenizer, "zh")
    cut = split_to_word_tokens(tokens[:-1], tokenizer, "zh")
    assert cut[:-1] == whole[:-1]
    assert cut[-1] == ("\ufffd", whole[-1].token_count - 1)
    special = tiny.token_id("<|nospeech|>")
    (first, *others) = split_to_word_tokens([special, *tokens], tokenizer, "zh")
    assert (first.text, first.token_count) == (whole[0].text, whole[0].token_count + 1)
    assert others == whole[1:]


def timed(
    text: str, lasts: Sequence[float], tokenizer: Tokenizer, start: float = 0.0, end: float = 60.0
) -> list[tuple[str, float, float]]:
    """Return the words; ``lasts`` is the duration of each word or mark, shared by its tokens."""
    said = piece(text, tokenizer, start, end)
    times = [0.0]
    for (_, count), seconds in zip(
        split_to_word_tokens(said.tokens, tokenizer, "en"), lasts, strict=True
    ):
        times += [times[-1] + seconds * (i + 1) / count for i in range(count)]
    (words,) = time_words([said], times, tokenizer, "en")
    return [(w.text, round(w.start, 2), round(w.end, 2)) for w in words]


def test_punctuation_has_no_separate_time(tokenizer: Tokenizer) -> None:
    words = timed(' this, "is".', [0.3, 0.1, 0.1, 0.3, 0.1, 0.1], tokenizer)
    assert words == [(" this,", 0.0, 0.3), (' "is".', 0.5, 0.8)]


def test_a_word_after_a_sentence_does_not_have_the_pause(tokenizer: Tokenizer) -> None:
    words = timed(" this is. my evening", [0.3, 0.3, 0.3, 5.0, 0.3], tokenizer)
    assert words == [
        (" this", 0.0, 0.3),
        (" is.", 0.3, 0.6),
        (" my", 5.3, 5.9),
        (" evening", 5.9, 6.2),
    ]


def test_the_first_words_do_not_have_the_pause_before(tokenizer: Tokenizer) -> None:
    assert timed(" this is my", [5.0, 0.3, 0.3], tokenizer)[0] == (" this", 4.4, 5.0)
    words = timed(" this is my evening", [3.0, 5.0, 0.3, 0.3], tokenizer)
    assert words[:2] == [(" this", 5.2, 6.6), (" is", 6.6, 8.0)]


def test_a_segments_own_times_bound_its_words(tokenizer: Tokenizer) -> None:
    words = timed(" this is my", [0.8, 0.8, 0.8], tokenizer, start=0.6, end=1.7)
    assert words == [(" this", 0.1, 0.8), (" is", 0.8, 1.6), (" my", 1.6, 2.3)]
    assert timed(" this is my", [0.8, 0.8, 0.8], tokenizer, 0.4, 2.0)[0] == (" this", 0.0, 0.8)


def test_probability_is_the_mean_of_the_tokens(tokenizer: Tokenizer) -> None:
    said = piece(" evening my", tokenizer)
    count = split_to_word_tokens(said.tokens, tokenizer, "en")[0].token_count
    scores = [math.log(0.2 + 0.1 * i) for i in range(len(said.tokens))]
    times = [0.1 * i for i in range(len(scores) + 1)]
    (words,) = time_words([said._replace(scores=tuple(scores))], times, tokenizer, "en")
    assert words[0].probability == pytest.approx(0.2 + 0.05 * (count - 1))


def test_words_are_in_order_whatever_the_times(tokenizer: Tokenizer) -> None:
    rng = random.Random(0)
    parts = (" Hello", ",", " my", " account", " is", " four", ".", "?", " (yes", ")", ' "no', '"')
    for _ in range(300):
        said = [
            piece("".join(rng.choices(parts, k=rng.randint(1, 6))), tokenizer, start, start + 2)
            for start in range(rng.randint(1, 4))
        ]
        count = sum(len(one.tokens) for one in said)
        times = sorted(0.02 * rng.randint(0, rng.choice((30, 300))) for _ in range(count + 1))
        found = time_words(said, times, tokenizer, "en")
        for one, words in zip(said, found, strict=True):
            assert "".join(w.text for w in words) == tokenizer.decode(one.tokens)
        everything = list(itertools.chain(*found))
        assert all(w.start <= w.end + 1e-9 for w in everything)
        assert all(a.end <= b.start + 1e-9 for a, b in itertools.pairwise(everything))
        assert all(0 < (w.probability or 0) <= 1 for w in everything)
