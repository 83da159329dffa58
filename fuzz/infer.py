"""Fuzz target: bodies of inference requests, as JSON and with binary tensor data.

The first line is the value of the header ``Inference-Header-Content-Length``, or empty without it; the rest
is the body. Accepted bodies are checked against a model that has an input of each data type, and written
as an answer with the same tensors.
"""

import json
import random
from typing import Final

import msgspec

from galley.errors import RequestError
from galley.protocols.oip.messages import HEADER_LENGTH, parse, write
from galley.protocols.oip.tensor_data import DATATYPES
from galley.service.tensor_requests import predict_request
from galley.types import Predict, TensorSpec
from galley.types.model_info import ModelInfo, TensorInfo

TOKENS: Final = (
    *DATATYPES,
    '"shape":[',
    '"data":[',
    '"datatype":"',
    '"binary_data_size":',
    HEADER_LENGTH,
)


def model_info() -> ModelInfo:
    """Return the description of a model that has an input and an output of each data type."""
    specs = tuple(
        TensorSpec(name=name, datatype=name, shape=(-1, -1), optional=True) for name in DATATYPES
    )
    return ModelInfo(
        name="m",
        path="",
        family="",
        tasks=("predict",),
        executor="",
        tensors=TensorInfo(inputs=specs, outputs=specs, batched=True),
    )


_INFO: Final = model_info()


def fuzz(data: bytes) -> None:
    """Parse a body; an accepted one must survive a round trip."""
    first, _, body = data.partition(b"\n")
    length = first.decode("latin-1") or None
    try:
        given = parse(body, length)
        request = predict_request(given.inputs, (), _INFO, request_id="r")
        assert isinstance(request.payload, Predict)
        answer, head = write("m", "1", given.parsed, request.payload.inputs)
    except RequestError:
        return
    parsed = json.loads(answer[:head])
    shapes = [tensor["shape"] for tensor in parsed["outputs"]]
    assert shapes == [list(tensor.shape) for tensor in request.payload.inputs]
    if head is None:
        return
    sizes = [
        tensor.get("parameters", {}).get("binary_data_size", 0) for tensor in parsed["outputs"]
    ]
    assert head + sum(sizes) == len(answer)


def mutate(data: bytes, source: random.Random) -> bytes | None:
    """Change a value of the JSON object, and correct the header for its new length."""
    first, _, body = data.partition(b"\n")
    head = int(first) if first.isdigit() else len(body)
    try:
        request = json.loads(body[:head])
        tensor = source.choice(request["inputs"])
        tensor[source.choice(["name", "datatype"])] = source.choice(DATATYPES)
        tensor["shape"] = [
            source.choice([0, 1, 2, 3, 2**31, 2**63]) for _ in range(source.randrange(4))
        ]
    except (ValueError, KeyError, IndexError, TypeError):
        return None
    made = msgspec.json.encode(request)
    return (b"%d" % len(made) if first else b"") + b"\n" + made + body[head:]
