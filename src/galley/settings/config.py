"""One set of settings: defaults < galley.yaml < GALLEY_* variables < flags.

Every setting is declared once, here or in ``engine.py``; the CLI makes its flags and help groups
from the same fields.
"""

# ruff: noqa: RUF009  (setting is dataclasses.field, called the same way)

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from msgspec import Meta

from galley.errors import SettingsError
from galley.redact.spans import KINDS
from galley.settings.cache import CacheMode
from galley.settings.checks import check_server, parsed_adapter
from galley.settings.cluster import ClusterSettings
from galley.settings.engine import DEFAULT_ADAPTERS
from galley.settings.fields import setting
from galley.settings.named_models import NamedModel
from galley.settings.sources import from_environ, from_file
from galley.settings.values import Amount, Count, CountOrZero, Port, Seconds, SecondsOrZero

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
"""Log format of the server and of its engine processes, which write to the same stream."""

MOST_TIMEOUT = 86_400.0
"""Maximum timeout of a request in seconds, whatever the request or the settings specify."""

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, kw_only=True)
class Settings(ClusterSettings):
    """All settings of `galley serve`."""

    models: tuple[NamedModel, ...] = setting(
        (), "Server", "several models by name: NAME=MODEL NAME.SETTING=VALUE ...; in YAML a mapping"
    )
    host: str = setting("127.0.0.1", "Server", "address to bind", common=True)
    port: Port = setting(8000, "Server", "port to bind; 0 picks a free one", common=True)
    grpc_port: Port | None = setting(
        None,
        "Server",
        "port to bind for the Open Inference Protocol over gRPC, at the same address; 0 picks a free one; "
        "default: no gRPC; needs the extra grpc",
    )
    served_model_name: str = setting(
        "", "Server", "the model's name in the API; default: from its folder or hub id", common=True
    )
    models_dir: str = setting(
        "",
        "Server",
        "folder of models (folders, GGUF files) that are served by name and loaded on request",
    )
    model_repository: str = setting(
        "",
        "Server",
        "folder in Triton's layout, NAME/VERSION/model.onnx and NAME/config.pbtxt, whose models are served",
    )
    load_on_request: bool = setting(
        False, "Server", "load each model at its first request, instead of at startup"
    )
    max_loaded_models: Count = setting(
        3,
        "Server",
        "maximum number of models loaded on request; the least recently used one is unloaded",
    )
    model_keep_alive: float = setting(
        300.0,
        "Server",
        "seconds after its last request after which a model loaded on request is unloaded; below 0: never",
    )
    take_turns: bool = setting(
        True,
        "Server",
        "several models: engines take turns on the cores instead of competing for them",
    )
    adapter: tuple[str, ...] = setting(
        (),
        "Server",
        "LoRA adapter in PEFT's layout, NAME=FOLDER, or MODEL:NAME=FOLDER with several models; repeat for "
        "several",
        common=True,
    )
    speaker_models: str = setting(
        "",
        "Server",
        "folder with segmentation.onnx and encoder.onnx, which distinguish speakers for diarized_json; "
        "default: those of Galley's source tree",
    )
    speaker_encoder: str = setting(
        "",
        "Server",
        "speaker encoder in ONNX form, as WeSpeaker, 3D-Speaker or Resemblyzer have them; default: that of "
        "speaker_models",
    )
    speaker_distance: Annotated[float, Meta(ge=0, le=2)] = setting(
        0.0,
        "Server",
        "cosine distance from which voices are different speakers; 0: the encoder's usual one",
    )
    page: bool = setting(True, "Server", "serve a page for browsers at /")
    api_key: tuple[str, ...] = setting(
        (), "Security", "API key; repeat for several (GALLEY_API_KEY: comma-separated)", secret=True
    )
    api_key_file: str = setting(
        "",
        "Security",
        "file with one API key per line, or with tenants, hashed keys and limits in YAML; reread when it "
        "changes",
        common=True,
    )
    admin_key: tuple[str, ...] = setting(
        (),
        "Security",
        "key for administration (/admin, /v1/adapters, /v2/repository/models, /api/pull, ...) and "
        "/metrics, not for other routes; repeat for several",
        secret=True,
    )
    metrics_without_key: bool = setting(
        False, "Security", "allow /metrics to be read without a key"
    )
    allowed_host: tuple[str, ...] = setting(
        (),
        "Security",
        "additional Host header values to accept on a loopback address; repeat for several",
    )
    cors_origin: tuple[str, ...] = setting(
        (),
        "Security",
        "origin (https://app.example.com, or *) whose pages are allowed to use the API; repeat for several",
    )
    tls_cert: str = setting("", "Security", "certificate chain in PEM; turns on TLS")
    tls_key: str = setting("", "Security", "private key of tls_cert in PEM, unencrypted")
    audit_log: str = setting(
        "",
        "Security",
        "file with one line for each request, chained by hashes (galley audit verify); if it cannot be "
        "written, requests are refused with 503",
    )
    redact: tuple[str, ...] = setting(
        (),
        "Security",
        f"personal data to remove from all transcripts: all, or {', '.join(KINDS)}; repeat for several",
    )
    max_queue: CountOrZero = setting(256, "Limits", "maximum number of waiting sequences; then 429")
    request_timeout: Annotated[float, Meta(gt=0, le=MOST_TIMEOUT)] = setting(
        600.0,
        "Limits",
        "default deadline of text requests without x-request-timeout, in seconds after arrival; then 504",
    )
    max_body_bytes: Count = setting(8 * 1024 * 1024, "Limits", "maximum request body in bytes")
    max_audio_bytes: Count = setting(
        256 * 1024 * 1024, "Limits", "maximum request body with a recording, in bytes"
    )
    max_audio_seconds: Annotated[float, Meta(ge=1)] = setting(
        14_400.0, "Limits", "maximum length of a recording, in seconds; then 413"
    )
    text_seconds: Seconds = setting(
        10.0,
        "Limits",
        "time limit for the chat template, tokenization or grammar of a request, in seconds; then 400",
    )
    text_bytes: Count = setting(
        1024 * 1024 * 1024,
        "Limits",
        "memory limit for the chat template, tokenization or grammar of a request, in bytes; then 400",
    )
    audio_decode_seconds: Seconds = setting(
        10.0,
        "Limits",
        "CPU seconds to decode a recording, in addition to an allowance for its length; then 400",
    )
    audio_decode_bytes: Count = setting(
        256 * 1024 * 1024, "Limits", "memory limit for decoding a recording, in bytes; then 400"
    )
    max_upload_bytes: int | None = setting(
        None,
        "Limits",
        "maximum bytes of all unfinished recordings together; then 503; default: 4 x max_audio_bytes",
    )
    max_live_streams: Count = setting(
        32, "Limits", "maximum number of live audio streams; then 429"
    )
    live_idle_seconds: Count = setting(
        300,
        "Limits",
        "seconds after which a live stream without audio is finished and closed, and a WebSocket of "
        "/v1/responses without requests and answers",
    )
    responses_websocket_seconds: Count = setting(
        3600,
        "Limits",
        "seconds after which a WebSocket of /v1/responses takes no more requests and is closed; what has "
        "begun is finished",
    )
    stored_responses: CountOrZero = setting(
        1024,
        "Limits",
        "maximum number of /v1/responses kept in memory for previous_response_id, of all tenants "
        "together; the oldest are evicted; 0: none",
    )
    stored_response_bytes: Count = setting(
        64 * 1024 * 1024,
        "Limits",
        "maximum memory of stored responses and their conversations, in bytes",
    )
    stored_response_seconds: Count = setting(
        86_400, "Limits", "maximum age of stored responses, in seconds"
    )
    stored_responses_at: str = setting(
        "",
        "Limits",
        "URL of a Redis (redis://localhost:6379/0) that keeps stored responses for several servers; "
        "default: this server's memory; needs the extra redis",
        secret=True,
    )
    drain_seconds: SecondsOrZero = setting(
        30.0,
        "Limits",
        "seconds after SIGTERM for running requests to finish, and for packed weights to be stored",
    )
    stall_seconds: Seconds = setting(
        10.0, "Limits", "seconds without a sign of life of a busy engine after which /ready is 503"
    )
    step_timeout: SecondsOrZero = setting(
        600.0,
        "Limits",
        "seconds in one step after which an engine is killed and restarted; its requests continue; 0: "
        "never",
    )
    memory_limit_fraction: Annotated[float, Meta(gt=0, le=1)] = setting(
        0.95,
        "Limits",
        "share of the container's or machine's memory above which new requests get 503",
    )
    max_connections: Count | None = setting(
        None, "Limits", "maximum open connections; then 503; default: from the limit on open files"
    )
    max_connections_per_address: Count | None = setting(
        None,
        "Limits",
        "maximum open connections per address (IPv6: per /64); default: half of max_connections, except "
        "for loopback",
    )
    max_header_bytes: Annotated[int, Meta(ge=1024)] = setting(
        32 * 1024, "Limits", "maximum size of request line and headers in bytes; then 431"
    )
    max_headers: Count = setting(100, "Limits", "maximum number of headers of a request; then 431")
    max_unfinished_body_bytes: Count = setting(
        256 * 1024 * 1024, "Limits", "maximum bytes of all JSON bodies being received; then 503"
    )
    header_timeout: Seconds = setting(
        10.0, "Limits", "seconds to receive a request's headers, from its first byte; then 408"
    )
    body_timeout: Seconds = setting(
        10.0, "Limits", "seconds for which a body may stall, or lag behind min_body_rate; then 408"
    )
    min_body_rate: Count = setting(
        1024, "Limits", "minimum average rate of a body in bytes per second"
    )
    keep_alive_timeout: Seconds = setting(
        30.0, "Limits", "seconds for which an idle connection stays open"
    )
    send_timeout: Seconds = setting(
        30.0,
        "Limits",
        "seconds for which a client may stop reading its answer; then the connection is closed",
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "Server", "minimum severity of logged messages", common=True
    )
    metrics_vllm_names: bool = setting(
        False,
        "Server",
        "add gauges by vLLM's names to /metrics, for endpoint pickers of Kubernetes gateways",
    )
    log_format: Literal["text", "json"] = setting(
        "text", "Server", "log format: text, or one JSON object per line"
    )
    log_prompts: bool = setting(
        False, "Server", "write prompts, and the paths of unknown routes, to the access log"
    )
    price_per_hour: Amount | None = setting(
        None,
        "Server",
        "price of the machine per hour in any currency; adds costs to responses and metrics",
    )
    otlp_endpoint: str = setting(
        "",
        "Server",
        "URL of an OpenTelemetry collector for traces over HTTP (http://localhost:4318); needs the "
        "extra otel",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_server(self)
        for model in self.models:
            self.of(model)

    @property
    def adapter_paths(self) -> dict[str, str]:
        """Adapters of a single model's settings: name -> folder."""
        return {name: folder for _, name, folder in map(parsed_adapter, self.adapter)}

    def each_model(self) -> list[Self]:
        """Return the settings of each served model: those given for that model, else the common ones.

        A common ``kv_memory_fraction`` is divided by the number of models that may be loaded at a time,
        because they share the memory.
        """
        return [self.of(model) for model in self.models] or [self._with_room()]

    def _with_room(self) -> Self:
        """Return the settings with enough adapter slots for the model's adapters."""
        if not self.adapter or self.max_adapters is not None:
            return self
        return dataclasses.replace(self, max_adapters=DEFAULT_ADAPTERS)

    @property
    def most_loaded(self) -> int:
        """Maximum number of models that may be in memory at a time."""
        if not self.models:
            return 1
        on_request = sum(self.load_on_request or model.on_request for model in self.models)
        return len(self.models) - on_request + min(on_request, self.max_loaded_models)

    @property
    def cache_modes(self) -> tuple[CacheMode, ...]:
        """The modes of the response cache that models, tenants and requests of the server may have."""
        models = (self, *self.each_model())
        if not self.response_cache_store and all(own.response_cache == "off" for own in models):
            return ("off",)
        return ("off", "exact", "semantic") if self.semantic_cache_model else ("off", "exact")

    def of(self, model: NamedModel) -> Self:
        """Return the settings of one of several models. Raises SettingsError if they cannot be used."""
        share = {
            "kv_memory_fraction": self.kv_memory_fraction / self.most_loaded,
            "load_on_request": self.load_on_request or model.on_request,
        }
        own = {**share, **model.own}
        try:
            adapters = (parsed_adapter(text) for text in self.adapter)
            own["adapter"] = tuple(
                f"{n}={path}" for name, n, path in adapters if name == model.name
            )
            alone = dataclasses.replace(self, models=(), served_model_name=model.name, **own)
            return alone._with_room()
        except SettingsError as error:
            raise SettingsError(f"models: {model.name}: {error}") from None

    @classmethod
    def load(
        cls,
        flags: Mapping[str, Any],
        *,
        file: Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """Merge the settings of all sources.

        Args:
            flags: setting name -> value; only those given on the command line.
            file: the YAML file; default: ``galley.yaml`` in the working folder, if there is one.
            environ: default ``os.environ``; only ``GALLEY_<SETTING>`` names are read.

        Raises:
            SettingsError: an unknown name or a value of the wrong type; the message names its source.
        """
        values: dict[str, Any] = {}
        values.update(from_file(cls, file))
        values.update(from_environ(cls, os.environ if environ is None else environ))
        values.update(flags)
        return cls(**values)
