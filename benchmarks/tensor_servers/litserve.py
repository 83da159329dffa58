"""LitServe, with an API for each model."""

import sys
from pathlib import Path
from typing import Any

import litserve

from benchmarks.tensor_servers.models import DELAY, MODELS, MOST


class _Api(litserve.LitAPI):  # type: ignore[misc]
    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(api_path=f"/{name}", max_batch_size=MOST, batch_timeout=DELAY)
        self._name, self._folder = name, folder

    def setup(self, device: str) -> None:
        del device
        self._model = MODELS[self._name](self._folder)

    def decode_request(self, request: dict[str, Any]) -> Any:
        return request["x"]

    def batch(self, inputs: list[Any]) -> list[Any]:
        return inputs

    def predict(self, x: list[Any]) -> list[Any]:
        found: list[Any] = self._model(x)
        return found

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def encode_response(self, output: Any) -> dict[str, Any]:
        return {"y": output}


if __name__ == "__main__":
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    apis = [_Api(name, folder) for name in MODELS]
    server = litserve.LitServer(apis, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="warning")
