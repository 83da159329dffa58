"""WebSockets beneath the app: uvicorn's protocol, bounded, imported with the first of them."""

import asyncio
import importlib.util
from typing import Any, Literal, cast

Protocol = type[asyncio.Protocol] | Literal["none"]


def protocol() -> Protocol:
    """Return uvicorn's protocol for WebSockets; "none" without the extra ``speech``.

    It is imported with the first of them: most servers never see one.
    """
    if not _installed("websockets"):
        return "none"
    return cast(type[asyncio.Protocol], _late_protocol)


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # a custom finder may raise this at once
        return False


def _late_protocol(**arguments: Any) -> asyncio.Protocol:
    from galley.server.websocket_protocol import BoundedWebSocketProtocol

    return BoundedWebSocketProtocol(**arguments)
