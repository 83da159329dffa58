"""A request with the id of an unfinished one is refused, and the unfinished one goes on as if alone."""

import msgspec
import pytest

from galley import SamplingParams
from galley.engine.engine import Engine
from galley.engine.loaders import load_engine
from galley.errors import Conflict
from galley.grammar.check import check
from galley.grammar.vocabulary import load_vocabulary
from galley.service.requests import expand
from galley.settings.engine import EngineSettings
from galley.types import EngineRequest, Grammar
from tests.conftest import CheckpointMaker

PLAIN = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
WORD = SamplingParams(temperature=0.0, max_tokens=40, grammar=Grammar("regex", "[a-z]{30}"))


def made(engine: Engine, params: SamplingParams) -> EngineRequest:
    return expand([5, 6, 7], params, engine.info, request_id="r")[0]


def text(engine: Engine, params: SamplingParams, steps_before: int | None = None) -> list[int]:
    """Return a request's tokens; after this many steps, another one with its id arrives."""
    engine.add(made(engine, params))
    tokens: list[int] = []
    steps = 0
    while engine.has_work:
        if steps == steps_before:
            with pytest.raises(Conflict, match="a request with the id 'r-0' is unfinished"):
                engine.add(made(engine, params))
        tokens += [token for output in engine.step() for token in output.tokens]
        steps += 1
    assert steps > (steps_before or 0)
    engine.check_blocks()
    return tokens


@pytest.mark.parametrize("params", [PLAIN, WORD], ids=["plain", "grammar"])
def test_only_the_first_runs(checkpoint: CheckpointMaker, params: SamplingParams) -> None:
    folder = checkpoint("llama")
    if params.grammar is not None:
        checked = check(params.grammar, load_vocabulary(folder), "regex")
        params = msgspec.structs.replace(params, grammar=checked)
    engine = load_engine(EngineSettings(threads=1, kv_cache_tokens=1024), folder)
    alone = text(engine, params)
    assert alone
    # A grammar is still being compiled before the first step.
    assert text(engine, params, 0) == text(engine, params, 1) == alone
