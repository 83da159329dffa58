"""Checks whether a grammar accepts a text, without a model."""

import json
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from galley.grammar.check import LIMITS, check
from galley.types import Grammar


def accepts(schema: dict[str, Any], vocabulary: LLTokenizer, *texts: str) -> list[bool]:
    """Return for each text whether the JSON schema accepts it. Raises RequestError as ``check``."""
    compiled = check(Grammar("json_schema", json.dumps(schema)), vocabulary, "the.field")
    return [follows(compiled.source, vocabulary, text) for text in texts]


def follows(compiled: str, vocabulary: LLTokenizer, text: str) -> bool:
    """Return whether a compiled grammar accepts the whole text."""
    matcher = LLMatcher(vocabulary, compiled, log_level=0, limits=LIMITS)
    tokens = vocabulary.tokenize_bytes(text.encode())
    return all(map(matcher.consume_token, tokens)) and matcher.is_accepting()
