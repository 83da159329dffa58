"""The Open Inference Protocol over gRPC: each call is answered by the HTTP application.

A call takes the same way as a request over HTTP, from the check of its key to its line in the log. The
message of a caller without a valid key is not read: the application refuses the request of an empty one.
"""

import asyncio
import importlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Scope

from galley.errors import RequestError, SettingsError, pip_install
from galley.gateway.tenants import Tenants
from galley.protocols.common.errors import ApiError, naming_message
from galley.protocols.http.body import in_thread_if_large
from galley.server.auth import OPEN_PATHS, knows
from galley.server.grpc_messages import MessageReader
from galley.settings.config import MOST_TIMEOUT, Settings
from galley.settings.values import address_text

log = logging.getLogger("galley.server")

_CODES: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "CANCELLED",
    409: "ABORTED",
    413: "INVALID_ARGUMENT",
    415: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""HTTP status -> gRPC status; others are INTERNAL."""

_NOT_READY: Final = (404, 503)

_PASSED_ON: Final = (
    "authorization",
    "x-api-key",
    "x-request-id",
    "x-request-timeout",
    "traceparent",
)
"""Metadata of a call that are headers of its request."""

_RETURNED: Final = ("x-request-id", "retry-after", "x-ratelimit-")
"""Beginnings of the headers of a response that are trailing metadata of a call."""

_BESIDES_QUEUE: Final = 64
"""Calls that may run in addition to those for which the queue has room."""

_STREAMS: Final = 1024
"""Calls that one connection may have at a time; its further ones wait at the client."""


class GrpcDoor:
    """A gRPC server in the process and the event loop of the HTTP server."""

    def __init__(self, app: ASGIApp, settings: Settings, tenants: Tenants) -> None:
        """Create the server; :meth:`open` starts it. Call this in the event loop.

        Args:
            app: answers the calls, as requests over HTTP.
            settings: address and limits.
            tenants: whose messages are read.

        Raises:
            SettingsError: grpcio or protobuf is not installed.
        """
        self._app = app
        self._settings = settings
        self._tenants = tenants
        try:
            self._grpc: Any = importlib.import_module("grpc")
            self._calls: Any = importlib.import_module("galley.protocols.oip.grpc_calls")
        except ImportError as error:
            raise SettingsError(
                f"grpc_port needs grpcio and protobuf, which cannot be imported ({error}): "
                f"{pip_install('grpc')}"
            ) from error
        self._renewed: Any = None
        self._messages = MessageReader(settings, self._grpc.aio.EOF)
        self._server = self._grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", settings.max_body_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", settings.max_header_bytes),
                ("grpc.absolute_max_metadata_size", settings.max_header_bytes),
                ("grpc.max_concurrent_streams", _STREAMS),
                ("grpc.server_handshake_timeout_ms", int(1000 * settings.header_timeout)),
                ("grpc.keepalive_time_ms", int(1000 * settings.keep_alive_timeout)),
                ("grpc.keepalive_timeout_ms", int(1000 * settings.send_timeout)),
            ],
            maximum_concurrent_rpcs=settings.max_queue + _BESIDES_QUEUE,
        )
        named = self._grpc.method_handlers_generic_handler
        others = self._calls.TENSORFLOW_SERVING.items()
        self._server.add_generic_rpc_handlers(
            [
                named(self._calls.SERVICE, self._handlers()),
                *(named(service, self._refusing(service, calls)) for service, calls in others),
            ]
        )

    async def open(self) -> int:
        """Listen; return the port.

        Raises:
            OSError: the port cannot be bound.
        """
        host, port = self._settings.host, self._settings.grpc_port
        assert port is not None
        address = address_text(host, port)
        try:
            if self._settings.tls_cert:
                bound = self._server.add_secure_port(address, self._credentials())
            else:
                bound = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address} for gRPC: {error}") from error
        await self._server.start()
        return int(bound)

    async def close(self, seconds: float) -> None:
        """Refuse new calls, let running ones finish for this many seconds, and end the rest. Idempotent."""
        await self._server.stop(seconds)

    def renew(self) -> None:
        """Use the certificate that is in its files now for connections that are accepted later."""
        self._renewed = self._certificate()

    def _credentials(self) -> Any:
        return self._grpc.dynamic_ssl_server_credentials(self._certificate(), self._take_renewed)

    def _certificate(self) -> Any:
        key, chain = Path(self._settings.tls_key), Path(self._settings.tls_cert)
        pair = (key.read_bytes(), chain.read_bytes())
        return self._grpc.ssl_server_certificate_configuration([pair])

    def _take_renewed(self) -> Any:
        """Return a renewed certificate once, then None; grpcio asks at each handshake, in its threads."""
        renewed, self._renewed = self._renewed, None
        return renewed

    def _handlers(self) -> Mapping[str, Any]:
        # Messages are parsed by the calls: an error in one is the client's, and not an exception to log.
        one = self._grpc.stream_unary_rpc_method_handler
        handlers = {
            name: one(partial(self._answer, call, call.to_http(call.request())))
            for name, call in self._calls.CALLS.items()
        }
        for name in self._calls.UNSERVED:
            instead = "; send tensors in the request" if "SharedMemory" in name else ""
            handlers[name] = one(partial(self._refuse, f"{name} is not supported{instead}"))
        handlers["ModelStreamInfer"] = self._grpc.stream_stream_rpc_method_handler(self._stream)
        return handlers

    def _refusing(self, service: str, calls: Sequence[str]) -> Mapping[str, Any]:
        """Return the handlers of a service that is not served."""
        one = self._grpc.stream_unary_rpc_method_handler
        instead = f"use {self._calls.SERVICE}, or /v1/models/MODEL:predict over HTTP"
        return {
            name: one(partial(self._refuse, f"{service}/{name} is not supported; {instead}"))
            for name in calls
        }

    async def _answer(self, call: Any, empty: Any, _: AsyncIterator[bytes], context: Any) -> bytes:
        """Answer a call with one request and one response.

        Args:
            call: the call.
            empty: the request of an empty message, which stands for one that is not read.
            context: the call's context, by which its message is read.
        """
        request = empty
        try:
            # Probes do not wait for a place, and their message has no fields.
            if empty.path not in OPEN_PATHS and self._is_known(context):
                request = await self._http_request(call, await self._messages.one(context))
        except ApiError as error:
            await context.abort(self._code(error.status), str(error))
        except RequestError as error:
            await context.abort(self._code(400), naming_message(error))
        response = await self._through_app(request, context)
        if response.status == 200 or (call.states and response.status in _NOT_READY):
            context.set_trailing_metadata(_returned(response.headers))
            return self._written(call, response)
        await context.abort(
            self._code(response.status), response.error, _returned(response.headers)
        )
        raise AssertionError("abort raises")

    async def _stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Answer the requests of a stream in their order; one that fails does not end the stream."""
        call = self._calls.CALLS["ModelInfer"]
        if not self._is_known(context):
            response = await self._through_app(call.to_http(call.request()), context)
            await context.abort(self._code(response.status), response.error)
        try:
            with self._messages.stream():
                async for data in requests:
                    yield await self._one_of_stream(call, data, context)
        except ApiError as error:
            await context.abort(self._code(error.status), str(error))

    async def _one_of_stream(self, call: Any, data: bytes, context: Any) -> bytes:
        answer = self._calls.MESSAGES["ModelStreamInferResponse"]
        try:
            response = await self._through_app(await self._http_request(call, data), context)
        except RequestError as error:
            answered = answer(error_message=naming_message(error))
        else:
            answered = (
                answer(infer_response=call.from_http(response))
                if response.status == 200
                else answer(error_message=response.error)
            )
        encoded: bytes = answered.SerializeToString()
        return encoded

    def _is_known(self, context: Any) -> bool:
        """Return whether a call has a valid key, or needs none."""
        return knows(self._tenants, {"headers": _headers(_passed_on(context))})

    async def _refuse(self, message: str, _: AsyncIterator[bytes], context: Any) -> bytes:
        refused: bytes = await context.abort(self._grpc.StatusCode.UNIMPLEMENTED, message)
        return refused

    async def _http_request(self, call: Any, data: bytes) -> Any:
        return await in_thread_if_large(len(data), lambda: call.read(data))

    def _written(self, call: Any, response: Any) -> bytes:
        written: bytes = call.from_http(response).SerializeToString()
        return written

    def _code(self, status: int) -> Any:
        return getattr(self._grpc.StatusCode, _CODES.get(status, "INTERNAL"))

    async def _through_app(self, request: Any, context: Any) -> Any:
        """Return the application's response to a request; it is cancelled with the call."""
        status, headers, parts = 500, {}, []
        bodies = iter([{"type": "http.request", "body": request.body, "more_body": False}])

        async def receive() -> Message:
            if (body := next(bodies, None)) is None:
                # A client that is gone cancels the call, and with it all that waits here.
                await asyncio.get_running_loop().create_future()
            assert body is not None
            return body

        async def send(message: Message) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = {
                    name.decode().lower(): value.decode() for name, value in message["headers"]
                }
            else:
                parts.append(message.get("body", b""))

        await self._app(_scope(request, context), receive, send)
        return self._calls.HttpResponse(status, headers, b"".join(parts))


def _scope(request: Any, context: Any) -> Scope:
    headers = {
        "host": "localhost",
        "content-length": str(len(request.body)),
        **request.headers,
        **_passed_on(context),
    }
    left = context.time_remaining()
    if left is not None and left < MOST_TIMEOUT and "x-request-timeout" not in headers:
        headers["x-request-timeout"] = f"{max(left, 1e-6):.6f}"
    address, _, port = unquote(context.peer()).partition(":")[2].rpartition(":")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "2",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": request.path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": _headers(headers),
        "client": (address.strip("[]"), int(port)) if port.isdecimal() else None,
        "server": None,
    }


def _passed_on(context: Any) -> dict[str, str]:
    return {k: v for k, v in context.invocation_metadata() or () if k in _PASSED_ON}


def _headers(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(k.encode(), v.encode("latin-1", "replace")) for k, v in headers.items()]


def _returned(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((k, v) for k, v in headers.items() if k.startswith(_RETURNED))
