"""One set of settings: defaults < galley.yaml < GALLEY_* variables < flags.

Every setting is declared once, below; the CLI makes its flags and help groups from the same fields.
"""

# ruff: noqa: RUF009  (_setting is dataclasses.field, called the same way)

import dataclasses
import math
import os
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from galley.coerce import coerce
from galley.errors import SettingsError
from galley.quality_gate import QualityGate

T = TypeVar("T")

DType = Literal["auto", "float32", "bfloat16"]
ExecutorName = Literal["auto", "cpu", "reference"]
Quantize = Literal["auto", "float32", "bf16", "f16", "int8", "int4"]
Activations = Literal["auto", "float32", "bfloat16", "int8"]
KVType = Literal["auto", "float32", "bfloat16", "int8"]
ToolParser = Literal[
    "auto",
    "off",
    "harmony",
    "deepseek",
    "mistral",
    "qwen_xml",
    "phi",
    "granite",
    "hermes",
    "pythonic",
    "llama",
]
ReasoningParser = Literal["auto", "off", "think", "mistral", "granite"]
Batching = Literal["continuous", "dynamic", "static"]
Speculation = Literal["auto", "off", "prompt", "recent", "grammar", "draft"]

_GUESSED_ROWS = 32
"""A few running sequences may have so many rows together, guesses included."""

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
"""Log format of the server and of its engine processes, which write to the same stream."""

MOST_THREADS = 1024

MOST_TIMEOUT = 86_400.0
"""Seconds that a request may take at most, whatever it or the settings say."""

NATIVE_ENGINE = "native"
"""Name of Galley's own engine; :mod:`galley.service.protocol` finds others by name."""

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
_ORIGIN = re.compile(r"https?://([\w.-]+|\[[\da-fA-F:.]+\])(:\d{1,5})?", re.ASCII)
_URL = re.compile(r"https?://[^\s/]+(/\S*)?")
# Kubernetes sets GALLEY_PORT=tcp://10.0.0.1:8000 in every pod beside a Service named "galley".
_SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://")


