"""Fuzz target: messages of the Open Inference Protocol's gRPC service.

The first byte chooses the call; the rest is its request. An accepted one becomes a request over HTTP. That
of ModelInfer is parsed there, checked against a model that has an input of each data type, and answered
with the same tensors.
"""

import random
from typing import Final

from fuzz.infer import model_info
from galley.errors import RequestError
from galley.protocols.common.json_body import parse_json
from galley.protocols.oip.grpc_calls import CALLS, HttpResponse
from galley.protocols.oip.messages import HEADER_LENGTH, parse, write
from galley.protocols.oip.tensor_data import DATATYPES
from galley.service.tensor_requests import predict_request
from galley.types import Predict

NAMES: Final = tuple(CALLS)
TOKENS: Final = (*DATATYPES, "binary_data", "timeout", "priority", "shared_memory_region", "m", "1")

_INFO: Final = model_info()
_SHAPES: Final = (0, 1, 2, 3, -1, 2**31, 2**63 - 1)


def fuzz(data: bytes) -> None:
    """Read a message; an accepted inference must survive a round trip."""
    if not data:
        return
    name = NAMES[data[0] % len(NAMES)]
    try:
        request = CALLS[name].read(data[1:])
        if name != "ModelInfer":
            assert not request.body or parse_json(request.body) is not None
            return
        head = request.headers[HEADER_LENGTH.lower()]
        given = parse(request.body, head)
        made = predict_request(given.inputs, (), _INFO, request_id="r")
        assert isinstance(made.payload, Predict)
        body, length = write("m", "1", given.parsed, made.payload.inputs)
    except RequestError as error:
        str(error).encode()
        return
    headers = {} if length is None else {HEADER_LENGTH.lower(): str(length)}
    response = CALLS[name].from_http(HttpResponse(200, headers, body))
    sent = [tensor.data for tensor in made.payload.inputs]
    assert list(response.raw_output_contents) == sent


def mutate(data: bytes, source: random.Random) -> bytes | None:
    """Change data types, shapes and elements of an inference."""
    if not data or NAMES[data[0] % len(NAMES)] != "ModelInfer":
        return None
    call = CALLS["ModelInfer"].request
    try:
        message = call.FromString(data[1:])
    except Exception:  # protobuf's DecodeError, by whichever of its implementations
        return None
    if not message.inputs:
        return None
    tensor = source.choice(message.inputs)
    tensor.name = tensor.datatype = source.choice(DATATYPES)
    del tensor.shape[:]
    tensor.shape.extend(source.choice(_SHAPES) for _ in range(source.randrange(4)))
    if message.raw_input_contents and source.random() < 0.5:
        size = source.choice((0, 1, 2, 4, 8, 24))
        message.raw_input_contents[0] = source.randbytes(size)
    changed: bytes = data[:1] + message.SerializeToString()
    return changed
