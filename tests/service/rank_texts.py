"""Requests to a model in several processes, and the texts that one process makes of them."""

from pathlib import Path
from typing import Any

from galley import SamplingParams
from galley.engine.loaders import load_engine
from galley.service.requests import expand
from galley.service.streams import OutputStream
from galley.settings.engine import EngineSettings
from galley.types import EngineRequest
from galley.types.model_info import ModelInfo


def settings(folder: Path, **more: Any) -> EngineSettings:
    return EngineSettings(model=str(folder), threads=1, kv_cache_tokens=4096, **more)


def requests(info: ModelInfo, count: int, tokens: int) -> list[EngineRequest]:
    """Return ``count`` requests for so many tokens each, drawn at random."""
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=tokens, ignore_eos=True)
    return [expand([5, 6, i], params, info, request_id=f"r{i}")[0] for i in range(count)]


def texts_of_one_process(folder: Path, count: int, tokens: int, **more: Any) -> list[list[int]]:
    engine = load_engine(settings(folder, **more), folder)
    made = requests(engine.info, count, tokens)
    texts: dict[str, list[int]] = {one.id: [] for one in made}
    for one in made:
        engine.add(one)
    while engine.has_work:
        for output in engine.step():
            texts[output.request_id] += output.tokens
    return list(texts.values())


async def tokens_of(stream: OutputStream) -> list[int]:
    return [token async for output in stream for token in output.tokens]
