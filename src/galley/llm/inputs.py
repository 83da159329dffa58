"""Conversion of the arguments of ``galley.LLM``, in any of their accepted forms, to lists."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias

from galley.errors import RequestError, shown
from galley.types import SamplingParams

Prompt: TypeAlias = str | Sequence[int]
Message: TypeAlias = Mapping[str, Any]
Conversation: TypeAlias = str | Sequence[Message]
"""Messages with ``role`` and ``content``; a string is a single message of the user."""


def as_prompts(prompts: object) -> list[str | list[int]]:
    """Convert one prompt or several to a list of texts and lists of token ids.

    Args:
        prompts: a text, a sequence of token ids (arrays, too), or an iterable of these.

    Raises:
        RequestError: ``prompts`` is anything else; the error names the parameter.
    """
    if isinstance(prompts, Iterator):
        prompts = list(prompts)
    single = _as_prompt(prompts)
    if single is not None:
        return [single]
    items = None if isinstance(prompts, Mapping) else _items(prompts)
    if items is None:
        raise _not_a_prompt(prompts)
    many = [_as_prompt(item) for item in items]
    for item, prompt in zip(items, many, strict=True):
        if prompt is None:
            raise _not_a_prompt(item)
    return [prompt for prompt in many if prompt is not None]


def as_prompt(prompt: object) -> str | list[int]:
    """Convert a single prompt.

    Raises:
        RequestError: the value is not a prompt, or is several; the error names ``prompt``.
    """
    single = _as_prompt(prompt)
    if single is None:
        raise RequestError(
            f"expected one text or one list of token ids, got {_description(prompt)}",
            param="prompt",
        )
    return single


def as_conversations(messages: object) -> list[list[dict[str, Any]]]:
    """Convert one conversation (a text, a message or a list of messages) or several to a list.

    Raises:
        RequestError: the value is anything else, or a message has no role; the error names
            ``messages``.
    """
    if isinstance(messages, str | Mapping):
        return [as_conversation(messages)]
    items = _items(messages)
    if items is None:
        raise _no_conversation(messages)
    if items and isinstance(items[0], Mapping):
        return [as_conversation(items)]
    return [as_conversation(item) for item in items]


def as_conversation(messages: object) -> list[dict[str, Any]]:
    """Convert a single conversation. Raises the same errors as :func:`as_conversations`."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    items = [messages] if isinstance(messages, Mapping) else _items(messages)
    if items is None:
        raise _no_conversation(messages)
    for item in items:
        if not isinstance(item, Mapping) or not isinstance(item.get("role"), str):
            raise _no_conversation(item)
    return [dict(item) for item in items]


def as_params(params: object, count: int) -> list[SamplingParams]:
    """Return the parameters of each of ``count`` prompts.

    Args:
        params: parameters for all prompts, or a sequence with those of each; None: the defaults.
        count: number of prompts.

    Raises:
        RequestError: ``params`` is anything else, or its length is not ``count``; the error names
            ``params``.
    """
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    each = None if isinstance(params, str | Mapping) else _items(params)
    if each is None or not all(isinstance(one, SamplingParams) for one in each):
        raise RequestError(
            "expected SamplingParams(temperature=0, ...), or one for each prompt; got "
            f"{_description(params)}",
            param="params",
        )
    if len(each) != count:
        raise RequestError(f"{len(each)} SamplingParams for {count} prompts", param="params")
    return each


def _as_prompt(value: object) -> str | list[int] | None:
    """Return a text or a list of at least one token id; None for anything else."""
    if isinstance(value, str):
        return value
    items = None if isinstance(value, Mapping) else _items(value)
    if items and all(isinstance(i, Integral) and not isinstance(i, bool) for i in items):
        return [int(item) for item in items]
    return None


def _items(value: object) -> list[Any] | None:
    """Return the items of an iterable or an array, nested arrays as lists; None for anything else."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return (
        list(value) if isinstance(value, Iterable) and not isinstance(value, str | bytes) else None
    )


def _not_a_prompt(value: object) -> RequestError:
    return RequestError(
        f"a prompt is a text or a list of token ids, got {_description(value)}", param="prompts"
    )


def _no_conversation(value: object) -> RequestError:
    return RequestError(
        'expected a text, or messages such as {"role": "user", "content": "Hello"}; got '
        f"{_description(value)}",
        param="messages",
    )


def _description(value: object) -> str:
    return f"{shown(value)} ({type(value).__name__})"
