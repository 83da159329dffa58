"""The settings of what a server keeps of its traffic: answers, and a record."""

# ruff: noqa: RUF009  (setting is dataclasses.field, called the same way)

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from galley.settings.engine import EngineSettings, setting
from galley.settings.values import Count, Seconds


@dataclass(frozen=True, kw_only=True)
class ModelSettings(EngineSettings):
    """The settings that each of several served models may have for itself."""

    response_cache: Literal["off", "exact", "semantic"] = setting(
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
        1024 * 1024 * 1024, "Cache", "size of all stored answers; the least recently used make room"
    )
    response_cache_entries: Count = setting(1_000_000, "Cache", "number of stored answers")
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
        "cosine from which on two questions may be the same; galley cache tune finds it for the model",
    )
    semantic_cache_reranker: str = setting(
        "", "Cache", "a served reranker (cross-encoder) that also compares the questions"
    )
    semantic_cache_reranker_threshold: float | None = setting(
        None,
        "Cache",
        "its score from which on they may be the same; galley cache tune finds it, too",
    )
    semantic_cache_turns: Count = setting(
        3, "Cache", "most messages of the user in a conversation that is compared by meaning"
    )
    semantic_cache_entries: Count = setting(
        50_000,
        "Cache",
        "questions in memory that others are compared with; the least recently used go",
    )
    semantic_cache_checked: Annotated[float, Meta(ge=0, le=1)] = setting(
        0.05, "Cache", "share of semantic hits that are generated as well, to count false ones"
    )
    semantic_cache_budget: Annotated[float, Meta(gt=0, lt=1)] = setting(
        0.01, "Cache", "share of false hits above which semantic hits are turned off"
    )
    semantic_cache_agreement: Annotated[float, Meta(gt=0, le=1)] = setting(
        0.8, "Cache", "cosine of two answers below which a checked hit counts as false"
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
        1024 * 1024 * 1024, "Cache", "size of the record; the oldest files make room"
    )

    @property
    def stores_responses(self) -> bool:
        """Whether a store of answers is opened: a model uses it, or requests may ask for it."""
        return self.response_cache != "off" or bool(self.response_cache_store)
