"""The tiny model of the server's tests."""

from tests.server.conftest import hearing, model

__all__ = ["hearing", "model"]
