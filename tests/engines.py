"""What tests look at inside Galley's own engine, which others know by its protocol alone."""

from galley.engine.engine import Engine as NativeEngine
from galley.service.protocol import Engine


def native(engine: Engine) -> NativeEngine:
    """``engine``, which is Galley's own."""
    assert isinstance(engine, NativeEngine)
    return engine
