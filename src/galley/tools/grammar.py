"""Grammars of answers that must be a call, whose calls must be valid, or that follow thinking."""

import re
from typing import Any, Final, Literal

import msgspec

from galley.errors import RequestError
from galley.text.tokenizer import Tokenizer
from galley.tools import harmony
from galley.tools.argument_grammar import python_arguments, tag_arguments
from galley.tools.conversation import Conversation, Tool
from galley.tools.formats import HARMONY, THINKING, ChatFormat, control_tokens
from galley.tools.syntax import ARGUMENTS, NAME, CallSyntax
from galley.types import Grammar

Thinking = Literal["begun", "possible", "over"]
"""Thinking at the prompt's end: the answer continues it, can begin with it, or has none."""

_ANY_TEXT: Final = r"/(.|\n)+/"


def grammar_of(
    conversation: Conversation,
    format: ChatFormat,
    tokenizer: Tokenizer,
    thinking: Thinking,
    answer: Grammar | None,
) -> Grammar | None:
    """Return the grammar of the model's answer, including markers and thinking; None: any text.

    Args:
        conversation: the conversation; its tools can be written in the model's format.
        format: the model's format.
        tokenizer: the model's tokenizer, which determines which markers are tokens.
        thinking: state of thinking at the prompt's end.
        answer: grammar of the text, if there is one.

    Raises:
        RequestError: a tool's schema cannot be written in the model's format; the error names it.
    """
    tools = conversation.offered
    calls = bool(tools) and (
        conversation.must_call or answer is not None or any(tool.strict for tool in tools)
    )
    if answer is None and not calls:
        return None
    thinks = format.calls == HARMONY or (format.thinking is not None and thinking != "over")
    if not calls and not thinks:
        return answer
    builder = _Builder(conversation, format, tokenizer)
    return builder.built(thinking if format.thinking else "over", answer, calls=calls)


