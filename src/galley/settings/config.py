"""One set of settings: defaults < galley.yaml < GALLEY_* variables < flags.

Every setting is declared once, here or in ``engine.py``; the CLI makes its flags and help groups
from the same fields.
"""

# ruff: noqa: RUF009  (setting is dataclasses.field, called the same way)

import dataclasses
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from msgspec import Meta

from galley.errors import SettingsError
from galley.redact.spans import KINDS
from galley.settings.cache import CacheMode
from galley.settings.cluster import ClusterSettings
from galley.settings.engine import (
    DEFAULT_ADAPTERS,
    by_field,
    field_names,
    setting,
)
from galley.settings.named_models import NamedModel, convert
from galley.settings.values import Amount, Count, CountOrZero, Port, Seconds, SecondsOrZero

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
"""Log format of the server and of its engine processes, which write to the same stream."""

MOST_TIMEOUT = 86_400.0
"""Maximum timeout of a request in seconds, whatever the request or the settings specify."""

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})

ADAPTER_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*\Z"
"""Pattern of adapter names: no colon, which separates them from the model's name."""

_ORIGIN = re.compile(r"https?://([\w.-]+|\[[\da-fA-F:.]+\])(:\d{1,5})?", re.ASCII)

_REDIS = re.compile(r"(rediss?|unix)://")

_URL = re.compile(r"https?://[^\s/]+(/\S*)?")

# Kubernetes sets GALLEY_PORT=tcp://10.0.0.1:8000 in every pod of a namespace that has a Service "galley".
_SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://")


