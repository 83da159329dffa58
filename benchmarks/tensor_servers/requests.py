"""The requests that each server gets, and what the library alone answers to them."""

import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.tensor_servers.files import FEATURES, TOKENS, VOCABULARY
from benchmarks.tensor_servers.models import PIXELS, Trees, session

MODELS: Final = ("trees", "text", "image")
INPUTS: Final = {"trees": "input", "text": "ids", "image": "pixels"}
BINARY: Final = "Inference-Header-Content-Length"


class Request(NamedTuple):
    """A request, whose body is encoded once."""

    path: str
    body: bytes
    headers: Mapping[str, str]


def inputs(model: str, rows: int = 1) -> "np.ndarray[Any, Any]":
    """Return the input of a request."""
    source = np.random.default_rng(1)
    if model == "trees":
        return source.normal(size=(rows, FEATURES)).astype(np.float32)
    if model == "text":
        return source.integers(999, VOCABULARY, (rows, TOKENS))
    return source.normal(size=(rows, *PIXELS)).astype(np.float32)


def protocol_request(model: str, array: "np.ndarray[Any, Any]", *, binary: bool) -> Request:
    """Return a request of the Open Inference Protocol, its tensor as JSON or after the JSON."""
    datatype = {"f": "FP32", "i": "INT64"}[array.dtype.kind]
    tensor: dict[str, Any] = {
        "name": INPUTS[model],
        "shape": list(array.shape),
        "datatype": datatype,
    }
    path = f"/v2/models/{model}/infer"
    if not binary:
        body = json.dumps({"inputs": [tensor | {"data": array.ravel().tolist()}]}).encode()
        return Request(path, body, {})
    data = array.tobytes()
    tensor["parameters"] = {"binary_data_size": len(data)}
    described = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    head = json.dumps(described).encode()
    return Request(path, head + data, {BINARY: str(len(head))})


def request_for(server: str, model: str) -> Request:
    """Return a request with one row, in the form that costs the server least."""
    array = inputs(model)
    encoded = base64.b64encode(array.tobytes()).decode()
    if server == "mlserver" and model == "image":
        tensor = {"name": INPUTS[model], "shape": [1], "datatype": "BYTES", "data": [encoded]}
        described = {"inputs": [tensor | {"parameters": {"content_type": "base64"}}]}
        return Request(f"/v2/models/{model}/infer", json.dumps(described).encode(), {})
    if server in ("galley", "mlserver"):
        return protocol_request(model, array, binary=model == "image")
    row = encoded if model == "image" else array[0].tolist()
    value = [row] if server == "bento" else row
    return Request(f"/{model}", json.dumps({"x": value}).encode(), {})


def alone(folder: Path, model: str) -> Callable[["np.ndarray[Any, Any]"], Any]:
    """Return a function that runs the library alone in this process, with one thread."""
    if model == "trees":
        booster = Trees(folder).booster
        return lambda array: booster.inplace_predict(array)
    one = session(folder / f"{model}.onnx")
    return lambda array: one.run(None, {INPUTS[model]: array})[0]
