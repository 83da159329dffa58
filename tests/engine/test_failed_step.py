"""An interrupted step leaves promised blocks unfilled: the survivors compute them again."""

from typing import Any

import msgspec
import pytest

from galley import SamplingParams
from galley.engine.engine import Engine
from galley.engine.loaders import load_engine
from galley.service.requests import expand
from galley.settings.engine import EngineSettings
from tests.conftest import CheckpointMaker

PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=12, ignore_eos=True)
BEAMS = SamplingParams(temperature=0.0, num_beams=3, max_tokens=12, ignore_eos=True)


def texts(engine: Engine, fails_at: int | None = None) -> dict[str, list[int]]:
    """Return each request's output if the executor is interrupted in a step and the engine continues."""
    for i, (length, params) in enumerate([(20, PARAMS), (40, BEAMS), (20, PARAMS)]):
        given = msgspec.structs.replace(params)
        engine.add(expand(list(range(3, 3 + length)), given, engine.info, request_id=f"r{i}")[0])
    submit: Any = engine._executor.submit
    got: dict[str, list[int]] = {}
    step = 0
    while engine.has_work:
        if step == fails_at:
            engine._executor.submit = _interrupted  # type: ignore[method-assign, assignment]
            with pytest.raises(KeyboardInterrupt):
                engine.step()
            engine._executor.submit = submit  # type: ignore[method-assign]
            engine.check_blocks()
        for output in engine.step():
            got.setdefault(output.request_id, []).extend(output.tokens)
        engine.check_blocks()
        step += 1
    return got


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("fails_at", [0, 1, 2, 5])
def test_texts_are_what_they_would_have_been(checkpoint: CheckpointMaker, fails_at: int) -> None:
    settings = EngineSettings(threads=1, kv_cache_tokens=1024, max_batch_tokens=48, max_running=8)
    folder = checkpoint("llama")
    expected = texts(load_engine(settings, folder))
    assert texts(load_engine(settings, folder), fails_at) == expected
