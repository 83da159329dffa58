"""A tensor engine without a vocabulary: ``y`` is twice ``x``, for all waiting requests in one step."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from galley.settings.engine import EngineSettings
from galley.types import EngineRequest, Output, Predict, Tensors, TensorSpec
from galley.types.engine_stats import EngineStats
from galley.types.model_info import ModelInfo, TensorInfo


class Doubler:
    is_live = False

    def __init__(self, info: ModelInfo) -> None:
        self.info = info
        self._waiting: dict[str, EngineRequest] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

    @property
    def stats(self) -> EngineStats:
        return EngineStats(waiting=len(self._waiting))

    def add(self, request: EngineRequest) -> None:
        self._waiting[request.id] = request

    def abort(self, request_ids: Iterable[str]) -> None:
        self._waiting = {k: v for k, v in self._waiting.items() if k not in request_ids}

    def step(self) -> list[Output]:
        requests, self._waiting = [*self._waiting.values()], {}
        return [Output(request_id=r.id, result=_doubled(r), finish_reason="stop") for r in requests]

    def close(self) -> None: ...


def _doubled(request: EngineRequest) -> Tensors:
    assert isinstance(request.payload, Predict)
    [x] = request.payload.inputs
    data = (2 * np.frombuffer(x.data, "<f4")).tobytes()
    return Tensors((msgspec.structs.replace(x, name="y", data=data),))


def load(settings: EngineSettings, folder: Path, **hooks: Any) -> Doubler:
    x, y = (TensorSpec(name=name, datatype="FP32", shape=(-1, 3)) for name in "xy")
    tensors = TensorInfo(
        inputs=(x,), outputs=(y,), batched=True, max_batch_size=8, platform="numpy"
    )
    about: dict[str, Any] = {"family": "double", "executor": "numpy", "tensors": tensors}
    return Doubler(ModelInfo(name="doubler", path=str(folder), tasks=("predict",), **about))
