"""What requests ask for, by kind."""

from galley.types import EngineRequest, Generate


def generated(request: EngineRequest) -> Generate:
    """The payload of a request to continue a text."""
    assert isinstance(request.payload, Generate)
    return request.payload


def spoken(request: EngineRequest) -> Generate:
    """The payload of a request to transcribe audio."""
    return generated(request)
