"""A loaded embedding engine, and its results for token ids."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from galley.engine.embedding_engine import EmbeddingEngine
from galley.engine.loaders import load
from galley.service.vector_requests import vector_request
from galley.settings.engine import EngineSettings
from galley.types import Vector

Floats = npt.NDArray[np.float32]


def loaded(folder: Path, **settings: Any) -> EmbeddingEngine:
    """Load the engine of a folder, on one thread."""
    options = {"threads": 1, "weight_cache": False, **settings}
    engine = load(EngineSettings(**options), folder)
    assert isinstance(engine, EmbeddingEngine)
    return engine


def vectors_of(
    engine: EmbeddingEngine,
    prompts: Sequence[list[int]],
    *,
    seconds: Sequence[int] = (),
    dimensions: int = 0,
) -> list[Floats]:
    """Return the vector of each text; all are added to the engine at once."""
    for i, ids in enumerate(prompts):
        second = seconds[i] if seconds else 0
        name, info = f"text-{i}", engine.info
        engine.add(vector_request(ids, info, request_id=name, second=second, dimensions=dimensions))
    found: dict[str, bytes] = {}
    while engine.has_work:
        for output in engine.step():
            assert output.finish_reason == "stop"
            assert isinstance(output.result, Vector)
            found[output.request_id] = output.result.data
    return [np.frombuffer(found[f"text-{i}"], np.float32) for i in range(len(prompts))]


def cosine(a: Floats, b: Floats) -> float:
    """Return the cosine of the angle between two vectors."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))
