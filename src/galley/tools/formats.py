"""Which format a model writes: found in its chat template, or named by a setting."""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, NamedTuple

import msgspec

from galley.settings.engine import ReasoningParser, ToolParser, VolatileLines
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
        parser: takes answers apart.
        syntax: how calls are written by a model with such a chat template.
        signs: a chat template that has one of these writes the format, if it has all of its parts.
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
"""Name to format. The first one whose signs a template has is the model's."""

THINKING: Final[dict[str, ThinkingMarkers]] = {
    "think": ThinkingMarkers("<think>", "</think>"),
    "mistral": ThinkingMarkers("[THINK]", "[/THINK]"),
    "granite": ThinkingMarkers("Here is my thought process:", "Here is my response:"),
}
"""Name to the markers around thinking; harmony's messages mark theirs themselves."""


class ChatFormat(msgspec.Struct, frozen=True, kw_only=True):
    """How one model is told of tools and how it writes calls and thinking.

    Attributes:
        calls: a name of :data:`FORMATS`; None: it is not known how the model writes calls.
        syntax: of these calls.
        thinking: a name of :data:`THINKING`; None: the model does not think, or nobody wants it apart.
        variables: that its chat template reads.
        writes_tools: the template can tell the model of tools.
        volatile_lines: what becomes of them in the model's prompts.
    """

    calls: str | None = None
    syntax: CallSyntax | None = None
    thinking: str | None = None
    variables: frozenset[str] = frozenset()
    writes_tools: bool = False
    volatile_lines: VolatileLines = "keep"

    def marker_tokens(self, tokenizer: Tokenizer, parser: Parser) -> frozenset[int]:
        """Tokens that are a marker of ``parser``, which wants to see their text and their places."""
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
        """A parser for one answer, or None if there is nothing to find in it.

        Args:
            tools: that the model was told of.
            parallel: several calls may come.
            in_thinking: the prompt ends within the thinking.
            tokens: texts of :func:`control_tokens`.
            constrained: the answer follows a grammar.
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
    """Text -> id of the tokens that mean more than their text, to grammars and to parsers alike.

    llguidance takes added tokens of the shape ``<...>`` for special ones, whose text is not their bytes.
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
    """The format of a model with this chat template.

    Args:
        template: the model's.
        tool_parser: a name of :data:`FORMATS`, "auto" or "off".
        reasoning_parser: a name of :data:`THINKING`, "auto" or "off".
        volatile_lines: as the settings have it.
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
