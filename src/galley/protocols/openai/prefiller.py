"""``x-prefiller-host-port``: a router names the prefill server, as for the sidecar of llm-d.

The request goes to the prefill server first, as one of one token, and is then answered here with the
``kv_transfer_params`` of its answer. Without these, the prompt is computed here.
"""

import asyncio
import math
import re
import threading
import time
import urllib.request
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from galley.errors import GalleyError, RequestError
from galley.gateway.daemon_thread import in_daemon_thread
from galley.gateway.served import ServedModel
from galley.json_http import exchange
from galley.protocols.openai.generation import GenerationRequest
from galley.protocols.openai.transfers import KVTransferParams, Networks, is_peer, peer_of
from galley.rare_warnings import RareWarnings

_warnings: Final = RareWarnings("galley.transfers")

HEADER: Final = "x-prefiller-host-port"

_ADDRESS: Final = re.compile(
    r"(?:\[(?P<v6>[\da-fA-F:.]+)\]|(?P<v4>[\d.]+)):(?P<port>\d{1,5})", re.ASCII
)
_MOST_ANSWER_BYTES: Final = 16 << 20
_LEFT_OUT: Final = ("stream", "stream_options", "n", "min_tokens", "max_completion_tokens")
"""Fields that the request to the prefill server does not have."""

_PLACES: Final = threading.BoundedSemaphore(64)
"""Threads that wait for prefill servers; other requests do not wait for a place.

A thread keeps its place until the server answers or hangs up, also when its request has ended.
"""

Generating = TypeVar("Generating", bound=GenerationRequest)


async def prefilled(
    headers: Mapping[str, str],
    parsed: Generating,
    served: ServedModel,
    path: str,
    deadline: float = math.inf,
) -> Generating:
    """Have the prefill server that a header names compute the prompt.

    The header has an effect with ``gateway_headers``, on a server with role decode or both.

    Args:
        headers: the request's headers.
        parsed: its body.
        served: the model.
        path: the route.
        deadline: that of the request, on the monotonic clock.

    Returns:
        The body, with the ``kv_transfer_params`` of the prefill server's answer if there are any.

    Raises:
        RequestError: the header is not an address from which this server fetches keys and values.
    """
    settings, where = served.settings, headers.get(HEADER)
    fetches = settings.role in ("decode", "both")
    if not (where and settings.gateway_headers and fetches) or parsed.kv_transfer_params:
        return parsed
    match = _ADDRESS.fullmatch(where)
    if match is None or not is_peer(match["v6"] or match["v4"], settings.kv_networks):
        raise RequestError(
            f"The header {HEADER} is {where[:100]!r}; expected IP:PORT of a server in kv_peer",
            param=HEADER,
        )
    seconds = min(settings.prefill_seconds, deadline - time.monotonic())
    if seconds <= 0:
        return parsed  # refused as late where its other limits are checked
    url = f"http://{where}{path}"
    try:
        async with asyncio.timeout(seconds):
            found = await _ask(url, headers, parsed, seconds)
        if found is not None:
            _check(found, settings.kv_networks)
    # OSError: HTTP errors as well; ValueError: what does not decode; GalleyError: what would be refused.
    except (OSError, ValueError, GalleyError) as error:
        _warnings.add(f"{url} did not compute a prompt: {error or type(error).__name__}")
        return parsed
    return parsed if found is None else msgspec.structs.replace(parsed, kv_transfer_params=found)


async def _ask(
    url: str, given: Mapping[str, str], parsed: GenerationRequest, seconds: float
) -> KVTransferParams | None:
    """Return what the prefill server's answer says; None: nothing.

    Raises:
        OSError: there is no answer, or one of an error.
        ValueError: the answer, or a header, is not valid.
    """
    fields: dict[str, Any] = {
        name: value
        for name, value in msgspec.to_builtins(parsed).items()
        if value is not None and name not in _LEFT_OUT
    }
    wish = {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    names = ("authorization", "x-api-key", "x-request-id")
    headers = {name: value for name in names if (value := given.get(name))}
    outgoing = urllib.request.Request(  # noqa: S310  (its scheme is http)
        url,
        msgspec.json.encode({**fields, **wish}),
        {"content-type": "application/json", **headers},
    )
    body = await in_daemon_thread(partial(_exchange, outgoing, seconds))
    return msgspec.json.decode(body, type=_Answer).kv_transfer_params


def _exchange(request: urllib.request.Request, seconds: float) -> bytes:
    if not _PLACES.acquire(blocking=False):
        raise OSError("too many requests wait for prefill servers")
    try:
        return exchange(request, timeout=seconds, most=_MOST_ANSWER_BYTES)
    finally:
        _PLACES.release()


def _check(found: KVTransferParams, networks: Networks) -> None:
    """Raise RequestError if a client that sent these parameters would be refused: it did not send them."""
    if not found.do_remote_prefill or found.do_remote_decode:
        raise RequestError("its answer does not have do_remote_prefill alone")
    peer_of(found, networks)


class _Answer(msgspec.Struct):
    kv_transfer_params: KVTransferParams | None = None
