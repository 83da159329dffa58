"""Payloads of requests, by kind."""

from galley.types import Align, EngineRequest, Generate, Transcribe


def generated(request: EngineRequest) -> Generate:
    """Return the payload of a request to continue a text."""
    assert isinstance(request.payload, Generate)
    return request.payload


def spoken(request: EngineRequest) -> Transcribe:
    """Return the payload of a request to transcribe audio."""
    assert isinstance(request.payload, Transcribe)
    return request.payload


def aligned(request: EngineRequest) -> Align:
    """Return the payload of a request to align a text with audio."""
    assert isinstance(request.payload, Align)
    return request.payload