@dataclass(frozen=True, kw_only=True)
class Settings(ClusterSettings):
    """All settings of `galley serve`."""

    models: tuple[NamedModel, ...] = setting(
        (), "Server", "several models by name: NAME=MODEL NAME.SETTING=VALUE ...; in YAML a mapping"
    )
    host: str = setting("127.0.0.1", "Server", "address to bind")
    port: Port = setting(8000, "Server", "port to bind; 0 picks a free one")
    grpc_port: Port | None = setting(
        None,
        "Server",
        "port to bind for the Open Inference Protocol over gRPC, at the same address; 0 picks a free one; "
        "default: no gRPC; needs the extra grpc",
    )
    served_model_name: str = setting(
        "", "Server", "the model's name in the API; default: from its folder or hub id"
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
    )
    speaker_models: str = setting(
        "",
        "Server",
        "folder with segmentation.onnx and encoder.onnx, which tell speakers apart for diarized_json; "
        "default: those of Galley's source tree",
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
        "time limit for the chat template, tokenisation or grammar of a request, in seconds; then 400",
    )
    text_bytes: Count = setting(
        1024 * 1024 * 1024,
        "Limits",
        "memory limit for the chat template, tokenisation or grammar of a request, in bytes; then 400",
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
        300, "Limits", "seconds without audio after which a live stream is finished and closed"
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
        30.0, "Limits", "seconds for running requests to finish after SIGTERM"
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
        "info", "Server", "minimum severity of logged messages"
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
        self._check_observation()
        self._check_origins()
        self._check_redact()
        if self.stored_responses_at and not _REDIS.match(self.stored_responses_at):
            raise SettingsError(
                "stored_responses_at must begin with redis://, rediss:// or unix://, such as "
                "redis://localhost:6379/0"
            )
        if self.record_texts and not self.record:
            raise SettingsError(
                f"record_texts is {self.record_texts!r}, but there is no record; set record to its folder"
            )
        if self.max_upload_bytes is not None and self.max_upload_bytes < self.max_audio_bytes:
            raise SettingsError(
                f"max_upload_bytes ({self.max_upload_bytes}) must be at least max_audio_bytes "
                f"({self.max_audio_bytes}), or no recording of that size could be sent"
            )
        for name in ("api_key", "admin_key"):
            if any(not key.strip() for key in getattr(self, name)):
                raise SettingsError(f"{name}: one of the keys is empty")
        if self.models and self.served_model_name:
            names = ", ".join(model.name for model in self.models)
            raise SettingsError(
                f"served_model_name is {self.served_model_name!r}, but the models have names: {names}"
            )
        self._check_adapters()
        self._check_replicas()
        for model in self.models:
            self.of(model)

    def _check_replicas(self) -> None:
        if not (self.replicas or self.replica or self.replica_file):
            raise SettingsError(
                "replicas is 0, so at least one replica on another machine is needed: --replica HOST:PORT, "
                "or --replica-file"
            )
        if self.replica and self.models:
            raise SettingsError(
                "replica: a server with replicas on other machines serves one model"
            )
        several = self.most_loaded > 1 or bool(self.model_repository or self.models_dir)
        if self.kv_events and several:
            raise SettingsError(
                "kv_events is for a server of one model; serve each with its own server"
            )
        if self.replicas > 1 and several and self.take_turns:
            raise SettingsError(
                f"replicas is {self.replicas}, but several models take turns on the cores, and so would "
                "the replicas of each; set take_turns to false, or serve each model with its own server"
            )

    def _check_observation(self) -> None:
        if math.isnan(self.model_keep_alive):
            raise SettingsError("model_keep_alive must be a number of seconds, got nan")
        if self.otlp_endpoint and not _URL.fullmatch(self.otlp_endpoint):
            raise SettingsError(
                f"otlp_endpoint: {self.otlp_endpoint!r} is not a URL such as http://localhost:4318"
            )

    def _check_redact(self) -> None:
        for kind in self.redact:
            if kind not in ("all", *KINDS):
                raise SettingsError(
                    f"redact: {kind!r} is unknown; supported: all, {', '.join(KINDS)}"
                )

    def _check_origins(self) -> None:
        for origin in self.cors_origin:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise SettingsError(
                    f"cors_origin: {origin!r} is not an origin such as "
                    "https://app.example.com:8443 (without a path), or * for all"
                )

    def _check_adapters(self) -> None:
        names = [model.name for model in self.models]
        seen = set()
        for text in self.adapter:
            model, name, folder = _adapter(text)
            if not folder or not re.match(ADAPTER_NAME, name):
                raise SettingsError(
                    f"adapter: {text!r} is not NAME=FOLDER (names have letters, digits and . _ -)"
                )
            if (model, name) in seen:
                raise SettingsError(f"adapter: two adapters have the name {name!r}")
            seen.add((model, name))
            if names and model not in names:
                raise SettingsError(
                    f"adapter: {text!r} lacks the model; give MODEL:{name}={folder} with one of "
                    f"{', '.join(names)}"
                )
            if not names and model:
                raise SettingsError(f"adapter: there is only one model; give {name}={folder}")
        if self.adapter and self.max_adapters == 0:
            raise SettingsError("max_adapters is 0, but an adapter is given; leave out one of them")

    @property
    def adapter_paths(self) -> dict[str, str]:
        """Adapters of a single model's settings: name -> folder."""
        return {name: folder for _, name, folder in map(_adapter, self.adapter)}

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
            adapters = (_adapter(text) for text in self.adapter)
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
        values.update(_from_file(cls, file))
        values.update(_from_environ(cls, os.environ if environ is None else environ))
        values.update(flags)
        return cls(**values)


def _adapter(text: str) -> tuple[str, str, str]:
    """Return model, name and folder of ``MODEL:NAME=FOLDER``; parts that are left out are empty."""
    left, _, folder = text.partition("=")
    model, _, name = left.rpartition(":")
    return model, name, folder


def _from_file(cls: type[Settings], file: Path | None) -> dict[str, Any]:
    path = Path("galley.yaml") if file is None else file
    if not path.is_file():
        if file is not None:
            raise SettingsError(f"settings file {path} does not exist")
        return {}
    from galley.settings.file import read_settings_file

    content = read_settings_file(path)
    if not isinstance(content, dict):
        raise SettingsError(f"{path} must contain a mapping of setting names to values")
    return convert(cls, {str(k).replace("-", "_"): v for k, v in content.items()}, source=str(path))


def variables(cls: type[Settings]) -> dict[str, str]:
    """Return a mapping from the environment variable of each setting to a name of the setting."""
    return {f"GALLEY_{name.upper()}": name for name in field_names(cls)}


def _from_environ(cls: type[Settings], environ: Mapping[str, str]) -> dict[str, Any]:
    known = variables(cls)
    given = {
        variable: text
        for variable, text in environ.items()
        if variable in known and not (variable.endswith("PORT") and _SERVICE_LINK.match(text))
    }
    by_field(cls, {known[variable]: text for variable, text in given.items()}, source="variables")
    found: dict[str, Any] = {}
    for variable, text in given.items():
        found |= convert(cls, {known[variable]: text}, source=variable)
    return found