def _setting(default: T, group: str, help: str, *, secret: bool = False) -> T:
    # A secret stays out of the repr, which ends up in logs and tracebacks.
    return field(default=default, repr=not secret, metadata={"group": group, "help": help})


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Settings of one engine, in the server's process and in its own. Sizes are in tokens."""

    model: str = _setting(
        "",
        "Model",
        "folder, GGUF file, hub id, short name or bundled model (galley-demo, galley-demo-speech)",
    )
    revision: str = _setting("main", "Model", "branch, tag or commit of a hub id")
    dtype: DType = _setting(
        "auto",
        "Model",
        "type for quantize, kv_dtype and activations where these are auto; auto: the type of the "
        "checkpoint's matrices",
    )
    quantize: Quantize = _setting(
        "auto",
        "Model",
        "type of the weights; auto: as dtype, but f16 if that is auto and the checkpoint's matrices are "
        "float16",
    )
    activations: Activations = _setting(
        "auto",
        "Model",
        "input type of linear layers; auto: int8 for integer weights and bfloat16 for bf16 weights, the "
        "latter with AMX or AVX-512 BF16 (executor cpu), else float32; as dtype (executor reference)",
    )
    kv_dtype: KVType = _setting(
        "auto",
        "Model",
        "type of the KV cache (int8: executor cpu only); auto: as dtype, but bfloat16 if weights are "
        "quantized and nothing asks for float32, and int8 if a speech model's weights are integers "
        "(executor cpu)",
    )
    engine: str = _setting(
        NATIVE_ENGINE,
        "Model",
        "engine that runs the model: native, or one that an installed package adds",
    )
    executor: ExecutorName = _setting(
        "auto",
        "Model",
        "implementation that runs the model; auto: cpu on device cpu, else reference",
    )
    device: str = _setting(
        "cpu", "Model", "device that runs the model: cpu, or with executor reference cuda, cuda:1"
    )
    weight_cache: bool = _setting(
        True, "Model", "keep packed weights on disk for the next start (executor cpu)"
    )
    quality_gate: str = _setting(
        "",
        "Model",
        "refuse a quantised model that loses more than this beside the checkpoint's own weights: "
        "kl=0.02,top1=0.97 (kl, kl99: mean and 99 % KL divergence in nats; top1: same likeliest token)",
    )
    threads: int | None = _setting(
        None, "Model", "compute threads; default: the cores this process may use"
    )
    disable_pass: tuple[str, ...] = _setting(
        (), "Model", "graph pass to skip; repeat for several (see galley graph)"
    )
    tool_parser: ToolParser = _setting(
        "auto", "Model", "how the model writes calls of tools; auto: as its chat template does"
    )
    reasoning_parser: ReasoningParser = _setting(
        "auto",
        "Model",
        "how the model marks its thinking; auto: as its chat template does; off: it is part of the text",
    )
    max_model_len: int | None = _setting(
        None, "Engine", "context limit in tokens; default: the model's own"
    )
    kv_cache_tokens: int | None = _setting(
        None, "Engine", "size of the KV cache in tokens; default: from the memory available"
    )
    kv_memory_fraction: float = _setting(
        0.5, "Engine", "share of the available memory that the KV cache may take"
    )
    max_batch_tokens: int = _setting(512, "Engine", "token budget of one engine step")
    max_running: int | None = _setting(
        None,
        "Engine",
        "sequences that run at the same time; default: 64, or max_batch_tokens if less",
    )
    prefix_cache: bool = _setting(True, "Engine", "share the KV blocks of equal prefixes")
    priority_steps: int = _setting(
        256, "Engine", "engine steps of waiting that make up for one level of priority"
    )

    batching: Batching = _setting(
        "continuous",
        "Engine",
        "when waiting sequences begin: continuous, in any step; dynamic, all that wait when no other runs; "
        "static, as dynamic, but max_running of them",
    )
    batching_delay: float = _setting(1.0, "Engine", "seconds that a static batch waits to be full")
    speculation: Speculation = _setting(
        "auto",
        "Engine",
        "where guesses of the next tokens come from, which are verified together when that is faster, and "
        "change no text: prompt (prompt and output so far), recent (recent outputs of the same tenant), "
        "grammar (what it leaves no choice about), draft (the draft model), auto (all of these), off",
    )
    draft_model: str | None = _setting(
        None,
        "Engine",
        "smaller model with the same vocabulary that guesses next tokens; named as a model is, and run "
        "with the same settings",
    )

    def __post_init__(self) -> None:
        _one_of(self)
        QualityGate.parse(self.quality_gate)
        if not (math.isfinite(self.batching_delay) and self.batching_delay >= 0):
            raise SettingsError(f"batching_delay must be at least 0, got {self.batching_delay}")
        _positive(self, "max_batch_tokens", "max_running", "priority_steps")
        _positive(self, "max_model_len", "kv_cache_tokens", "threads")
        if self.threads is not None and self.threads > MOST_THREADS:
            raise SettingsError(f"threads must be at most {MOST_THREADS}, got {self.threads}")
        if not 0.0 < self.kv_memory_fraction <= 0.95:
            raise SettingsError(
                f"kv_memory_fraction must be in (0, 0.95], got {self.kv_memory_fraction}"
            )
        if self.draft_model is None and self.speculation == "draft":
            raise SettingsError("speculation is draft, but no draft_model is given")
        if self.draft_model is not None and self.speculation not in ("auto", "draft"):
            raise SettingsError(
                f"draft_model is {self.draft_model!r}, but speculation is {self.speculation!r}, which does "
                "not use it: set speculation to auto or draft, or leave draft_model out"
            )
        if self.running_limit > self.max_batch_tokens:
            raise SettingsError(
                f"max_running ({self.max_running}) must not exceed max_batch_tokens "
                f"({self.max_batch_tokens}): each running sequence decodes one token a step"
            )

    @property
    def running_limit(self) -> int:
        """``max_running``, or its default."""
        return self.max_running or min(64, self.max_batch_tokens)

    @property
    def logit_rows(self) -> int:
        """Rows of a step from which tokens are drawn, guessed ones included, unless logprobs are wanted."""
        if self.speculation == "off":
            return self.running_limit
        return max(self.running_limit, min(_GUESSED_ROWS, self.max_batch_tokens))


