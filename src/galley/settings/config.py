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
from galley.settings.engine import (
    DEFAULT_ADAPTERS,
    EngineSettings,
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

_URL = re.compile(r"https?://[^\s/]+(/\S*)?")

# Kubernetes sets GALLEY_PORT=tcp://10.0.0.1:8000 in every pod of a namespace that has a Service "galley".
_SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://")


@dataclass(frozen=True, kw_only=True)
class Settings(EngineSettings):
    """All settings of `galley serve`."""

    models: tuple[NamedModel, ...] = setting(
        (), "Server", "several models by name: NAME=MODEL NAME.SETTING=VALUE ..., in YAML a mapping"
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
        "", "Server", "the model's name in the API; default: the folder's or hub id's"
    )
    models_dir: str = setting(
        "",
        "Server",
        "folder whose models (folders, GGUF files) are served by their names and loaded on request",
    )
    model_repository: str = setting(
        "",
        "Server",
        "folder in Triton's layout, NAME/VERSION/model.onnx and NAME/config.pbtxt, whose models are served",
    )
    load_on_request: bool = setting(
        False, "Server", "load each model with the first request for it, instead of at the start"
    )
    max_loaded_models: Count = setting(
        3,
        "Server",
        "models loaded on request that may be in memory at a time; the least recently used one makes room",
    )
    model_keep_alive: float = setting(
        300.0,
        "Server",
        "seconds after its last request until a model loaded on request is unloaded; below 0: never",
    )
    take_turns: bool = setting(
        True, "Server", "several models: engines take turns on the cores; else the kernel decides"
    )
    adapter: tuple[str, ...] = setting(
        (),
        "Server",
        "LoRA adapter in PEFT's layout, NAME=FOLDER, or MODEL:NAME=FOLDER with several models; repeat for "
        "several",
    )
    page: bool = setting(True, "Server", "serve a page for browsers at /")
    api_key: tuple[str, ...] = setting(
        (), "Security", "API key; repeat for several (GALLEY_API_KEY: comma-separated)", secret=True
    )
    api_key_file: str = setting(
        "",
        "Security",
        "file with one API key a line, or with tenants, hashed keys and limits in YAML; read again when "
        "it changes",
    )
    admin_key: tuple[str, ...] = setting(
        (),
        "Security",
        "key of the /admin and /v1/adapters routes, none of the rest of the API; repeat for several",
        secret=True,
    )
    metrics_without_key: bool = setting(
        False, "Security", "let a Prometheus without a key read /metrics"
    )
    allowed_host: tuple[str, ...] = setting(
        (), "Security", "further Host header values accepted on a loopback bind; repeat for several"
    )
    cors_origin: tuple[str, ...] = setting(
        (),
        "Security",
        "origin (https://app.example.com, or *) whose pages may use the API; repeat for several",
    )
    tls_cert: str = setting("", "Security", "certificate chain in PEM; the server then speaks TLS")
    tls_key: str = setting("", "Security", "private key of tls_cert in PEM, not encrypted")
    max_queue: CountOrZero = setting(
        256, "Limits", "sequences that may wait beyond the running ones; then 429"
    )
    request_timeout: Annotated[float, Meta(gt=0, le=MOST_TIMEOUT)] = setting(
        600.0,
        "Limits",
        "seconds for a text, from the request's arrival, if its x-request-timeout says no other; then 504",
    )
    max_body_bytes: Count = setting(8 * 1024 * 1024, "Limits", "largest request body")
    max_audio_bytes: Count = setting(
        256 * 1024 * 1024, "Limits", "largest request body with a recording"
    )
    max_audio_seconds: Annotated[float, Meta(ge=1)] = setting(
        14_400.0, "Limits", "longest recording, in seconds; then 413"
    )
    text_seconds: Seconds = setting(
        10.0,
        "Limits",
        "longest that the chat template, tokenising or grammar of a request may take, in seconds; then 400",
    )
    text_bytes: Count = setting(
        1024 * 1024 * 1024,
        "Limits",
        "memory that the chat template, tokenising or grammar of a request may take; then 400",
    )
    audio_decode_seconds: Seconds = setting(
        10.0,
        "Limits",
        "CPU seconds that a recording may take to decode, beyond what its length explains; then 400",
    )
    audio_decode_bytes: Count = setting(
        256 * 1024 * 1024, "Limits", "memory that a recording may take to decode; then 400"
    )
    max_upload_bytes: int | None = setting(
        None,
        "Limits",
        "bytes that all unfinished recordings may hold; then 503; default: 4 x max_audio_bytes",
    )
    max_live_streams: Count = setting(32, "Limits", "live audio streams at a time; then 429")
    live_idle_seconds: Count = setting(
        300, "Limits", "seconds after which a live stream that sends nothing is finished and closed"
    )
    stored_responses: CountOrZero = setting(
        1024,
        "Limits",
        "answers of /v1/responses kept in memory for previous_response_id, of all tenants together; the "
        "oldest make room; 0: none",
    )
    stored_response_bytes: Count = setting(
        64 * 1024 * 1024, "Limits", "memory that stored responses and their conversations may take"
    )
    stored_response_seconds: Count = setting(
        86_400, "Limits", "how long a response is stored at most, in seconds"
    )
    drain_seconds: SecondsOrZero = setting(
        30.0, "Limits", "after SIGTERM, how long running requests may take to finish"
    )
    stall_seconds: Seconds = setting(
        10.0, "Limits", "seconds of silence of an engine that has work, after which /ready is 503"
    )
    step_timeout: SecondsOrZero = setting(
        600.0,
        "Limits",
        "seconds after which an engine hangs in a step and is killed; its requests go on; 0: never",
    )
    memory_limit_fraction: Annotated[float, Meta(gt=0, le=1)] = setting(
        0.95,
        "Limits",
        "share of the container's memory, or the machine's, beyond which new requests get 503",
    )
    max_connections: Count | None = setting(
        None, "Limits", "open connections; then 503; default: what the limit on open files leaves"
    )
    max_connections_per_address: Count | None = setting(
        None,
        "Limits",
        "open connections of one address (IPv6: one /64); default: half of max_connections, loopback "
        "exempt",
    )
    max_header_bytes: Annotated[int, Meta(ge=1024)] = setting(
        32 * 1024, "Limits", "request line and headers; then 431"
    )
    max_headers: Count = setting(100, "Limits", "headers of one request; then 431")
    max_unfinished_body_bytes: Count = setting(
        256 * 1024 * 1024, "Limits", "JSON bodies still on their way, all together; then 503"
    )
    header_timeout: Seconds = setting(
        10.0, "Limits", "seconds a request's headers may take from its first byte; then 408"
    )
    body_timeout: Seconds = setting(
        10.0, "Limits", "seconds a body may stand still, or lag behind min_body_rate; then 408"
    )
    min_body_rate: Count = setting(
        1024, "Limits", "bytes per second that a body must bring on average"
    )
    keep_alive_timeout: Seconds = setting(
        30.0, "Limits", "seconds a connection may stay open between two requests"
    )
    send_timeout: Seconds = setting(
        30.0, "Limits", "seconds a client may take nothing of its answer; then it is cut off"
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "Server", "least severe messages logged"
    )
    log_format: Literal["text", "json"] = setting(
        "text", "Server", "form of the log: lines for people, or a JSON object a line"
    )
    log_prompts: bool = setting(
        False, "Server", "write prompts and the paths of unknown routes to the access log"
    )
    price_per_hour: Amount | None = setting(
        None,
        "Server",
        "what the machine costs in an hour, in any currency: answers then tell a cost",
    )
    otlp_endpoint: str = setting(
        "",
        "Server",
        "OpenTelemetry collector that gets traces over HTTP (http://localhost:4318); needs the extra otel",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_observation()
        self._check_origins()
        if self.max_upload_bytes is not None and self.max_upload_bytes < self.max_audio_bytes:
            raise SettingsError(
                f"max_upload_bytes ({self.max_upload_bytes}) must be at least max_audio_bytes "
                f"({self.max_audio_bytes}): a recording of that size could never come"
            )
        for name in ("api_key", "admin_key"):
            if any(not key.strip() for key in getattr(self, name)):
                raise SettingsError(f"{name}: one of the keys is empty; anybody could guess it")
        if self.models and self.served_model_name:
            names = ", ".join(model.name for model in self.models)
            raise SettingsError(
                f"served_model_name is {self.served_model_name!r}, but the models have names: {names}"
            )
        self._check_adapters()
        for model in self.models:
            self.of(model)

    def _check_observation(self) -> None:
        if math.isnan(self.model_keep_alive):
            raise SettingsError("model_keep_alive must be a number of seconds, got nan")
        if self.otlp_endpoint and not _URL.fullmatch(self.otlp_endpoint):
            raise SettingsError(
                f"otlp_endpoint: {self.otlp_endpoint!r} is no URL; one is like http://localhost:4318"
            )

    def _check_origins(self) -> None:
        for origin in self.cors_origin:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise SettingsError(
                    f"cors_origin: {origin!r} is no origin; one is like https://app.example.com:8443, "
                    "without a path, or * for all"
                )

    def _check_adapters(self) -> None:
        names = [model.name for model in self.models]
        seen = set()
        for text in self.adapter:
            model, name, folder = _adapter(text)
            if not folder or not re.match(ADAPTER_NAME, name):
                raise SettingsError(
                    f"adapter: {text!r} is not NAME=FOLDER (letters, digits and . _ - make a name)"
                )
            if (model, name) in seen:
                raise SettingsError(f"adapter: two have the name {name!r}")
            seen.add((model, name))
            if names and model not in names:
                raise SettingsError(
                    f"adapter: {text!r} does not say of which model: MODEL:{name}={folder}, with one of "
                    f"{', '.join(names)}"
                )
            if not names and model:
                raise SettingsError(f"adapter: there is one model: {name}={folder} is enough")
        if self.adapter and self.max_adapters == 0:
            raise SettingsError("max_adapters is 0, but an adapter is given: leave one out")

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
        raise SettingsError(f"{path} must hold a mapping of setting names to values")
    return convert(cls, {str(k).replace("-", "_"): v for k, v in content.items()}, source=str(path))


def _from_environ(cls: type[Settings], environ: Mapping[str, str]) -> dict[str, Any]:
    known = {f"GALLEY_{name.upper()}": name for name in field_names(cls)}
    given = {
        variable: text
        for variable, text in environ.items()
        if variable in known and not _SERVICE_LINK.match(text)
    }
    by_field(cls, {known[variable]: text for variable, text in given.items()}, source="variables")
    found: dict[str, Any] = {}
    for variable, text in given.items():
        found |= convert(cls, {known[variable]: text}, source=variable)
    return found
