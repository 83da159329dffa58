"""The settings of what a server keeps of its traffic: answers, and a record."""

# ruff: noqa: RUF009  (setting is dataclasses.field, called the same way)

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta

from galley.errors import SettingsError
from galley.settings.engine import EngineSettings
from galley.settings.fields import setting
from galley.settings.values import Count, Seconds

CacheMode: TypeAlias = Literal["off", "exact", "semantic"]

_SEMANTIC: Final = "semantic_cache_"
_OF_THE_CACHE: Final = ("response_cache_", _SEMANTIC)
"""How the names of settings begin that only a response cache uses."""


@dataclass(frozen=True, kw_only=True)
class ModelSettings(EngineSettings):
    """The settings that each of several served models may have for itself."""

    response_cache: CacheMode = setting(
        "off",
        "Cache",
        "answer requests that are equal to earlier ones from a store; exact: greedy or seeded requests; "
        "semantic: also chats whose last message means the same (needs semantic_cache_model)",
    )


@dataclass(frozen=True, kw_only=True)
class CacheSettings(ModelSettings):
    """The settings of a server's store of answers, and of the record of its traffic."""

    response_cache_store: str = setting(
        "",
        "Cache",
        "where answers are stored: a file, or redis://HOST:PORT/DB (needs the extra redis); default: "
        "responses.sqlite in the cache folder",
        secret=True,
    )
    response_cache_bytes: Count = setting(
        1024 * 1024 * 1024,
        "Cache",
        "maximum bytes of stored answers; the least recently used are evicted",
    )
    response_cache_entries: Count = setting(1_000_000, "Cache", "maximum number of stored answers")
    response_cache_seconds: Seconds = setting(
        86_400.0, "Cache", "age at which a stored answer is dropped, in seconds"
    )
    response_cache_pace: Annotated[float, Meta(gt=0, le=1e9)] | None = setting(
        None, "Cache", "tokens per second at which stored answers are streamed; default: at once"
    )

    semantic_cache_model: str = setting(
        "",
        "Cache",
        "embedding model that compares questions: a served model's name, or the model's name at "
        "semantic_cache_url",
    )
    semantic_cache_url: str = setting(
        "",
        "Cache",
        "URL of another server with OpenAI's embeddings API (http://HOST:PORT/v1); default: this server",
    )
    semantic_cache_api_key: str = setting("", "Cache", "key for semantic_cache_url", secret=True)
    semantic_cache_threshold: Annotated[float, Meta(gt=0, le=1)] | None = setting(
        None,
        "Cache",
        "cosine at or above which two questions may be the same; galley cache tune finds it for the model",
    )
    semantic_cache_reranker: str = setting(
        "", "Cache", "name of a served reranker (cross-encoder) that also compares the questions"
    )
    semantic_cache_reranker_threshold: float | None = setting(
        None,
        "Cache",
        "score of the reranker at or above which they may be the same; galley cache tune finds it, too",
    )
    semantic_cache_turns: Count = setting(
        3, "Cache", "maximum number of user messages in a conversation that is compared by meaning"
    )
    semantic_cache_entries: Count = setting(
        50_000,
        "Cache",
        "maximum number of questions in memory to compare with; the least recently used are evicted",
    )
    semantic_cache_checked: Annotated[float, Meta(ge=0, le=1)] = setting(
        0.05, "Cache", "share of semantic hits that are generated as well, to count false ones"
    )
    semantic_cache_budget: Annotated[float, Meta(gt=0, lt=1)] = setting(
        0.01, "Cache", "share of false hits above which semantic hits are turned off"
    )
    semantic_cache_agreement: Annotated[float, Meta(gt=0, le=1)] = setting(
        0.65,
        "Cache",
        "cosine of two answers below which a checked hit counts as false; galley cache tune --answers "
        "finds it for the model",
    )

    record: str = setting(
        "",
        "Cache",
        "folder for a record of the traffic, for galley replay: times, lengths and hashes, no texts",
    )
    record_texts: str = setting(
        "",
        "Cache",
        "file with a key of 64 hexadecimal digits: the record then has texts, too, encrypted with it "
        "(needs the extra record)",
    )
    record_bytes: Annotated[int, Meta(ge=128 << 20)] = setting(
        1024 * 1024 * 1024, "Cache", "maximum bytes of the record; the oldest files are deleted"
    )


def check_mode(mode: CacheMode, modes: Collection[CacheMode], where: str) -> None:
    """Raise SettingsError, which begins with ``where``, if ``mode`` is not one of a server's ``modes``."""
    if mode in modes:
        return
    if "exact" not in modes:
        raise SettingsError(
            f"{where} is {mode}, but this server has no store: start it with --response-cache-store"
        )
    raise SettingsError(
        f"{where} is {mode}, but this server compares no questions: start it with "
        "--semantic-cache-model"
    )


def check_used(settings: CacheSettings, modes: Collection[CacheMode]) -> None:
    """Raise SettingsError if settings of the response cache are given that a server would not use.

    Args:
        settings: the server's.
        modes: the modes that its response cache has.
    """
    given = [
        one.name
        for one in fields(CacheSettings)
        if one.name.startswith(_OF_THE_CACHE) and getattr(settings, one.name) != one.default
    ]
    if given and "exact" not in modes:
        raise SettingsError(
            f"no response cache uses {', '.join(given)}: set response_cache of a model, or "
            "response_cache_store, or leave them out (of the settings file, too)"
        )
    given = [name for name in given if name.startswith(_SEMANTIC)]
    if given and "semantic" not in modes:
        raise SettingsError(
            f"nothing uses {', '.join(given)} without semantic_cache_model, the embedding model that "
            "compares questions"
        )
    if settings.semantic_cache_api_key and not settings.semantic_cache_url:
        raise SettingsError(
            "semantic_cache_api_key is given, but no semantic_cache_url to send it to"
        )
