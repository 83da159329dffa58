"""Chat templates: messages to a prompt, in a sandbox, with user text kept from being control tokens."""

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, Self

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.lexer import Token, TokenStream
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from galley.errors import CheckpointError, RequestError
from galley.formats.json_file import read_json
from galley.text.tokenizer import CONFIG_FILE, AddedToken, Tokenizer, certainly_longer

TEMPLATE_FILE: Final = "chat_template.jinja"

MAX_PROMPT_CHARS: Final = 32 * 1024 * 1024
"""A rendered prompt that grows beyond this is refused; no context is as long."""

MAX_STEPS: Final = 250_000
"""Loop rounds and macro calls in one rendering; some tenths of a second."""


class ChatTemplate:
    """The checkpoint's way to write a conversation. Safe to share between threads."""

    def __init__(self, source: str | None, *, file: str) -> None:
        """Args:
            source: Jinja source; ``None`` if the checkpoint has no template.
            file: where it stands, for errors.

        Raises:
            CheckpointError: the source does not compile.
        """
        self._source = source or ""
        self._template: jinja2.Template | None = None
        if source is not None:
            try:
                self._template = _Sandbox().from_string(source)
            except (jinja2.TemplateError, RecursionError) as error:
                raise CheckpointError(str(error), file=file, field="chat_template") from error

    @classmethod
    def load(cls, folder: Path) -> Self:
        """From ``chat_template.jinja``, else from ``tokenizer_config.json``; having none is no error.

        Raises:
            CheckpointError: there is a template but it cannot be used.
        """
        path = folder / TEMPLATE_FILE
        try:
            return cls(path.read_text(encoding="utf-8"), file=str(path))
        except FileNotFoundError:
            pass
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"cannot be read: {error}", file=str(path)) from error
        path = folder / CONFIG_FILE
        config = read_json(path) if path.exists() else {}
        return cls(_default_template(config, str(path)), file=str(path))

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        context: int | None = None,
    ) -> list[int]:
        """Ids of the conversation as the template writes it.

        Only the template's own special tokens become such ids; the same text in a message is spelt
        out. Text without any gives the very ids of transformers' ``apply_chat_template``. A template
        that takes messages apart and joins the pieces anew is trusted to join no special token.

        Args:
            messages: ``role``, ``content`` and whatever else the template reads; plain JSON values.
            add_generation_prompt: end with the head of the assistant's answer.
            context: refuse early what is certainly longer than so many tokens.

        Raises:
            RequestError: no template, or the template refuses the messages (``param="messages"``).
            ContextExceeded: more than ``context`` tokens, but not if they are only a few more.
        """
        if not messages:
            raise RequestError("messages must not be empty", param="messages")
        # A template sees a key without a value as absent, not as the word None.
        chat = [{k: v for k, v in message.items() if v is not None} for message in messages]
        special = _control_pattern(tokenizer.added_tokens, "")
        control = _control_pattern(tokenizer.added_tokens, self._source)
        # Words such as </think> are the model's own in its past answers, and templates look for them.
        patterns = [special if m.get("role") == "assistant" else control for m in chat]
        if not any(_contains(p, message) for p, message in zip(patterns, chat, strict=True)):
            prompt = self._render(tokenizer, chat, add_generation_prompt)
            _check_length(tokenizer, prompt, context)
            return tokenizer.encode(prompt, add_special_tokens=False)
        start, end = _unused_chars(chat)
        marked = [
            _map_strings(message, partial(p.sub, rf"{start}\g<0>{end}"))
            for p, message in zip(patterns, chat, strict=True)
        ]
        prompt = self._render(tokenizer, marked, add_generation_prompt)
        _check_length(tokenizer, re.sub(f"[{start}{end}]", "", prompt), context)
        # A template that cuts texts may leave a mark without its partner: still a break, never text.
        pieces = re.split(f"{start}({control.pattern}){end}|[{start}{end}]", prompt)
        return _encode_pieces(tokenizer, pieces[0::2], pieces[1::2], context)

    def _render(self, tokenizer: Tokenizer, chat: Any, add_generation_prompt: bool) -> str:
        if self._template is None:
            raise RequestError(
                "this model has no chat template; ask for a completion of a prompt instead, or put a "
                f"{TEMPLATE_FILE} into the model's folder",
                param="messages",
            )
        try:
            return self._bounded(
                **tokenizer.special_tokens,
                messages=chat,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except RequestError:
            raise
        except Exception as error:  # anything can go wrong in a foreign program
            raise RequestError(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error

    def _bounded(self, **variables: Any) -> str:
        assert self._template is not None
        parts: list[str] = []
        chars = 0
        steps = iter(range(MAX_STEPS))

        def step() -> str:
            if next(steps, None) is None:
                raise RequestError(
                    f"the chat template takes more than {MAX_STEPS} steps", param="messages"
                )
            return ""

        variables[_CountSteps.NAME] = step
        for part in self._template.generate(**variables):
            chars += len(part)
            if chars > MAX_PROMPT_CHARS:
                raise RequestError(
                    f"the prompt is longer than {MAX_PROMPT_CHARS} characters", param="messages"
                )
            parts.append(part)
        return "".join(parts)


class _GenerationBlock(Extension):
    """``{% generation %}`` marks the assistant's words for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _CountSteps(Extension):
    """Calls the variable ``NAME``, which templates cannot know, in each loop round and macro call."""

    NAME: Final = f"step_{secrets.token_hex(8)}"

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        opened: str | None = None  # the block whose opening tag is being read
        previous = ""
        for token in stream:
            yield token
            if previous == "block_begin":
                opened = token.value
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


class _Sandbox(ImmutableSandboxedEnvironment):
    """The environment that chat templates are written for."""

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _GenerationBlock, _CountSteps],
        )
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now


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
    """Jinja's own filter escapes HTML, which no model was trained on."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _default_template(config: Mapping[str, Any], file: str) -> str | None:
    """The source in ``tokenizer_config.json``: text, or a list of named ones, or nothing."""
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}
        if "default" not in named:
            raise CheckpointError(
                f"none of the templates is named default: {', '.join(map(str, named))}",
                file=file,
                field="chat_template",
            )
        template = named["default"]
    if template is not None and not isinstance(template, str):
        raise CheckpointError("expected text", file=file, field="chat_template")
    return template


@lru_cache(maxsize=16)
def _control_pattern(added: tuple[AddedToken, ...], source: str) -> re.Pattern[str]:
    """Matches each token that steers the model: special ones, and others that ``source`` writes.

    The rest of the added tokens are words of the vocabulary (runs of spaces, say), and so they stay.
    """
    control = [t.text for t in added if t.special or (t.text in source and not t.text.isspace())]
    longest_first = sorted(filter(None, control), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _contains(pattern: re.Pattern[str], value: Any) -> bool:
    return any(map(pattern.search, _strings(value)))


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_strings(item, change) for item in value]
    return value


def _unused_chars(value: Any) -> tuple[str, str]:
    """Two private-use characters that no text in ``value`` has."""
    used: set[str] = set().union(*_strings(value))
    free = (char for char in map(chr, range(0xF0000, 0xFFFFE)) if char not in used)
    try:
        return next(free), next(free)
    except StopIteration:
        raise RequestError(
            "the messages use every private-use character of Unicode's plane 15", param="messages"
        ) from None


def _check_length(tokenizer: Tokenizer, prompt: str, context: int | None) -> None:
    if context is not None:
        tokenizer.check_length(prompt, context, param="messages")


def _encode_pieces(
    tokenizer: Tokenizer,
    written: Sequence[str],
    quoted: Sequence[str | None],
    context: int | None,
) -> list[int]:
    """Ids of ``written[0] quoted[0] written[1] ...``; ``quoted`` pieces are plain text."""
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
    """Ids of ``text`` as it stands in the midst of a prompt.

    SentencePiece tokenisers put a space before the first word of what they are given. A newline in
    front takes that space, and its ids are cut off again, unless it has merged with ``text``: only
    tokenisers that put no space do that.
    """
    if not text:
        return []
    newline = encode("\n")
    ids = encode("\n" + text)
    return ids[len(newline) :] if ids[: len(newline)] == newline else encode(text)
