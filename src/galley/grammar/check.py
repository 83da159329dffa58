"""Check that a grammar can be followed, and convert it for the engine. Call where a crash does no harm.

llguidance is native code, and a few of its recursions are not bounded: a Lark grammar whose rules refer to
each other 5,000 deep overflows the stack and ends the process.
"""

import json
import re
from functools import partial
from typing import Any, Final

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark

from galley.errors import RequestError
from galley.grammar.json_schema import narrow_formats, parse_schema, patterns
from galley.types import Grammar

MAX_SOURCE: Final = 256 * 1024
"""Maximum characters of a grammar."""

LIMITS: Final = LLParserLimits(
    initial_lexer_fuel=4_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)
"""Limits: about 80 ms initially, 15 ms for each token, and at most 100 MB of states.

The initial limit applies to a whole text: a pattern combined with a bounded length uses about 400 units of
it for each character. Once it is exhausted, the text cannot continue; see
``json_schema.MAX_PATTERN_LENGTH``.
"""

_JSON: Final[Any] = {"whitespace_flexible": True, "whitespace_pattern": r"(\x20|\n[\x20\t]{0,20})?"}
"""Between two tokens of JSON: nothing, a space, or a newline and its indentation, as in llama.cpp's
grammars. This keeps a model from emitting white space forever."""

_LONGEST_REASON: Final = 300


def check(grammar: Grammar, vocabulary: LLTokenizer, field: str) -> Grammar:
    """Compile a grammar to llguidance's own notation, kind "compiled", and check that it has a first token.

    Raises:
        RequestError: it cannot be compiled, or uses an unsupported feature; names it and ``field``.
    """
    if grammar.kind == "chat":
        return check_chat(grammar.source, vocabulary, field)
    if len(grammar.source) > MAX_SOURCE:
        raise RequestError(
            f"{field} has {len(grammar.source)} characters, more than the allowed {MAX_SOURCE}",
            param=field,
        )
    schema = None
    if grammar.kind == "json_schema":
        schema = parse_schema(grammar.source, field, written=partial(_written, vocabulary))
        narrow_formats(schema)
        grammar = Grammar("json_schema", json.dumps(schema))
    compiled = _notation(grammar, field)
    reason = _why_not(compiled, vocabulary)
    if reason is None:
        return Grammar("compiled", compiled)
    for keyword, place, pattern in patterns(schema) if schema else ():
        alone = _why_not(_expression(pattern), vocabulary)
        if alone is not None:
            reason = f"the regular expression of {keyword!r} at {place or '/'}: {alone}"
            break
    raise RequestError(f"{field} cannot be compiled: {reason}", param=field)


def is_json(compiled: str) -> bool:
    """Return whether a compiled grammar is or contains a JSON schema."""
    return '"json_schema"' in compiled or "%json" in compiled


def _notation(grammar: Grammar, field: str) -> str:
    """Return the grammar in the notation that llguidance accepts."""
    source = grammar.source
    match grammar.kind:
        case "json_schema":
            return LLMatcher.grammar_from_json_schema(source, overrides=_JSON)
        case "regex":
            return _expression(source)
        case "choice":
            return LLMatcher.grammar_from_lark(_choice(json.loads(source)))
        case "grammar":
            return LLMatcher.grammar_from_lark(_lark(source, field))
        case _:
            return source


class _Schema(msgspec.Struct, frozen=True):
    field: str
    schema: dict[str, Any]


class _Chat(msgspec.Struct, frozen=True):
    """A Lark grammar of an answer.

    Attributes:
        schemas: rule of ``lark`` -> the JSON schema that it stands for.
        answer: the grammar that ``@answer`` in ``lark`` stands for.
    """

    lark: str
    schemas: dict[str, _Schema]
    answer: Grammar | None


def check_chat(source: str, vocabulary: LLTokenizer, field: str) -> Grammar:
    """Check a grammar of the kind "chat", as :func:`check` does; errors name the faulty schema's field."""
    chat = msgspec.json.decode(source, type=_Chat)
    size = sum(len(json.dumps(entry.schema)) for entry in chat.schemas.values())
    if size > MAX_SOURCE:
        raise RequestError(
            f"tools: the schemas have {size} characters, more than the allowed {MAX_SOURCE}",
            param="tools",
        )
    rules = [chat.lark]
    for rule, entry in chat.schemas.items():
        compiled = check(Grammar("json_schema", json.dumps(entry.schema)), vocabulary, entry.field)
        [grammar] = json.loads(compiled.source)["grammars"]
        rules.append(f"{rule}: %json {json.dumps(grammar['json_schema'])}")
    grammars: list[dict[str, Any]] = [{"lark_grammar": "\n".join(rules)}]
    if chat.answer is not None:
        answer = check(chat.answer, vocabulary, field).source
        [inner] = (
            json.loads(answer)["grammars"] if answer[:1] == "{" else [{"lark_grammar": answer}]
        )
        grammars.append({**inner, "name": "answer"})
    combined = json.dumps({"grammars": grammars})
    reason = _why_not(combined, vocabulary)
    if reason is not None:
        field = field or "tools"
        raise RequestError(f"{field} cannot be compiled: {reason}", param=field)
    return Grammar("compiled", combined)


def _expression(source: str) -> str:
    r"""Convert a regular expression; \d, \w and \s are ASCII, as in JavaScript and JSON Schema."""
    return LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(source, 'dws')}/")


def _choice(choices: list[str]) -> str:
    return "start: " + " | ".join(json.dumps(choice) for choice in choices)


def _lark(source: str, field: str) -> str:
    """Return Lark unchanged; convert GBNF, whose rules are written with ``::=``, to it.

    A schema inside a grammar could have keywords that are not honored.
    """
    if re.search(r"%json\s*\{", source):
        raise RequestError(
            f"{field}: '%json' is not supported; give the schema itself", param=field
        )
    if "::=" not in source or re.search(r"(?m)^\s*(?:%llguidance\b|start\s*:(?!:))", source):
        return source
    from galley.grammar.gbnf import to_lark

    try:
        converted = to_lark(source)
    except Exception as error:  # the parser may raise any type of error
        raise RequestError(
            f"{field}: not a GBNF grammar: {_line(str(error))}", param=field
        ) from None
    return converted


def _written(vocabulary: LLTokenizer, number: float) -> str:
    """Return the text of a constant number."""
    source = LLMatcher.grammar_from_json_schema(json.dumps({"const": number}))
    matcher = LLMatcher(vocabulary, source, log_level=0, limits=LIMITS)
    return matcher.compute_ff_bytes().decode()


def _why_not(compiled: str, vocabulary: LLTokenizer) -> str | None:
    """Return the reason why a grammar cannot be followed; None if it can."""
    matcher = LLMatcher(vocabulary, compiled, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
        if not matcher.is_error():
            return None
        return f"no text can match it, or its first token takes too long ({_line(matcher.get_error())})"
    return _line(matcher.get_error())


def _line(reason: str) -> str:
    """Return an error as one line, without the grammar and positions in its converted form."""
    text = re.split(r"<(?:state|non-verbose/)>|\n +\d+ \| ", reason)[0]
    text = text.rpartition("\nerror: ")[2]  # for a regular expression, it follows the expression
    text = re.sub(r"^at \d+\(\d+\): |\s+\^\s*$", "", " ".join(text.split()))
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 3] + "..."
