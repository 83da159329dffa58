"""Ray Serve, with a deployment for each model."""

import signal
import sys
from pathlib import Path
from typing import Any

import ray
from ray import serve

from benchmarks.tensor_servers.models import DELAY, MODELS, MOST


@serve.deployment(max_ongoing_requests=256, ray_actor_options={"num_cpus": 0.2})
class Model:
    """One model."""

    def __init__(self, name: str, folder: str) -> None:
        self._model = MODELS[name](Path(folder))

    @serve.batch(max_batch_size=MOST, batch_wait_timeout_s=DELAY)  # type: ignore[untyped-decorator]
    async def _batch(self, rows: list[Any]) -> list[Any]:
        found: list[Any] = self._model(rows)
        return found

    async def __call__(self, request: Any) -> dict[str, Any]:
        """Answer a request over HTTP."""
        return {"y": await self._batch((await request.json())["x"])}


if __name__ == "__main__":
    ray.init(
        "local",
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=2**27,
        log_to_driver=False,
    )
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[2])})
    for name in MODELS:
        bound: Any = Model
        serve.run(bound.bind(name, sys.argv[1]), name=name, route_prefix=f"/{name}")
    signal.pause()