@dataclass(frozen=True)
class NamedModel:
    """One of several served models: its name in the API, and the engine settings given for it alone."""

    name: str
    own: Mapping[str, Any]
    on_request: bool = False
    """Whether it is loaded with its first request, whatever ``load_on_request`` says."""


@dataclass(frozen=True, kw_only=True)
class Settings(EngineSettings):
    """All settings of `galley serve`."""

    models: tuple[NamedModel, ...] = _setting(
        (), "Server", "several models by name: NAME=MODEL NAME.SETTING=VALUE ..., in YAML a mapping"
    )
    host: str = _setting("127.0.0.1", "Server", "address to bind")
    port: int = _setting(8000, "Server", "port to bind; 0 picks a free one")
    served_model_name: str = _setting(
        "", "Server", "the model's name in the API; default: the folder's or hub id's"
    )
    models_dir: str = _setting(
        "",
        "Server",
        "folder whose models (folders, GGUF files) are served by their names and loaded on request",
    )
    load_on_request: bool = _setting(
        False, "Server", "load each model with the first request for it, instead of at the start"
    )
    max_loaded_models: int = _setting(
        3,
        "Server",
        "models loaded on request that may be in memory at a time; the least recently used one makes room",
    )
    model_keep_alive: float = _setting(
        300.0,
        "Server",
        "seconds after its last request until a model loaded on request is unloaded; below 0: never",
    )
    take_turns: bool = _setting(
        True, "Server", "several models: engines take turns on the cores; else the kernel decides"
    )
    page: bool = _setting(True, "Server", "serve a page for browsers at /")
    api_key: tuple[str, ...] = _setting(
        (), "Security", "API key; repeat for several (GALLEY_API_KEY: comma-separated)", secret=True
    )
    api_key_file: str = _setting(
        "",
        "Security",
        "file with one API key a line, or with tenants, hashed keys and limits in YAML; read again when "
        "it changes",
    )
    admin_key: tuple[str, ...] = _setting(
        (), "Security", "key of the /admin routes, none of the API; repeat for several", secret=True
    )
    metrics_without_key: bool = _setting(
        False, "Security", "let a Prometheus without a key read /metrics"
    )
    allowed_host: tuple[str, ...] = _setting(
        (), "Security", "further Host header values accepted on a loopback bind; repeat for several"
    )
    cors_origin: tuple[str, ...] = _setting(
        (),
        "Security",
        "origin (https://app.example.com, or *) whose pages may use the API; repeat for several",
    )
    tls_cert: str = _setting("", "Security", "certificate chain in PEM; the server then speaks TLS")
    tls_key: str = _setting("", "Security", "private key of tls_cert in PEM, not encrypted")
    max_queue: int = _setting(
        256, "Limits", "sequences that may wait beyond the running ones; then 429"
    )
    request_timeout: float = _setting(
        600.0,
        "Limits",
        "seconds for a text, from the request's arrival, if its x-request-timeout says no other; then 504",
    )
    max_body_bytes: int = _setting(8 * 1024 * 1024, "Limits", "largest request body")
    max_audio_bytes: int = _setting(
        256 * 1024 * 1024, "Limits", "largest request body with a recording"
    )
    max_audio_seconds: float = _setting(
        14_400.0, "Limits", "longest recording, in seconds; then 413"
    )
    text_seconds: float = _setting(
        10.0,
        "Limits",
        "longest that the chat template, tokenising or grammar of a request may take, in seconds; then 400",
    )
    text_bytes: int = _setting(
        1024 * 1024 * 1024,
        "Limits",
        "memory that the chat template, tokenising or grammar of a request may take; then 400",
    )
    max_upload_bytes: int | None = _setting(
        None,
        "Limits",
        "bytes that all unfinished recordings may hold; then 503; default: 4 x max_audio_bytes",
    )
    max_live_streams: int = _setting(32, "Limits", "live audio streams at a time; then 429")
    drain_seconds: float = _setting(
        30.0, "Limits", "after SIGTERM, how long running requests may take to finish"
    )
    stall_seconds: float = _setting(
        10.0, "Limits", "seconds of silence of an engine that has work, after which /ready is 503"
    )
    step_timeout: float = _setting(
        600.0,
        "Limits",
        "seconds after which an engine hangs in a step and is killed; its requests go on; 0: never",
    )
    memory_limit_fraction: float = _setting(
        0.95,
        "Limits",
        "share of the container's memory, or the machine's, beyond which new requests get 503",
    )
    max_connections: int | None = _setting(
        None, "Limits", "open connections; then 503; default: what the limit on open files leaves"
    )
    max_connections_per_address: int | None = _setting(
        None,
        "Limits",
        "open connections of one address (IPv6: one /64); default: half of max_connections, loopback "
        "exempt",
    )
    max_header_bytes: int = _setting(32 * 1024, "Limits", "request line and headers; then 431")
    max_headers: int = _setting(100, "Limits", "headers of one request; then 431")
    max_unfinished_body_bytes: int = _setting(
        256 * 1024 * 1024, "Limits", "JSON bodies still on their way, all together; then 503"
    )
    header_timeout: float = _setting(
        10.0, "Limits", "seconds a request's headers may take from its first byte; then 408"
    )
    body_timeout: float = _setting(
        10.0, "Limits", "seconds a body may stand still, or lag behind min_body_rate; then 408"
    )
    min_body_rate: int = _setting(
        1024, "Limits", "bytes per second that a body must bring on average"
    )
    keep_alive_timeout: float = _setting(
        30.0, "Limits", "seconds a connection may stay open between two requests"
    )
    send_timeout: float = _setting(
        30.0, "Limits", "seconds a client may take nothing of its answer; then it is cut off"
    )
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", "Server", "least severe messages logged"
    )
    log_format: Literal["text", "json"] = _setting(
        "text", "Server", "form of the log: lines for people, or a JSON object a line"
    )
    log_prompts: bool = _setting(
        False, "Server", "write prompts and the paths of unknown routes to the access log"
    )
    price_per_hour: float | None = _setting(
        None,
        "Server",
        "what the machine costs in an hour, in any currency: answers then tell a cost",
    )
    otlp_endpoint: str = _setting(
        "",
        "Server",
        "OpenTelemetry collector that gets traces over HTTP (http://localhost:4318); needs the extra otel",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive(self, "max_body_bytes", "max_audio_bytes", "max_audio_seconds")
        _positive(self, "max_live_streams", "max_connections", "max_connections_per_address")
        _positive(self, "max_headers", "max_unfinished_body_bytes", "min_body_rate")
        self._check_front_door()
        _positive(self, "text_bytes", "max_loaded_models")
        self._check_observation()
        if not (math.isfinite(self.text_seconds) and self.text_seconds > 0):
            raise SettingsError(f"text_seconds must be more than 0, got {self.text_seconds}")
        if self.max_upload_bytes is not None and self.max_upload_bytes < self.max_audio_bytes:
            raise SettingsError(
                f"max_upload_bytes ({self.max_upload_bytes}) must be at least max_audio_bytes "
                f"({self.max_audio_bytes}): a recording of that size could never come"
            )
        if self.max_queue < 0:
            raise SettingsError(f"max_queue must not be negative, got {self.max_queue}")
        if math.isnan(self.max_audio_seconds):
            raise SettingsError("max_audio_seconds must be a number of seconds, got nan")
        if not (math.isfinite(self.drain_seconds) and self.drain_seconds >= 0):
            raise SettingsError(f"drain_seconds must be 0 or more, got {self.drain_seconds}")
        if not 0 < self.request_timeout <= MOST_TIMEOUT:
            raise SettingsError(
                f"request_timeout must be above 0 and at most {MOST_TIMEOUT:.0f} seconds, got "
                f"{self.request_timeout}"
            )
        if not 0 <= self.port < 65536:
            raise SettingsError(f"port must be between 0 and 65535, got {self.port}")
        for name in ("api_key", "admin_key"):
            if any(not key.strip() for key in getattr(self, name)):
                raise SettingsError(f"{name}: one of the keys is empty; anybody could guess it")
        if self.models and self.served_model_name:
            names = ", ".join(model.name for model in self.models)
            raise SettingsError(
                f"served_model_name is {self.served_model_name!r}, but the models have names: {names}"
            )
        for model in self.models:
            self._of(model)

    def _check_observation(self) -> None:
        if math.isnan(self.model_keep_alive):
            raise SettingsError("model_keep_alive must be a number of seconds, got nan")
        price = self.price_per_hour
        if price is not None and not (math.isfinite(price) and price >= 0):
            raise SettingsError(f"price_per_hour must be a number of 0 or more, got {price}")
        if self.otlp_endpoint and not _URL.fullmatch(self.otlp_endpoint):
            raise SettingsError(
                f"otlp_endpoint: {self.otlp_endpoint!r} is no URL; one is like http://localhost:4318"
            )

    def _check_front_door(self) -> None:
        if self.max_header_bytes < 1024:
            raise SettingsError(
                f"max_header_bytes must be at least 1024, got {self.max_header_bytes}"
            )
        for name in ("header_timeout", "body_timeout", "keep_alive_timeout", "send_timeout"):
            seconds = getattr(self, name)
            if not (math.isfinite(seconds) and seconds > 0):
                raise SettingsError(f"{name} must be a number of seconds above 0, got {seconds}")
        if not (math.isfinite(self.stall_seconds) and self.stall_seconds > 0):
            raise SettingsError(f"stall_seconds must be above 0, got {self.stall_seconds}")
        if not (math.isfinite(self.step_timeout) and self.step_timeout >= 0):
            raise SettingsError(f"step_timeout must be 0 or more, got {self.step_timeout}")
        if not 0.0 < self.memory_limit_fraction <= 1.0:
            raise SettingsError(
                f"memory_limit_fraction must be in (0, 1], got {self.memory_limit_fraction}"
            )
        for origin in self.cors_origin:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise SettingsError(
                    f"cors_origin: {origin!r} is no origin; one is like https://app.example.com:8443, "
                    "without a path, or * for all"
                )

    def each_model(self) -> list[Self]:
        """The settings of each served model: those given for the model alone, else the common ones.

        A common ``kv_memory_fraction`` is divided by the number of models that may be loaded at a time,
        because they share the memory.
        """
        return [self._of(model) for model in self.models] or [self]

    @property
    def most_loaded(self) -> int:
        """How many models may be in memory at a time."""
        if not self.models:
            return 1
        on_request = sum(self.load_on_request or model.on_request for model in self.models)
        return len(self.models) - on_request + min(on_request, self.max_loaded_models)

    def _of(self, model: NamedModel) -> Self:
        share = {
            "kv_memory_fraction": self.kv_memory_fraction / self.most_loaded,
            "load_on_request": self.load_on_request or model.on_request,
        }
        own = {**share, **model.own}
        try:
            return dataclasses.replace(self, models=(), served_model_name=model.name, **own)
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
        """Merge all sources. ``flags`` holds only what was given on the command line.

        Args:
            flags: setting name -> value.
            file: the YAML file; default: ``galley.yaml`` in the working folder, if there is one.
            environ: default ``os.environ``; only ``GALLEY_<SETTING>`` names are read.

        Raises:
            SettingsError: an unknown name or a value of the wrong type; names its source.
        """
        values: dict[str, Any] = {}
        values.update(_from_file(cls, file))
        values.update(_from_environ(cls, os.environ if environ is None else environ))
        values.update(flags)
        return cls(**values)


def named_models(arguments: Sequence[str]) -> tuple[NamedModel, ...]:
    """The models that ``NAME=MODEL`` and, after it, ``NAME.SETTING=VALUE`` describe.

    Raises:
        SettingsError: an argument is of another form, or a name is given twice.
    """
    models: dict[str, dict[str, object]] = {}
    for argument in arguments:
        left, equals, value = argument.partition("=")
        name, dot, setting = left.rpartition(".")
        if not equals:
            raise SettingsError(
                f"{argument!r} has no name: of several models each is NAME=MODEL, like chat={argument}"
            )
        if dot and name in models:
            models[name][setting.replace("-", "_")] = value
        elif left in models:
            raise SettingsError(f"two models have the name {left!r}")
        else:
            models[left] = {"model": value}
    return _named(models, source="command line")


def _named(models: Mapping[str, Mapping[str, object]], *, source: str) -> tuple[NamedModel, ...]:
    for name in models:
        if not _NAME.fullmatch(name):
            raise SettingsError(
                f"{source}: {name!r} is no name for a model: letters, digits and . _ - make one (a "
                f"folder with = in its path needs a name before it)"
            )
    return tuple(
        NamedModel(
            name,
            {
                setting: _convert(
                    EngineSettings, setting, value, source=f"{source}: models: {name}"
                )
                for setting, value in own.items()
            },
        )
        for name, own in models.items()
    )


def _models(value: object, *, source: str) -> tuple[NamedModel, ...]:
    """Text as on the command line, or YAML: name -> model, or name -> settings."""
    if isinstance(value, str):
        return named_models(value.split())
    if not isinstance(value, dict):
        raise SettingsError(f"{source}: models must map names to models, got {value!r}")
    models: dict[str, dict[str, object]] = {}
    for name, own in value.items():
        if own is None or isinstance(own, str):
            own = {"model": own or ""}
        if not isinstance(own, dict):
            raise SettingsError(
                f"{source}: models: {name}: expected a model or a mapping of settings, got {own!r}"
            )
        models[str(name)] = {str(k).replace("-", "_"): v for k, v in own.items()}
    return _named(models, source=source)


def _one_of(settings: EngineSettings) -> None:
    """Raises SettingsError for a value that is not among its setting's choices."""
    for name, kind in setting_types(type(settings)).items():
        choices = typing.get_args(kind)
        if typing.get_origin(kind) is Literal and getattr(settings, name) not in choices:
            raise SettingsError(
                f"{name}: {getattr(settings, name)!r} is not one of {', '.join(choices)}"
            )


def _positive(settings: EngineSettings, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise SettingsError(f"{name} must be at least 1, got {value}")


def _from_file(cls: type[Settings], file: Path | None) -> dict[str, Any]:
    path = Path("galley.yaml") if file is None else file
    if not path.is_file():
        if file is not None:
            raise SettingsError(f"settings file {path} does not exist")
        return {}
    from galley.settings_file import read_settings_file

    content = read_settings_file(path)
    if not isinstance(content, dict):
        raise SettingsError(f"{path} must hold a mapping of setting names to values")
    return {
        name: _convert(cls, name, value, source=str(path))
        for name, value in ((str(k).replace("-", "_"), v) for k, v in content.items())
    }


def _from_environ(cls: type[Settings], environ: Mapping[str, str]) -> dict[str, Any]:
    known = {f"GALLEY_{f.name.upper()}": f.name for f in dataclasses.fields(cls)}
    return {
        known[variable]: _convert(cls, known[variable], text, source=variable)
        for variable, text in environ.items()
        if variable in known and not _SERVICE_LINK.match(text)
    }


def setting_types(cls: type[EngineSettings]) -> dict[str, Any]:
    """Setting name -> its type, resolved."""
    return typing.get_type_hints(cls)


def _convert(cls: type[EngineSettings], name: str, value: object, *, source: str) -> object:
    kinds = setting_types(cls)
    if name not in kinds:
        raise SettingsError(
            f"{source}: unknown setting {name!r}; known: {', '.join(sorted(kinds))}"
        )
    if name == "models":
        return _models(value, source=source)
    kind = kinds[name]
    try:
        return coerce(kind, value)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{source}: {name}: {error}") from None
