"""Answers of ``/tokenize`` and ``/detokenize``, field by field."""

from typing import TypedDict


class Tokens(TypedDict):
    """Answer of `POST /tokenize`."""

    tokens: list[int]
    count: int
    max_model_len: int


class Text(TypedDict):
    """Answer of `POST /detokenize`."""

    prompt: str
