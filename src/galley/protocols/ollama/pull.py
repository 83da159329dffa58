"""Ollama's API: downloading models to the hub library's cache, and removing them from it."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from typing import Annotated, Final, Literal, NotRequired, TypedDict

from msgspec import Meta

from galley.errors import Conflict, ModelError, ModelNotFound, RequestError
from galley.formats.hub_cache import remove
from galley.formats.source import BUNDLED_MODELS, hub_name, resolve_model
from galley.gateway.daemon_thread import in_daemon_thread
from galley.gateway.registry import Registry
from galley.protocols.common.errors import ApiError
from galley.protocols.common.messages import Strict

_PROGRESS_SECONDS: Final = 0.25
_SUCCESS: Final = "success"


class OllamaPullRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /api/pull`."""

    model: Annotated[str | None, Meta(description="A hub id, a short name or a served model.")] = (
        None
    )
    name: Annotated[str | None, Meta(description="Older name of `model`.")] = None
    stream: bool | None = None
    insecure: Literal[False] | None = None

    @property
    def streamed(self) -> bool:
        """Whether progress is reported while it is made."""
        return self.stream is not False


class OllamaDeleteRequest(Strict, frozen=True, kw_only=True):
    """Body of `DELETE /api/delete`."""

    model: str | None = None
    name: Annotated[str | None, Meta(description="Older name of `model`.")] = None


class OllamaProgress(TypedDict):
    """Progress; ``completed`` and ``total`` count bytes of the files that were not cached."""

    status: str
    digest: NotRequired[str]
    total: NotRequired[int]
    completed: NotRequired[int]


class _Stopped(Exception):
    """The client no longer waits for a download."""


class OllamaPull:
    """A download in progress."""

    def __init__(self, models: Registry, parsed: str) -> None:
        """
        Args:
            models: registry, which resolves served names; other names are the hub's.
            parsed: the name in the request.

        Raises:
            RequestError: the name cannot be that of a model at the hub.
        """
        self._name, self._revision = _named_model(models, parsed)
        self._served = _serving(models, self._name)
        self._stopped = False
        self._progress = (0, 0)

    async def events(self) -> AsyncGenerator[OllamaProgress, None]:
        """Yield progress until the download is complete.

        Raises:
            ApiError: the model cannot be downloaded.
        """
        yield {"status": "pulling manifest"}
        work = asyncio.ensure_future(in_daemon_thread(self._download))
        sent = self._progress
        while not work.done():
            await asyncio.wait({work}, timeout=_PROGRESS_SECONDS)
            if self._progress != sent:
                sent = self._progress
                yield self._line()
        try:
            work.result()
        except ModelError as error:
            raise ApiError(400, str(error), param="model", code="model_unusable") from error
        if not self._served:
            yield {"status": f"{self._name} is downloaded; restart the server with it to serve it"}
        yield {"status": _SUCCESS}

    async def whole(self) -> OllamaProgress:
        """Return the last event. Raises as :meth:`events`."""
        async for line in self.events():
            last = line
        return last

    def close(self) -> None:
        """Stop the download; completed files are kept. Idempotent."""
        self._stopped = True

    def _download(self) -> None:
        resolve_model(self._name, revision=self._revision, on_bytes=self._note)

    def _note(self, completed: int, total: int) -> None:
        if self._stopped:
            raise _Stopped
        self._progress = completed, total

    def _line(self) -> OllamaProgress:
        completed, total = self._progress
        return {
            "status": f"pulling {self._name}",
            # Ollama's clients show a progress bar per digest; here one stands for all files.
            "digest": f"sha256:{hashlib.sha256(self._name.encode()).hexdigest()}",
            "total": max(completed, total),
            "completed": completed,
        }


async def delete(models: Registry, parsed: str) -> OllamaProgress:
    """Remove an additional name of a model, or a model from the hub library's cache, all revisions.

    Raises:
        RequestError: the model is bundled with Galley, or the name cannot be one at the hub.
        Conflict: the model is being served.
        ApiError: 404, the model is not in the cache.
    """
    own = parsed if parsed in models.derived else parsed.removesuffix(":latest")
    if models.derived.pop(own, None) is not None:
        return {"status": _SUCCESS}
    name, _ = _named_model(models, parsed)
    if name in ("", *BUNDLED_MODELS):
        raise RequestError(f"{parsed} is bundled with Galley and cannot be removed", param="model")
    if served := _serving(models, name):
        raise Conflict(f"{name} is served as {served!r}, whose engine may need it to restart")
    try:
        await in_daemon_thread(lambda: remove(name))
    except ModelNotFound as error:
        raise ApiError(404, str(error), param="model", code="model_not_found") from error
    return {"status": _SUCCESS}


def _named_model(models: Registry, parsed: str) -> tuple[str, str]:
    """Return the model, as settings name it, and the revision that a name refers to."""
    for served in models:
        if parsed.removesuffix(":latest") == served.name:
            return served.settings.model, served.settings.revision
    if parsed in BUNDLED_MODELS:
        return parsed, "main"
    name = hub_name(parsed)
    if name is None:
        raise RequestError(
            f"model: {parsed[:100]!r} is not a served model, hub id (org/name), GGUF file on the hub "
            "(org/name/FILE.gguf) or short name (llama3.2)",
            param="model",
        )
    return name, "main"


def _serving(models: Registry, name: str) -> str:
    """Return the API name of the model that is served from ``name``; empty if there is none."""
    for served in models:
        model = served.settings.model
        model = hub_name(model) or model
        if name == model or model.startswith(f"{name}/"):
            return served.name
    return ""
