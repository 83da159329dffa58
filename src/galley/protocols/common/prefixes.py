"""How long a request wants its prefix to stay cached, as clients of several providers say it."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta

from galley.errors import RequestError
from galley.protocols.common.messages import Strict

_SECONDS: Final[Mapping[str, float]] = {"5m": 300.0, "1h": 3600.0, "24h": 86_400.0}
"""Times that providers' ``cache_control`` and ``prompt_cache_retention`` have."""

_OPTION_SECONDS: Final[Mapping[str, float]] = {"30m": 1800.0, "12h": 43_200.0}

_DEFAULT: Final = "5m"


def marked_seconds(marks: Iterable[Mapping[str, Any] | None]) -> float:
    """Return the longest ``ttl`` of ``cache_control`` marks, in seconds; 0 without any.

    Raises:
        RequestError: a mark names another time than those that providers have.
    """
    times = [mark.get("ttl") or _DEFAULT for mark in marks if mark is not None]
    for time in times:
        if time not in _SECONDS:
            raise RequestError(
                f"cache_control: ttl is {time!r}; it must be one of {', '.join(_SECONDS)}",
                param="cache_control",
            )
    return max((_SECONDS[time] for time in times), default=0.0)


class PromptCacheOptions(Strict, frozen=True, kw_only=True):
    """OpenAI's ``prompt_cache_options``. Every prefix is cached, so there are no breakpoints to set."""

    mode: Literal["implicit"] | None = None
    ttl: Annotated[
        Literal["30m", "12h"] | None,
        Meta(description="How long the prefix stays cached after the request."),
    ] = None
    prewarm: Literal[False] | None = None


PromptCacheKey: TypeAlias = Annotated[
    str | None,
    Meta(description="With any key, the prefix stays cached for 5 minutes after the request."),
]
PromptCacheRetention: TypeAlias = Annotated[
    Literal["in_memory", "24h"] | None,
    Meta(description="How long the prefix stays cached: 5 minutes or a day after the request."),
]


def retained_seconds(
    key: str | None, retention: str | None, options: PromptCacheOptions | None
) -> float:
    """Return how long a request of OpenAI's API keeps its prefix, in seconds.

    Args:
        key, retention, options: its ``prompt_cache_key``, ``prompt_cache_retention`` and
            ``prompt_cache_options``.
    """
    ttl = 0.0 if options is None or options.ttl is None else _OPTION_SECONDS[options.ttl]
    if retention == "24h":
        return _SECONDS["24h"]
    return max(ttl, _SECONDS[_DEFAULT] if key or retention else 0.0)
