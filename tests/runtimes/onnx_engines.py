"""Engines of ONNX models in the test's own process, and requests to them as arrays."""

from pathlib import Path
from typing import Any

from galley.runtimes.arrays import to_array, to_tensor
from galley.runtimes.onnx import load
from galley.runtimes.tensor_engine import TensorEngine
from galley.service.tensor_requests import predict_request
from galley.settings.engine import EngineSettings
from galley.types import Output, Tensors

Arrays = dict[str, Any]


def engine_of(path: Path, options: str = "", **settings: Any) -> TensorEngine:
    return load(
        EngineSettings(model=str(path), threads=1, engine_options=options, **settings), path
    )


def add(engine: TensorEngine, name: str, inputs: Arrays, *outputs: str, **envelope: Any) -> None:
    tensors = [to_tensor(key, array) for key, array in inputs.items()]
    request = predict_request(tensors, outputs, engine.info, request_id=name, **envelope)
    engine.add(request)


def arrays_of(output: Output) -> Arrays:
    assert isinstance(output.result, Tensors), output
    return {tensor.name: to_array(tensor) for tensor in output.result.outputs}


def steps(engine: TensorEngine) -> tuple[dict[str, Output], list[int]]:
    """Return all outputs by request, and the rows of each batch."""
    outputs: dict[str, Output] = {}
    rows: list[int] = []
    while engine.has_work:
        outputs |= {output.request_id: output for output in engine.step()}
        rows.append(engine.stats.batch_tokens)
    return outputs, rows
