"""Chat templates: messages to a prompt, in a sandbox; message text never becomes control tokens."""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Final, Self

import jinja2
from jinja2 import nodes

from galley.errors import CheckpointError, RequestError
from galley.formats.gguf_file import is_gguf
from galley.text.gguf_tokenizer import read_metadata
from galley.text.sandbox import CountSteps, Sandbox
from galley.text.template_calls import CallForm, adapted, found_form
from galley.text.template_files import TEMPLATE_FILE, TOOL_USE, read_templates
from galley.text.template_system import takes_late, without_late
from galley.text.tokenizer import AddedToken, Tokenizer, certainly_longer

GGUF_TEMPLATE: Final = "tokenizer.chat_template"

MAX_PROMPT_CHARS: Final = 32 * 1024 * 1024
"""Limit of a rendered prompt in characters; no model has a context this long."""

MAX_STEPS: Final = 250_000
"""Limit of loop iterations and macro calls in one rendering, a few tenths of a second."""

_MOST_REASON: Final = 1000
"""Maximum number of characters kept of a template's own error message."""


class ChatTemplate:
    """A checkpoint's chat template. Safe to share between threads."""

    def __init__(self, source: str | None, *, file: str, tool_source: str | None = None) -> None:
        """Compile a template.

        Args:
            source: Jinja source; None if the checkpoint has no template.
            file: the file from which the source was read, for errors.
            tool_source: source of a separate template for conversations with tools, if there is
                one.

        Raises:
            CheckpointError: the source does not compile.
        """
        self._template = _compiled(source, file)
        self._with_tools = self._template if tool_source is None else _compiled(tool_source, file)
        self.source = "\n".join(filter(None, (source, tool_source)))
        # Found by probing, at the first call and the first late system message.
        self._call_form: CallForm | None = None
        self._takes_late_system: bool | None = None

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load the templates of :func:`read_templates`, or those in a GGUF file's metadata.

        Raises:
            CheckpointError: the template cannot be read or does not compile.
        """
        if is_gguf(folder):
            metadata = read_metadata(folder)
            sources = []
            for key in (GGUF_TEMPLATE, f"{GGUF_TEMPLATE}.{TOOL_USE}"):
                sources.append(metadata.raw.get(key))
                if sources[-1] is not None and not isinstance(sources[-1], str):
                    raise CheckpointError("is not a string", file=metadata.file, field=key)
            return cls(sources[0], file=metadata.file, tool_source=sources[1])
        named, path = read_templates(folder)
        return cls(named.get("default"), file=str(path), tool_source=named.get(TOOL_USE))

    @property
    def exists(self) -> bool:
        """Whether the checkpoint has a template."""
        return self._template is not None

    @cached_property
    def variables(self) -> frozenset[str]:
        """Names of the variables that the template reads, or tests for being defined."""
        tree = Sandbox().parse(self.source)
        names = list(tree.find_all(nodes.Name))
        # Jinja's own search compiles the template, which evaluates its constant expressions.
        read = {name.name for name in names if name.ctx == "load"}
        own = {name.name for name in names if name.ctx != "load"}
        tested = {
            test.node.name
            for test in tree.find_all(nodes.Test)
            if test.name == "defined" and isinstance(test.node, nodes.Name)
        }
        return frozenset(read - own | tested) - {CountSteps.NAME}

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_last: bool = False,
        context: int | None = None,
    ) -> list[int]:
        """Render a conversation with the template and encode it to token ids.

        Where the template does not accept a system message after others, its text is merged into an
        adjacent message.

        Only special tokens that the template itself writes become special ids; the same text in a
        message, tool or variable is encoded as plain text. Messages without such text give the same
        ids as transformers' ``apply_chat_template``. A template that splits and rejoins message
        text is trusted not to build a special token from it.

        Args:
            tokenizer: the model's tokenizer.
            messages: ``role``, ``content`` and whatever else the template reads; plain JSON values.
                The ``arguments`` of ``tool_calls`` are dictionaries, or text that is not a JSON
                object.
            tools: functions as OpenAI's API describes them, ``{"type": "function", "function":
                ...}``.
            variables: further variables of the template, such as ``enable_thinking``.
            add_generation_prompt: end with the beginning of the assistant's answer.
            continue_last: end within the last message, after its content, instead.
            context: the model's context in tokens; prompts that are certainly longer are refused
                early.

        Raises:
            RequestError: there is no template, or it refuses the messages (``param="messages"``).
            ContextExceeded: the prompt is far longer than ``context``; the caller checks the exact
                length.
        """
        if not messages:
            raise RequestError("messages must not be empty", param="messages")
        # Remove keys without a value, which a template would print as "None".
        chat = [{k: v for k, v in message.items() if v is not None} for message in messages]
        chat = self._adapted(tokenizer, chat)
        rest: dict[str, Any] = {"tools": list(tools) or None, "variables": dict(variables or {})}
        special = _control_pattern(tokenizer.added_tokens, "")
        control = _control_pattern(tokenizer.added_tokens, self.source)
        # Past answers can contain tokens such as </think>, which the model wrote and templates
        # search for.
        patterns = [special if m.get("role") == "assistant" else control for m in chat]
        parts = [*zip(patterns, chat, strict=True), (control, rest)]
        quotes = any(_contains(pattern, part) for pattern, part in parts)
        marks = _unused_chars([chat, rest], 3) if quotes or continue_last else []
        if quotes:
            start, end, _ = marks
            *chat, rest = [
                _map_strings(part, partial(pattern.sub, rf"{start}\g<0>{end}"))
                for pattern, part in parts
            ]
        if continue_last:
            prompt = self._render_up_to(tokenizer, chat, marks[2], **rest)
        else:
            prompt = self._render(tokenizer, chat, add_generation_prompt, **rest)
        if not quotes:
            _check_length(tokenizer, prompt, context)
            return tokenizer.encode(prompt, add_special_tokens=False)
        _check_length(tokenizer, re.sub(f"[{start}{end}]", "", prompt), context)
        # A template that cuts texts can drop one mark of a pair; the other is removed, but still
        # splits the text.
        pieces = re.split(f"{start}({control.pattern}){end}|[{start}{end}]", prompt)
        return _encode_pieces(tokenizer, pieces[0::2], pieces[1::2], context)

    def _render_up_to(
        self, tokenizer: Tokenizer, chat: list[dict[str, Any]], mark: str, **rest: Any
    ) -> str:
        """Render the prompt up to the end of the last message's content, which ``mark`` locates."""
        last = {**chat[-1], "content": (chat[-1].get("content") or "") + mark}
        prompt = self._render(tokenizer, [*chat[:-1], last], False, **rest)
        before, found, _ = prompt.rpartition(mark)
        if not found:
            raise RequestError(
                "the last message cannot be continued, because the model's chat template omits its content",
                param="messages",
            )
        return before.replace(mark, "")

    def _adapted(self, tokenizer: Tokenizer, chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the messages with calls and system messages in the form that this template expects."""
        if any(message.get("role") == "system" for message in chat[1:]):
            if self._takes_late_system is None:
                self._takes_late_system = takes_late(lambda m: self._render(tokenizer, m, False))
            if not self._takes_late_system:
                chat = without_late(chat)
        if any("tool_calls" in message for message in chat):
            if self._call_form is None:
                self._call_form = found_form(lambda probe: self._render(tokenizer, probe, False))
            chat = adapted(chat, self.source, self._call_form)
        return chat

    def _render(
        self,
        tokenizer: Tokenizer,
        chat: Any,
        add_generation_prompt: bool,
        tools: Any = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        template = self._with_tools if tools else self._template
        if template is None:
            raise RequestError(
                "this model has no chat template; request a completion of a prompt instead, or put a "
                f"{TEMPLATE_FILE} into the model's folder",
                param="messages",
            )
        try:
            return _bounded(
                template,
                {
                    "documents": None,
                    **(variables or {}),
                    **tokenizer.special_tokens,
                    "messages": chat,
                    "tools": tools,
                    "add_generation_prompt": add_generation_prompt,
                },
            )
        except (RequestError, MemoryError):
            raise
        except Exception as error:  # a template is untrusted code and may raise anything
            reason = str(error)[:_MOST_REASON]
            raise RequestError(
                f"the model's chat template refuses these messages: {reason}", param="messages"
            ) from error


def _compiled(source: str | None, file: str) -> jinja2.Template | None:
    if source is None:
        return None
    try:
        return Sandbox().from_string(source)
    # Some errors come from Python's compiler, and those of numbers from int().
    except (jinja2.TemplateError, RecursionError, SyntaxError, ValueError) as error:
        raise CheckpointError(str(error), file=file, field="chat_template") from error


def _bounded(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Render the prompt. Raise RequestError if it takes too many steps, or is too long."""
    parts: list[str] = []
    chars = 0
    steps = iter(range(MAX_STEPS))

    def step() -> str:
        if next(steps, None) is None:
            raise RequestError(
                f"the chat template exceeds {MAX_STEPS} loop iterations and macro calls",
                param="messages",
            )
        return ""

    for part in template.generate(**variables, **{CountSteps.NAME: step}):
        chars += len(part)
        if chars > MAX_PROMPT_CHARS:
            raise RequestError(
                f"the prompt is longer than {MAX_PROMPT_CHARS} characters", param="messages"
            )
        parts.append(part)
    return "".join(parts)


@lru_cache(maxsize=16)
def _control_pattern(added: tuple[AddedToken, ...], source: str) -> re.Pattern[str]:
    """Return a pattern for the text of control tokens.

    Control tokens are special tokens, and other added tokens that ``source`` writes. All other
    added tokens are ordinary vocabulary, runs of spaces for example, and are not matched.
    """
    control = [t.text for t in added if t.special or (t.text in source and not t.text.isspace())]
    longest_first = sorted(filter(None, control), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _contains(pattern: re.Pattern[str], value: Any) -> bool:
    return any(map(pattern.search, _strings(value)))


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return type(value)(change(value))
    if isinstance(value, Mapping):
        return {change(str(key)): _map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_strings(item, change) for item in value]
    return value


def _unused_chars(value: Any, count: int) -> list[str]:
    """Return private-use characters that occur in no text of ``value``."""
    used: set[str] = set().union(*_strings(value))
    free = (char for char in map(chr, range(0xF0000, 0xFFFFE)) if char not in used)
    found = list(itertools.islice(free, count))
    if len(found) < count:
        raise RequestError(
            "the messages use every private-use character of Unicode's plane 15", param="messages"
        )
    return found


def _check_length(tokenizer: Tokenizer, prompt: str, context: int | None) -> None:
    if context is not None:
        tokenizer.check_length(prompt, context, param="messages")


def _encode_pieces(
    tokenizer: Tokenizer,
    written: Sequence[str],
    quoted: Sequence[str | None],
    context: int | None,
) -> list[int]:
    """Return the ids of ``written[0] quoted[0] written[1] ...``.

    Special tokens are recognized in ``written`` texts only; ``quoted`` texts are encoded as plain
    text.
    """
    ids = _encode_written(tokenizer, written[0])
    for text, following in zip(quoted, written[1:], strict=True):
        ids += _within(tokenizer.encode_plain, text or "")
        ids += _within(lambda piece: _encode_written(tokenizer, piece), following)
        if context is not None and len(ids) > context:
            raise certainly_longer(context, param="messages")
    return ids


def _encode_written(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def _within(encode: Callable[[str], list[int]], text: str) -> list[int]:
    """Encode a part of a prompt, without the space that SentencePiece puts before a text.

    The text is encoded with a newline in front, which gets that space, and the newline's ids are
    removed. If the newline was merged with ``text``, the tokenizer is one that adds no space.
    """
    if not text:
        return []
    newline = encode("\n")
    ids = encode("\n" + text)
    return ids[len(newline) :] if ids[: len(newline)] == newline else encode(text)
