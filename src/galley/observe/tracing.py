"""OpenTelemetry traces: one span per request, with OpenTelemetry's conventions for generative AI.

A span is created from the data of the access log when its request has ended, so tracing costs running
requests nothing. Nothing here imports OpenTelemetry until a :class:`Tracing` is created.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from galley import __version__
from galley.errors import SettingsError, pip_install
from galley.types import SamplingParams

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/api/chat": "chat",
    "/api/generate": "text_completion",
    "/v1/embeddings": "embeddings",
    "/api/embed": "embeddings",
    "/api/embeddings": "embeddings",
    "/v1/rerank": "rerank",
    "/v2/rerank": "rerank",
    "/rerank": "rerank",
    "/v1/score": "rerank",
    "/score": "rerank",
    "/v1/audio/transcriptions": "transcription",
    "/v1/audio/translations": "translation",
    "/v1/audio/speech": "speech",
    "/v1/realtime": "transcription",
}
"""Route -> ``gen_ai.operation.name``. Requests of other routes have no span."""

_FIELDS: Final = {
    "id": "galley.request.id",
    "client": "client.address",
    "tenant": "galley.tenant",
    "prompt": "gen_ai.usage.input_tokens",
    "generated": "gen_ai.usage.output_tokens",
    "cached": "gen_ai.usage.cache_read.input_tokens",
    "audio_seconds": "galley.audio.seconds",
    "ttft_ms": "galley.time_to_first_token_ms",
    "cost": "galley.cost",
    "error": "error.type",
}
"""Field of the access log -> attribute of the span."""

_REQUEST_ATTRIBUTES: Final = {
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
}
"""Sampling parameter -> attribute of the span."""

_NANOSECONDS: Final = 1_000_000_000
_SERVER_ERROR: Final = 500


@dataclass(slots=True)
class Trace:
    """Data of a request that only its span needs.

    Attributes:
        sampling: the request's sampling parameters.
        phases: (name, begin, end) of its phases, on the monotonic clock, in seconds.
    """

    sampling: SamplingParams | None = None
    phases: list[tuple[str, float, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Finished:
    """A request that has ended.

    Attributes:
        endpoint: the route.
        status: the status of the HTTP response.
        arrived: arrival time on the monotonic clock, in seconds.
        seconds: its duration.
        fields: the fields of the access log.
        trace: the data for the span only.
    """

    endpoint: str
    status: int
    arrived: float
    seconds: float
    fields: Mapping[str, Any]
    trace: Trace


class Tracing:
    """Sends spans to a collector, in batches, from a separate thread."""

    def __init__(self, endpoint: str) -> None:
        """Set up the export of spans.

        Args:
            endpoint: URL of the collector, which receives OTLP over HTTP at ``/v1/traces``.

        Raises:
            SettingsError: the extra ``otel`` is not installed.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise SettingsError(
                f"otlp_endpoint needs OpenTelemetry ({error}): {pip_install('otel')}"
            ) from error
        about = {"service.version": __version__}
        if "OTEL_SERVICE_NAME" not in os.environ:
            about["service.name"] = "galley"
        self._provider = TracerProvider(resource=Resource.create(about))
        exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
        self._sending = BatchSpanProcessor(exporter)
        self._provider.add_span_processor(self._sending)
        self._tracer = self._provider.get_tracer("galley", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def request_ended(self, request: Finished, headers: Mapping[str, str]) -> dict[str, str]:
        """Create the request's span, a child of the one that ``traceparent`` in ``headers`` names.

        Returns:
            The fields for the access log: ``trace_id``; empty if there is no span.
        """
        from opentelemetry import trace
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanKind, Status, StatusCode

        operation = _OPERATIONS.get(request.endpoint)
        if operation is None:
            return {}
        # Spans use wall-clock time, and everything here uses the monotonic clock.
        to_wall = time.time_ns() - time.monotonic_ns()
        begin = to_wall + int(request.arrived * _NANOSECONDS)
        model = str(request.fields.get("model", ""))
        span = self._tracer.start_span(
            f"{operation} {model}".strip(),
            context=self._propagator.extract(headers),
            kind=SpanKind.SERVER,
            attributes=_attributes(request, operation, model),
            start_time=begin,
        )
        ended = begin + int(request.seconds * _NANOSECONDS)
        if isinstance(span, ReadableSpan):  # it is recorded
            if request.status >= _SERVER_ERROR:
                span.set_status(Status(StatusCode.ERROR))
            for name, first, last in request.trace.phases:
                start, end = (to_wall + int(at * _NANOSECONDS) for at in (first, last))
                self._sending.on_end(self._within(span, name, start, end))
                # The engine's times start when the server noticed them, which can be late.
                ended = max(ended, end)
        span.end(ended)
        return {"trace_id": trace.format_trace_id(span.get_span_context().trace_id)}

    def _within(self, parent: "ReadableSpan", name: str, start: int, end: int) -> "ReadableSpan":
        """Return a complete child of a recorded span.

        The tracer would take several times as long, since it prepares each span for changes and asks the
        sampler about it. The sampler has decided about the whole trace.

        Args:
            parent: the request's span.
            name: name of the child.
            start: when it begins, in nanoseconds of Unix time.
            end: when it ends.
        """
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanContext

        context = parent.context
        return ReadableSpan(
            name,
            context=SpanContext(
                context.trace_id,
                self._provider.id_generator.generate_span_id(),
                is_remote=False,
                trace_flags=context.trace_flags,
                trace_state=context.trace_state,
            ),
            parent=context,
            resource=parent.resource,
            start_time=start,
            end_time=end,
            instrumentation_scope=parent.instrumentation_scope,
        )

    def close(self) -> None:
        """Send the remaining spans; this takes some seconds at most."""
        self._provider.shutdown()


def _attributes(request: Finished, operation: str, model: str) -> dict[str, Any]:
    fields = request.fields
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "galley",
        "http.route": request.endpoint,
        "http.response.status_code": request.status,
    }
    if model:
        attributes |= {"gen_ai.request.model": model, "gen_ai.response.model": model}
    if "finish" in fields:
        attributes["gen_ai.response.finish_reasons"] = str(fields["finish"]).split(",")
    for name, attribute in _FIELDS.items():
        if name in fields:
            attributes[attribute] = fields[name]
    for name, attribute in _REQUEST_ATTRIBUTES.items():
        value = getattr(request.trace.sampling, name, None)
        if value is not None:
            attributes[attribute] = value
    return attributes
