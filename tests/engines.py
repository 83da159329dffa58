"""Access for tests to the internals of Galley's own engine, which others use only by its protocol."""

from galley.engine.engine import Engine as NativeEngine
from galley.service.protocol import Engine


def native(engine: Engine) -> NativeEngine:
    """Return ``engine``, checked to be Galley's own."""
    assert isinstance(engine, NativeEngine)
    return engine
