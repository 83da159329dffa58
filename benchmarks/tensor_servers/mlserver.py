"""MLServer: its own runtime for XGBoost, and one for ONNX, of which it has none."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tensor_servers.models import DELAY, MOST, PIXELS, session

try:
    from mlserver import MLModel
    from mlserver.codecs import Base64Codec, NumpyCodec
    from mlserver.types import InferenceRequest, InferenceResponse
except ImportError:  # the module is also looked at where MLServer is not installed
    MLModel = object


class OnnxModel(MLModel):  # type: ignore[misc]
    """A model of onnxruntime."""

    async def load(self) -> bool:
        """Load the file of the settings."""
        self._session = session(Path(self.settings.parameters.uri))
        return True

    async def predict(self, payload: "InferenceRequest") -> "InferenceResponse":
        """Compute all outputs."""
        given = {one.name: _array(one) for one in payload.inputs}
        names = [output.name for output in self._session.get_outputs()]
        arrays = self._session.run(names, given)
        outputs = [NumpyCodec.encode_output(n, a) for n, a in zip(names, arrays, strict=True)]
        return InferenceResponse(model_name=self.name, outputs=outputs)


def _array(given: Any) -> Any:
    """Return an input; pixels come in base64, since MLServer takes no binary data over HTTP."""
    if given.datatype != "BYTES":
        return NumpyCodec.decode_input(given)
    rows = [np.frombuffer(row, np.float32) for row in Base64Codec.decode_input(given)]
    return np.stack(rows).reshape(-1, *PIXELS)


def _configure(folder: Path, port: int) -> Path:
    """Write MLServer's settings next to the models, and return their folder."""
    target = folder / "mlserver"
    own: dict[str, Any] = {
        # Without processes of its own, whose queues cost more than these models.
        "parallel_workers": 0,
        "host": "127.0.0.1",
        "http_port": port,
        "grpc_port": port + 1,
        "metrics_port": port + 2,
        "debug": False,
    }
    implementations = {
        "trees": ("mlserver_xgboost.XGBoostModel", "trees.json"),
        "text": ("benchmarks.tensor_servers.mlserver.OnnxModel", "text.onnx"),
        "image": ("benchmarks.tensor_servers.mlserver.OnnxModel", "image.onnx"),
    }
    for name, (implementation, file) in implementations.items():
        (target / name).mkdir(parents=True, exist_ok=True)
        model = {
            "name": name,
            "implementation": implementation,
            "parameters": {"uri": str(folder / file)},
            "max_batch_size": MOST,
            "max_batch_time": DELAY,
        }
        (target / name / "model-settings.json").write_text(json.dumps(model))
    (target / "settings.json").write_text(json.dumps(own))
    return target


if __name__ == "__main__":
    configured = _configure(Path(sys.argv[1]).resolve(), int(sys.argv[2]))
    program = Path(sys.executable).with_name("mlserver")
    os.execv(program, ["mlserver", "start", str(configured)])
