"""How long a request wants its prefix to stay cached, as clients of several providers say it."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from galley.errors import RequestError

_SECONDS: Final[Mapping[str, float]] = {"5m": 300.0, "1h": 3600.0, "24h": 86_400.0}

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


def retained_seconds(key: str | None, retention: str | None) -> float:
    """Return how long ``prompt_cache_key`` and ``prompt_cache_retention`` keep a prefix, in seconds."""
    if retention == "24h":
        return _SECONDS["24h"]
    return _SECONDS[_DEFAULT] if key or retention else 0.0