class _Builder:
    """Rules in llguidance's Lark notation, and the schemas that some of them stand for."""

    def __init__(
        self, conversation: Conversation, format: ChatFormat, tokenizer: Tokenizer
    ) -> None:
        self._conversation = conversation
        self._format = format
        self._special = control_tokens(tokenizer)
        self.rules: list[str] = []
        self.terminals: dict[str, str] = {"SPACE": r"/[ \n]{0,8}/"}
        self.schemas: dict[str, dict[str, Any]] = {}

    def built(self, thinking: Thinking, answer: Grammar | None, *, calls: bool) -> Grammar:
        text = self._text(answer)
        if not calls:
            body = text
        elif self._conversation.must_call:
            body = self._calls()
        else:
            body = self._free(text) if answer is None else f"{self._calls()} | {text}"
        start = f"start: {self._thinking(thinking)} body"
        terminals = [f"{name}: {expression}" for name, expression in self.terminals.items()]
        source = {
            "lark": "\n".join((start, f"body: {body}", *self.rules, *terminals)),
            "schemas": self.schemas,
            "answer": answer,
        }
        return Grammar("chat", msgspec.json.encode(source).decode())

    def literal(self, text: str) -> str:
        """Return a text in Lark's notation; that of a special token is the token."""
        if text in self._special:
            return f"<[{self._special[text]}]>"
        return msgspec.json.encode(text).decode()

    def schema(self, field: str, schema: dict[str, Any]) -> str:
        """Return the name of a rule for JSON that satisfies ``schema``, which errors call ``field``."""
        rule = f"json_{len(self.schemas)}"
        self.schemas[rule] = {"field": field, "schema": schema}
        return rule

    def rule(self, name: str, body: str) -> str:
        """Add a rule and return its name: ``name`` with a number."""
        name = f"{name}_{len(self.rules)}"
        self.rules.append(f"{name}: {body}")
        return name

    def _thinking(self, thinking: Thinking) -> str:
        """Return the rule for what may precede the answer."""
        if self._format.calls == HARMONY:
            following = " ".join(map(self.literal, (harmony.START, "assistant")))
            thought = f"{self._message('analysis')} {self._up_to(harmony.END)} {following}"
            return f"({thought})?"
        if self._format.thinking is None or thinking == "over":
            return ""
        begin, end = THINKING[self._format.thinking]
        thought = f"{self._up_to(end)} SPACE"
        return thought if thinking == "begun" else f"({self.literal(begin)} {thought})?"

    def _up_to(self, end: str) -> str:
        """Return the rule for any text up to a marker, and the marker."""
        if end in self._special:
            self.terminals["TEXT"] = _ANY_TEXT
            return f"TEXT? {self.literal(end)}"
        self.terminals[f"thought[suffix={self.literal(end)}]"] = r"/(.|\n)*/"
        return "thought"

    def _text(self, answer: Grammar | None) -> str:
        """Return the rule for the text of the answer, which in harmony is a separate message."""
        text = "@answer"
        if answer is None:
            self.terminals["TEXT"] = _ANY_TEXT
            text = "TEXT"
        if self._format.calls != HARMONY:
            return text
        return f"{self._message('final')} {text}"

    def _message(self, channel: str) -> str:
        return " ".join(map(self.literal, (harmony.CHANNEL, channel, harmony.MESSAGE)))

    def _calls(self, *, headless: bool = False) -> str:
        """Return the rule for calls.

        Args:
            headless: one call or a list of them, without its first text.
        """
        syntax = self._syntax
        begin, call = syntax.begin, syntax.call
        if headless:
            begin, call = (begin[1:], call) if begin else (begin, call[1:])
        calls = [self._call(tool, call) for tool in self._conversation.offered]
        self.rules.append(f"call: {' | '.join(calls)}")
        head, between, tail = (
            " ".join(map(self.literal, parts)) for parts in (begin, syntax.between, syntax.end)
        )
        one = not self._conversation.parallel or not syntax.several or (headless and not begin)
        return f"{head} call {tail}" if one else f"{head} call ({between} call)* {tail}"

    @property
    def _syntax(self) -> CallSyntax:
        assert self._format.syntax is not None
        return self._format.syntax

    def _call(self, tool: Tool, syntax: tuple[str, ...]) -> str:
        parts = []
        for part in syntax:
            if part == NAME:
                parts.append(self.literal(tool.name))
            elif part == ARGUMENTS:
                parts.append(self._arguments(tool))
            else:
                parts.append(self.literal(part))
        return self.rule("call", " ".join(parts))

    def _arguments(self, tool: Tool) -> str:
        kind = self._syntax.arguments
        if not tool.strict and not self._conversation.must_call:
            if kind != "json":
                raise RequestError(
                    "tools: this model supports strict only for all tools or for none",
                    param="tools",
                )
            return self.schema(tool.field, {"type": "object"})
        match kind:
            case "tags":
                return tag_arguments(self, tool)
            case "python":
                return python_arguments(self, tool)
        return self.schema(tool.field, _object(tool))

    def _free(self, text: str) -> str:
        """Return the rule for text or calls, as the model chooses, where calls must be valid."""
        syntax = self._syntax
        if self._format.calls == HARMONY:
            return f"{self._calls()} | {text}"
        marker = (*syntax.begin, *syntax.call)[0]
        if not syntax.marked:
            first = "[" if syntax.begin else "{"
            self.terminals["TEXT"] = rf"/[^\s\{first}](.|\n)*/"
            return f"SPACE ({self._calls()} | TEXT?)"
        if marker in self._special:
            self.terminals["TEXT"] = _ANY_TEXT
            return f"TEXT? ({self._calls()} TEXT?)*"
        expression = re.escape(marker).replace("/", "\\/")
        self.terminals[f"head[suffix={self.literal(marker)}]"] = r"/(.|\n)*/"
        self.terminals["TAIL"] = rf"/(.|\n)*/ & ~/(.|\n)*{expression}(.|\n)*/"
        return f"(head {self._calls(headless=True)})* TAIL"


def _object(tool: Tool) -> dict[str, Any]:
    """Return the schema of the arguments, with the type object if it has no type."""
    return tool.schema if "type" in tool.schema else {"type": "object", **tool.schema}
