"""BentoML, with a batchable API for each model."""

import os
import sys
from pathlib import Path
from typing import Any

import bentoml

from benchmarks.tensor_servers.models import MOST, Image, Text, Trees

_BATCHED: dict[str, Any] = {"batchable": True, "max_batch_size": MOST, "max_latency_ms": 10_000}
"""The dispatcher finds the wait itself; requests that would take longer than the bound are refused."""


@bentoml.service(workers=1, traffic={"timeout": 60})
class Models:
    """All models in one worker."""

    def __init__(self) -> None:
        folder = Path(os.environ["MODELS"])
        self._trees, self._text, self._image = Trees(folder), Text(folder), Image(folder)

    @bentoml.api(**_BATCHED)  # type: ignore[untyped-decorator]
    def trees(self, x: list[list[float]]) -> list[float]:
        """Score rows."""
        return self._trees(x)

    @bentoml.api(**_BATCHED)  # type: ignore[untyped-decorator]
    def text(self, x: list[list[int]]) -> list[list[float]]:
        """Embed texts."""
        return self._text(x)

    @bentoml.api(**_BATCHED)  # type: ignore[untyped-decorator]
    def image(self, x: list[str]) -> list[list[float]]:
        """Classify images."""
        return self._image(x)


if __name__ == "__main__":
    os.environ["MODELS"] = sys.argv[1]
    os.execv(
        Path(sys.executable).with_name("bentoml"),
        [
            *("bentoml", "serve", "benchmarks.tensor_servers.bento:Models"),
            *("--host", "127.0.0.1", "--port", sys.argv[2]),
        ],
    )
