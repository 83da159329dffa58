"""Bodies of inference requests and answers: a JSON object, and binary tensor data after it.

The binary tensor data extension: the header :data:`HEADER_LENGTH` has the length of the JSON object, which
the bytes of the tensors whose parameters have ``binary_data_size`` follow, in the order of the tensors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, NotRequired, TypedDict

import msgspec

from galley.errors import RequestError
from galley.protocols.common.errors import naming_message
from galley.protocols.common.json_body import parse_json
from galley.protocols.common.validate import validate
from galley.protocols.oip.schemas import InferRequest, RequestParameters
from galley.protocols.oip.tensor_data import packed_bytes, tensor_of, values_of
from galley.types import Tensor
from galley.types.model_info import TensorInfo
from galley.types.tensors import ELEMENT_BYTES

HEADER_LENGTH: Final = "Inference-Header-Content-Length"

RAW: Final = "0"
"""The value of :data:`HEADER_LENGTH` of a body that is one tensor, without a JSON object."""


@dataclass(frozen=True)
class Inference:
    """A request: its JSON object, and its inputs with their data."""

    parsed: InferRequest
    inputs: Sequence[Tensor]


class ResponseTensor(TypedDict):
    """An output: its elements in row-major order, or their size where they follow the JSON object."""

    name: str
    datatype: str
    shape: list[int]
    data: NotRequired[list[Any]]
    parameters: NotRequired[dict[str, int]]


class InferResponse(TypedDict):
    """Answer to an inference request."""

    model_name: str
    model_version: str
    id: NotRequired[str]
    outputs: list[ResponseTensor]


class OipError(TypedDict):
    """Body of every answer with a status other than 2xx."""

    error: str


def parse(body: bytes | memoryview, header_length: str | None) -> Inference:
    """Parse the body of an inference request.

    Args:
        body: the body, of which the tensors after the JSON object are views.
        header_length: the value of the header :data:`HEADER_LENGTH`, if there is one.

    Raises:
        RequestError: the body is malformed, or a tensor's data are not as its type and shape say.
    """
    length = json_length(body, header_length)
    parsed = validate(InferRequest, parse_json(bytes(body[:length])))
    rest, place = memoryview(body)[length:], 0
    inputs = []
    for index, given in enumerate(parsed.inputs):
        size = given.parameters.binary_data_size
        part = None
        if size is not None:
            part = rest[place : place + size]
            place += size
        coded = given.parameters.content_type or parsed.parameters.content_type
        inputs.append(tensor_of(given, part, f"inputs[{index}]", base64=coded == "base64"))
    if place != len(rest):
        raise RequestError(
            f"{len(rest)} bytes follow the JSON object, and the binary_data_size of the inputs add up to "
            f"{place}",
            param="binary_data_size",
        )
    return Inference(parsed, inputs)


def parse_raw(data: bytes | memoryview, tensors: TensorInfo) -> Inference:
    """Return the request whose body is the data of the model's only input, and one row of it.

    All outputs are requested as binary data.

    Raises:
        RequestError: the model has several inputs, or its shape does not follow from the size.
    """
    if len(tensors.inputs) != 1:
        raise _no_raw(f"the model has {len(tensors.inputs)} inputs")
    [spec] = tensors.inputs
    shape = [1, *spec.shape[1:]] if tensors.batched else list(spec.shape)
    if spec.datatype == "BYTES":
        if prod(shape) != 1:
            raise _no_raw(f"its input has shape {shape}, and BYTES takes one element")
        data = packed_bytes([bytes(data)])
    elif shape.count(-1) > 1:
        raise _no_raw(f"its input has shape {shape}, with several axes of any length")
    elif -1 in shape:
        known = -prod(shape) * ELEMENT_BYTES[spec.datatype]
        shape[shape.index(-1)] = len(data) // known if known else 0
    outputs = RequestParameters(binary_data_output=True)
    tensor = Tensor(name=spec.name, datatype=spec.datatype, shape=tuple(shape), data=data)
    return Inference(InferRequest(inputs=[], parameters=outputs), [tensor])


def write(
    model: str, version: str, parsed: InferRequest, outputs: Sequence[Tensor]
) -> tuple[bytes, int | None]:
    """Return the body of an answer, and the length of its JSON object if other data follow it.

    Raises:
        RequestError: an output was requested as JSON, which cannot express its values.
    """
    default = parsed.parameters.binary_data_output
    wanted = {one.name: one.parameters.binary_data for one in parsed.outputs}
    tensors: list[ResponseTensor] = []
    parts: list[bytes | memoryview] = []
    for tensor in outputs:
        described: ResponseTensor = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
        }
        choice = wanted.get(tensor.name)
        if default if choice is None else choice:
            described["parameters"] = {"binary_data_size": len(tensor.data)}
            parts.append(tensor.data)
        else:
            described["data"] = values_of(tensor)
        tensors.append(described)
    answer: InferResponse = {"model_name": model, "model_version": version, "outputs": tensors}
    if parsed.id:
        answer["id"] = parsed.id
    head = msgspec.json.encode(answer)
    return b"".join([head, *parts]), len(head) if parts else None


def envelope(error: Exception) -> Mapping[str, Any]:
    """Return the error body in the protocol's form."""
    body: OipError = {"error": naming_message(error)}
    return body


def _no_raw(why: str) -> RequestError:
    return RequestError(
        f"{HEADER_LENGTH} is 0, so the body is one tensor alone, but {why}: describe the inputs in JSON",
        param=HEADER_LENGTH,
    )


def json_length(body: bytes | memoryview, header_length: str | None) -> int:
    """Return the length of the JSON object that begins a body. Raises RequestError if it has none."""
    if header_length is None:
        return len(body)
    length = int(header_length) if header_length.isdecimal() and len(header_length) < 20 else -1
    if not 0 < length <= len(body):
        raise RequestError(
            f"the header {HEADER_LENGTH} is {header_length[:40]!r}; it takes the length of the JSON object "
            f"at the beginning of the body, which has {len(body)} bytes",
            param=HEADER_LENGTH,
        )
    return length
