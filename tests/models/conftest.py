from collections.abc import Callable, Iterator
from typing import Any

import pytest

from galley.llm.local import LocalEngine
from galley.settings.engine import EngineSettings
from tests.conftest import CheckpointMaker
from tests.engines import native


@pytest.fixture
def speech(checkpoint: CheckpointMaker) -> Iterator[Callable[..., LocalEngine]]:
    """A function that makes engines, which are closed after the test."""
    made: list[LocalEngine] = []

    def make(variant: str = "whisper", **changes: Any) -> LocalEngine:
        folder = checkpoint(variant)
        options = {"executor": "reference", "threads": 1, "kv_cache_tokens": 1024, **changes}
        made.append(LocalEngine(EngineSettings(model=str(folder), **options)))
        return made[-1]

    yield make
    for engine in made:
        assert engine.engine.stats.kv_used_blocks == 0
        native(engine.engine).check_blocks()
        engine.close()
