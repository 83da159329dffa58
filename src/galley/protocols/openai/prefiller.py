"""``x-prefiller-host-port``: a router names the prefill server, as for the sidecar of llm-d.

The request goes to the prefill server first, as one of one token, and is then answered here with the
``kv_transfer_params`` of its answer. Without these, the prompt is computed here.
"""

import asyncio
import logging
import re
import urllib.request
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from galley.errors import RequestError
from galley.gateway.daemon_thread import in_daemon_thread
from galley.gateway.served import ServedModel
from galley.json_http import exchange
from galley.protocols.openai.generation import GenerationRequest
from galley.protocols.openai.transfers import KVTransferParams, is_peer

log: Final = logging.getLogger("galley.transfers")

HEADER: Final = "x-prefiller-host-port"

_ADDRESS: Final = re.compile(
    r"(?:\[(?P<v6>[\da-fA-F:.]+)\]|(?P<v4>[\d.]+)):(?P<port>\d{1,5})", re.ASCII
)
_MOST_ANSWER_BYTES: Final = 16 << 20
_LEFT_OUT: Final = ("stream", "stream_options", "n", "min_tokens", "max_completion_tokens")
"""Fields that the request to the prefill server does not have."""

_PLACES: Final = asyncio.Semaphore(64)
"""Requests that wait for prefill servers at the same time; others do not wait for a place."""

Generating = TypeVar("Generating", bound=GenerationRequest)


async def prefilled(
    headers: Mapping[str, str], parsed: Generating, served: ServedModel, path: str
) -> Generating:
    """Have the prefill server that a header names compute the prompt.

    The header has an effect with ``gateway_headers``, on a server with role decode or both.

    Args:
        headers: the request's headers.
        parsed: its body.
        served: the model.
        path: the route.

    Returns:
        The body, with the ``kv_transfer_params`` of the prefill server's answer if there are any.

    Raises:
        RequestError: the header is no address, or none that this server fetches keys and values from.
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
    if _PLACES.locked():
        return parsed
    async with _PLACES:
        found = await _ask(f"http://{where}{path}", headers, parsed, settings.prefill_seconds)
    return parsed if found is None else msgspec.structs.replace(parsed, kv_transfer_params=found)


async def _ask(
    url: str, given: Mapping[str, str], parsed: GenerationRequest, seconds: float
) -> KVTransferParams | None:
    """Return what the prefill server's answer says; None: nothing, or there is none."""
    fields: dict[str, Any] = {
        name: value
        for name, value in msgspec.to_builtins(parsed).items()
        if value is not None and name not in _LEFT_OUT
    }
    wish = {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    names = ("authorization", "x-api-key", "x-request-id")
    headers = {name: value for name in names if (value := given.get(name))}
    asked = urllib.request.Request(  # noqa: S310  (its scheme is http)
        url,
        msgspec.json.encode({**fields, **wish}),
        {"content-type": "application/json", **headers},
    )
    try:
        body = await in_daemon_thread(
            lambda: exchange(asked, timeout=seconds, most=_MOST_ANSWER_BYTES)
        )
        return msgspec.json.decode(body, type=_Answer).kv_transfer_params
    except (
        OSError,
        ValueError,
    ) as error:  # OSError: HTTP errors as well; ValueError: what does not decode
        log.warning("%s did not compute a prompt: %s", url, error)
        return None


class _Answer(msgspec.Struct):
    kv_transfer_params: KVTransferParams | None = None
