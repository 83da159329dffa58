"""Groups a text's tokens into words (openai/whisper, ``tokenizer.py``)."""

import codecs
import string
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from galley.speech.languages import UNSPACED
from galley.text.tokenizer import Tokenizer


class WordTokens(NamedTuple):
    """A word, or a smaller part of a text, and the number of its tokens."""

    text: str
    token_count: int


def split_to_word_tokens(
    tokens: Sequence[int], tokenizer: Tokenizer, language: str
) -> list[WordTokens]:
    """Split a text's tokens into words, each with its leading space.

    Each punctuation mark is a separate word. In languages without spaces, each token, or each group of
    tokens that share a character, is a word. The words' texts, joined, are the whole text; none is empty.
    """
    words: list[WordTokens] = []
    for part in _characters(tokens, tokenizer):
        if words and not (language in UNSPACED or _begins_word(part.text)):
            part = WordTokens(words[-1].text + part.text, words[-1].token_count + part.token_count)
            words.pop()
        words.append(part)
    return words


def _characters(tokens: Sequence[int], tokenizer: Tokenizer) -> Iterator[WordTokens]:
    """Yield the smallest parts of the text that consist of whole tokens and whole characters."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text, count = "", 0
    for token in tokens:
        count += 1
        if token not in tokenizer.special_ids:
            text += decoder.decode(tokenizer.token_bytes(token))
        if text and not decoder.getstate()[0]:
            yield WordTokens(text, count)
            text, count = "", 0
    text += decoder.decode(b"", final=True)
    if text:
        yield WordTokens(text, count)


def _begins_word(text: str) -> bool:
    return text.startswith(" ") or text.strip() in string.punctuation
