"""Selection of the format in which a model writes calls, from its chat template or a setting."""

from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from galley.settings.engine import ReasoningParser, ToolParser, VolatileLines
from galley.text.sandbox import CLOCK
from galley.text.template import ChatTemplate
from galley.text.tokenizer import Tokenizer
from galley.tools import deepseek, granite, harmony, hermes, llama, mistral, phi, pythonic, qwen_xml
from galley.tools.conversation import Tool
from galley.tools.parser import Parser, ThinkingMarkers
from galley.tools.syntax import CallSyntax

HARMONY: Final = "harmony"


class Format(NamedTuple):
    """One format of calls.

    Attributes:
        parser: class of parsers of answers.
        syntax: returns how a model with the given chat template writes calls.
        signs: a chat template writes the format if it contains all parts of one of these.
    """

    parser: type[Parser]
    syntax: Callable[[str], CallSyntax]
    signs: tuple[tuple[str, ...], ...]


FORMATS: Final[dict[str, Format]] = {
    HARMONY: Format(harmony.HarmonyParser, harmony.syntax, (("<|channel|>", "<|message|>"),)),
    "deepseek": Format(deepseek.DeepSeekParser, deepseek.syntax, ((deepseek.BEGIN,),)),
    "mistral": Format(mistral.MistralParser, mistral.syntax, ((mistral.BEGIN,),)),
    "qwen_xml": Format(qwen_xml.QwenXmlParser, qwen_xml.syntax, ((qwen_xml.FUNCTION,),)),
    "phi": Format(phi.PhiParser, phi.syntax, ((phi.END,), (phi.WORD,), ("<|tool|>", "<|/tool|>"))),
    "granite": Format(granite.GraniteParser, granite.syntax, ((granite.BEGIN,),)),
    "hermes": Format(hermes.HermesParser, hermes.syntax, ((hermes.BEGIN,),)),
    "pythonic": Format(
        pythonic.PythonicParser, pythonic.syntax, ((pythonic.BEGIN,), ("func_name1(",))
    ),
    "llama": Format(
        llama.LlamaParser, llama.syntax, ((llama.TAG,), ('"parameters"', "<|start_header_id|>"))
    ),
}
"""Name -> format. A model has the first one whose signs its template contains."""

THINKING: Final[dict[str, ThinkingMarkers]] = {
    "think": ThinkingMarkers("<think>", "</think>"),
    "mistral": ThinkingMarkers("[THINK]", "[/THINK]"),
    "granite": ThinkingMarkers("Here is my thought process:", "Here is my response:"),
}
"""Name -> markers around thinking; harmony has none, because its messages have channels."""


class ChatFormat(msgspec.Struct, frozen=True, kw_only=True):
    """How tools are passed to one model, and how it writes calls and thinking.

    Attributes:
        calls: a name of :data:`FORMATS`; None: it is unknown how the model writes calls.
        syntax: syntax of these calls.
        thinking: a name of :data:`THINKING`; None: the model does not think, or its thinking is not
            to be separated.
        variables: variables that its chat template reads.
        writes_tools: whether the template passes tools to the model.
        volatile_lines: how to treat volatile lines in the model's prompts.
    """

    calls: str | None = None
    syntax: CallSyntax | None = None
    thinking: str | None = None
    variables: frozenset[str] = frozenset()
    writes_tools: bool = False
    volatile_lines: VolatileLines = "keep"

    def day_of(self, now: datetime) -> str:
        """Return the date if the template may write it into prompts, else ""."""
        return now.date().isoformat() if CLOCK in self.variables else ""

    def marker_tokens(self, tokenizer: Tokenizer, parser: Parser) -> frozenset[int]:
        """Return the tokens that are markers of ``parser``, which needs their texts and positions."""
        markers = {*parser.MARKERS, *(THINKING[self.thinking] if self.thinking else ())}
        known = control_tokens(tokenizer)
        return frozenset(known[text] for text in markers & known.keys())

    def parser(
        self,
        tools: Iterable[Tool],
        *,
        parallel: bool = True,
        in_thinking: bool = False,
        tokens: Collection[str] = (),
        constrained: bool = False,
    ) -> Parser | None:
        """Create a parser for one answer; return None if there is nothing to parse in it.

        Args:
            tools: tools that were passed to the model.
            parallel: whether several calls may follow each other.
            in_thinking: whether the prompt ends within the thinking.
            tokens: texts of :func:`control_tokens`.
            constrained: whether the answer follows a grammar.
        """
        tools = tuple(tools)
        options: dict[str, Any] = {
            "parallel": parallel,
            "in_thinking": in_thinking,
            "tokens": tokens,
            "constrained": constrained,
        }
        if self.calls == HARMONY:
            return harmony.HarmonyParser(tools, **options)
        options["thinking"] = THINKING[self.thinking] if self.thinking else None
        if tools and self.calls is not None:
            return FORMATS[self.calls].parser(tools, **options)
        return Parser(tools, **options) if self.thinking else None


def control_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Return text -> id of the tokens that grammars and parsers treat as more than their text.

    llguidance takes added tokens of the shape ``<...>`` for special ones, whose text is not their
    bytes.
    """
    return {
        t.text: t.id
        for t in tokenizer.added_tokens
        if t.special or (t.text.startswith("<") and t.text.endswith(">"))
    }


def chat_format(
    template: ChatTemplate,
    *,
    tool_parser: ToolParser = "auto",
    reasoning_parser: ReasoningParser = "auto",
    volatile_lines: VolatileLines = "keep",
) -> ChatFormat:
    """Determine the format of a model with this chat template.

    Args:
        template: the model's chat template.
        tool_parser: a name of :data:`FORMATS`, "auto" or "off".
        reasoning_parser: a name of :data:`THINKING`, "auto" or "off".
        volatile_lines: the setting of that name.
    """
    calls = _chosen(tool_parser, _calls_of(template.source))
    return ChatFormat(
        calls=calls,
        syntax=None if calls is None else FORMATS[calls].syntax(template.source),
        thinking=_chosen(reasoning_parser, _thinking_of(template.source)),
        variables=template.variables,
        writes_tools="tools" in template.variables,
        volatile_lines=volatile_lines,
    )


def _chosen(value: str, found: str | None) -> str | None:
    if value == "off":
        return None
    return found if value == "auto" else value


def _calls_of(source: str) -> str | None:
    return next(
        (
            name
            for name, known in FORMATS.items()
            if any(all(part in source for part in sign) for sign in known.signs)
        ),
        None,
    )


def _thinking_of(source: str) -> str | None:
    return next((name for name, markers in THINKING.items() if markers.end in source), None)
