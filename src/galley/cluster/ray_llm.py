"""Galley as the server of ``ray.serve.llm``: ``server_cls="galley.cluster.ray_llm:GalleyServer"``.

Importing ``ray.serve.llm`` needs vLLM or SGLang installed, whatever serves the model; this module does not
import it. A replica supervises a ``galley serve`` on its node and passes requests on to it, so that its
answers are those of Galley's own API. Ray's ingress collects tokens for 50 ms before it passes them on;
clusters of :func:`galley.cluster.app` do not.
"""

import asyncio
import copy
import importlib
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

import aiohttp

from galley.cluster.config import underscored
from galley.cluster.on_ray.serve_process import ServeProcess
from galley.errors import EngineFailed, SettingsError
from galley.settings.config import Settings
from galley.settings.named_models import convert

_PORTS: Final = (18_000, 18_499)
_DRAIN_SECONDS: Final = 60.0
_READY_POLL_SECONDS: Final = 0.2
_OF_SERVER: Final = ("model", "served_model_name", "host", "port", "drain_seconds")
"""Settings of ``galley serve`` that this server determines."""

_MODELS: Final = "ray.llm._internal.serve.core.configs.openai_api_models"
"""Ray's module of answers, which exists only where vLLM or SGLang is installed."""


class GalleyServer:
    """A server with the methods of Ray's ``LLMServer`` and ``LLMEngine``.

    ``engine_kwargs`` of the configuration are settings of ``galley serve``. Methods are async generators:
    of texts in the form of server-sent events for streams, else of one answer or error.
    """

    async def __init__(self, llm_config: Any, **_: Any) -> None:  # type: ignore[misc]  # Ray awaits it
        """Start the server and wait until its model is ready.

        Raises:
            SettingsError: ``engine_kwargs`` cannot be used.
            EngineFailed: the server does not start.
        """
        self._settings = settings_of(llm_config)
        self._llm_config = llm_config
        self._requests = 0
        self._process = ServeProcess("127.0.0.1", _PORTS, drain_seconds=_DRAIN_SECONDS)
        self._session: aiohttp.ClientSession | None = None
        self._supervising: asyncio.Task[None] | None = None
        await self.start()

    @classmethod
    def get_deployment_options(cls, llm_config: Any) -> dict[str, Any]:
        """Return the options of the deployment in Ray Serve."""
        options: dict[str, Any] = copy.deepcopy(dict(llm_config.deployment_config or {}))
        actor = options.setdefault("ray_actor_options", {})
        kwargs = underscored(dict(llm_config.engine_kwargs or {}))
        actor.setdefault("num_cpus", kwargs.get("threads") or 1)
        if kwargs.get("device", "cpu") != "cpu":
            actor.setdefault("num_gpus", 1)
        router = {"request_router_class": "galley.cluster.on_ray.router.WaitRouter"}
        options.setdefault(
            "request_router_config", {**router, "request_routing_stats_period_s": 1.0}
        )
        options.setdefault("graceful_shutdown_timeout_s", _DRAIN_SECONDS + 30)
        return options

    async def start(self) -> None:
        """Start the server, unless it runs, and wait until it is ready. Raises EngineFailed."""
        if self._supervising is not None:
            return
        await self._process.configure(self._settings)
        self._session = _new_session(self._process.key)
        self._supervising = asyncio.create_task(self._process.supervise())
        while not await self._is_ready():
            if self._process.failed_starts:
                await self.shutdown()
                raise EngineFailed(f"galley serve does not start: {self._process.last_words}")
            await asyncio.sleep(_READY_POLL_SECONDS)

    def routing_stats(self) -> dict[str, Any]:
        """Return what the server has to do, for request routers."""
        return {"requests": self._requests}

    def record_routing_stats(self) -> dict[str, Any]:
        """Return :meth:`routing_stats`, as Ray Serve calls it."""
        return self.routing_stats()

    async def chat(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        """Answer a chat completion."""
        async for one in self._answers("/v1/chat/completions", request, "ChatCompletionResponse"):
            yield one

    async def completions(
        self, request: Any, raw_request_info: Any = None
    ) -> AsyncGenerator[Any, None]:
        """Answer a text completion."""
        async for one in self._answers("/v1/completions", request, "CompletionResponse"):
            yield one

    async def embeddings(
        self, request: Any, raw_request_info: Any = None
    ) -> AsyncGenerator[Any, None]:
        """Embed texts."""
        async for one in self._answers("/v1/embeddings", request, "EmbeddingResponse"):
            yield one

    async def transcriptions(
        self, request: Any, raw_request_info: Any = None
    ) -> AsyncGenerator[Any, None]:
        """Transcribe a recording."""
        async for one in self._answers(
            "/v1/audio/transcriptions", request, "TranscriptionResponse"
        ):
            yield one

    async def score(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        """Score pairs of texts."""
        async for one in self._answers("/v1/score", request, "ScoreResponse"):
            yield one

    async def tokenize(
        self, request: Any, raw_request_info: Any = None
    ) -> AsyncGenerator[Any, None]:
        """Tokenize a text or a conversation."""
        async for one in self._answers("/tokenize", request, "TokenizeResponse"):
            yield one

    async def detokenize(
        self, request: Any, raw_request_info: Any = None
    ) -> AsyncGenerator[Any, None]:
        """Return the text of token ids."""
        async for one in self._answers("/detokenize", request, "DetokenizeResponse"):
            yield one

    async def resolve_lora(self, lora_model: Any) -> None:
        """Load the LoRA adapter in the folder ``lora_model.local_path``, unless it is loaded.

        Raises:
            EngineFailed: the server refuses it.
        """
        name = str(lora_model.model_id).rpartition("/")[2].rpartition(":")[2]
        body = {"name": name, "path": lora_model.local_path}
        status, answer = await self._post("/v1/adapters", body)
        if status not in (200, 409):
            raise EngineFailed(f"adapter {name}: {_message(answer)}")

    async def reset_prefix_cache(self) -> None:
        """Empty the prefix cache: a new engine takes over, and running requests are completed.

        Raises:
            EngineFailed: no new engine could be started.
        """
        name = self._settings["served_model_name"]
        status, answer = await self._post("/admin/reload", {"model": name})
        if status != 200:
            raise EngineFailed(_message(answer))

    async def check_health(self) -> None:
        """Raise EngineFailed if the server does not work."""
        session = self._open()
        try:
            async with session.get(f"{self._process.own_url}/health") as answer:
                if answer.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        raise EngineFailed(f"galley serve does not answer: {self._process.last_words}")

    async def llm_config(self) -> Any:
        """Return the configuration that the server was started with."""
        return self._llm_config

    async def shutdown(self) -> None:
        """End the server after its requests."""
        if self._supervising is not None:
            self._supervising.cancel()
        await self._process.close()
        if self._session is not None:
            await self._session.close()

    async def __del__(self) -> None:
        """End the server; Ray Serve calls it once."""
        await self.shutdown()

    async def _is_ready(self) -> bool:
        if not self._process.url:
            return False
        try:
            async with self._open().get(f"{self._process.own_url}/ready") as answer:
                return bool(answer.status == 200)
        except aiohttp.ClientError:
            return False

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise EngineFailed("the server has not been started")
        return self._session

    async def _post(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        async with self._open().post(f"{self._process.own_url}{path}", json=body) as answer:
            return answer.status, await answer.json(content_type=None)

    async def _answers(self, path: str, request: Any, kind: str) -> AsyncGenerator[Any, None]:
        """Yield events, or the answer as ``kind`` of Ray's, if that can be imported, else as a dict."""
        self._requests += 1
        try:
            async for one in self._passed_on(path, request, kind):
                yield one
        finally:
            self._requests -= 1

    async def _passed_on(self, path: str, request: Any, kind: str) -> AsyncGenerator[Any, None]:
        sent = _form(request) if path.endswith("transcriptions") else {"json": _fields(request)}
        async with self._open().post(f"{self._process.own_url}{path}", **sent) as answer:
            if answer.status != 200:
                yield _made("ErrorResponse", await answer.json(content_type=None))
            elif "text/event-stream" in answer.headers.get("content-type", ""):
                async for event in _events(answer.content):
                    yield event
            else:
                yield _made(kind, await answer.json(content_type=None))


def settings_of(llm_config: Any) -> dict[str, Any]:
    """Return the settings of ``galley serve`` for a configuration of ``ray.serve.llm``.

    Raises:
        SettingsError: ``engine_kwargs`` cannot be used.
    """
    loading = llm_config.model_loading_config
    name = _get(loading, "model_id")
    source = _get(loading, "model_source") or name
    if not isinstance(source, str):
        raise SettingsError("model_source must be a folder, a GGUF file or a hub id")
    given = underscored(dict(llm_config.engine_kwargs or {}))
    if wrong := [one for one in _OF_SERVER if one in given]:
        raise SettingsError(
            f"engine_kwargs: Galley's server for Ray determines {', '.join(wrong)}; leave it out"
        )
    settings = {**given, "model": source, "served_model_name": name}
    Settings(**convert(Settings, settings, source="engine_kwargs"))
    return settings


def _get(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def _fields(request: Any) -> dict[str, Any]:
    """Return the fields that were given of a request: a pydantic model, or a mapping."""
    if isinstance(request, Mapping):
        return dict(request)
    fields: dict[str, Any] = request.model_dump(mode="json", exclude_unset=True)
    fields.pop("request_id", None)  # Ray sets it; Galley has ids of its own
    return fields


def _form(request: Any) -> dict[str, Any]:
    """Return a recording and its fields as a form."""
    form = aiohttp.FormData()
    fields = (
        dict(request) if isinstance(request, Mapping) else request.model_dump(exclude_unset=True)
    )
    file = fields.pop("file")
    content = file if isinstance(file, bytes) else file.file.read()
    form.add_field("file", content, filename=getattr(file, "filename", None) or "audio")
    fields.pop("request_id", None)
    for name, value in fields.items():
        for one in value if isinstance(value, list | tuple) else [value]:
            form.add_field(name, one if isinstance(one, str) else json.dumps(one))
    return {"data": form}


def _new_session(key: str) -> aiohttp.ClientSession:
    # The server limits what it admits. With a limit here, checks of its health would wait for streams.
    return aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {key}"},
        timeout=aiohttp.ClientTimeout(total=None),
        connector=aiohttp.TCPConnector(limit=0),
    )


async def _events(content: aiohttp.StreamReader) -> AsyncGenerator[str, None]:
    """Yield each event with the empty line after it. (Reading lines would limit their length.)"""
    received = bytearray()
    async for chunk in content.iter_any():
        searched = max(0, len(received) - 1)
        received += chunk
        while (end := received.find(b"\n\n", searched)) >= 0:
            yield received[: end + 2].decode()
            del received[: end + 2]
            searched = 0


def _made(kind: str, answer: Any) -> Any:
    """Return an answer as the class of Ray's with that name, where it can be imported."""
    try:
        module = importlib.import_module(_MODELS)
    except ImportError:
        return answer
    return getattr(module, kind)(**answer)


def _message(answer: Any) -> str:
    error = answer.get("error", answer) if isinstance(answer, Mapping) else answer
    return str(error.get("message", error) if isinstance(error, Mapping) else error)
