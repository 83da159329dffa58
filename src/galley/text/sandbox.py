"""transformers' environment of chat templates, in a sandbox, with loops and macros counted."""

import json
import secrets
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.lexer import Token, TokenStream
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from galley.text.template_calls import RawJson

CLOCK: Final = "strftime_now"
"""Function of templates that write the date or the time."""


class _GenerationBlock(Extension):
    """``{% generation %}`` marks the assistant's words for training; only its body is rendered."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class CountSteps(Extension):
    """Inserts calls of the variable ``NAME`` into loops and macros; templates cannot guess its name."""

    NAME: Final = f"step_{secrets.token_hex(8)}"

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        """Yield the template's tokens with the calls inserted."""
        opened: str | None = None  # the block whose opening tag is being read
        previous = ""
        for token in stream:
            yield token
            if previous == "block_begin":
                opened = token.value
                if opened == "autoescape":  # the compiler would evaluate its argument
                    raise jinja2.TemplateSyntaxError("autoescape is not supported", token.lineno)
            elif token.type == "block_end" and opened in ("for", "macro", "call"):
                for kind, value in (
                    ("variable_begin", "{{"),
                    ("name", self.NAME),
                    ("lparen", "("),
                    ("rparen", ")"),
                    ("variable_end", "}}"),
                ):
                    yield Token(token.lineno, kind, value)
            previous = token.type


class Sandbox(ImmutableSandboxedEnvironment):
    """The Jinja environment of transformers, for which chat templates are written."""

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            # Evaluate nothing at compile time: {{ 'a' * 10 ** 10 }} must compile within bounds.
            optimized=False,
            finalize=_as_it_is,
            extensions=[loopcontrols, _GenerationBlock, CountSteps],
        )
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals[CLOCK] = _strftime_now


@jinja2.pass_eval_context
def _as_it_is(context: nodes.EvalContext, value: Any) -> Any:
    """Return the value; the compiler never calls a ``finalize`` that takes the context."""
    return value


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Apply the ``tojson`` filter of transformers, which, unlike Jinja's, does not escape HTML."""
    if isinstance(value, RawJson):
        return value
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
