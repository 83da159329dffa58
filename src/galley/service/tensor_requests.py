"""Checks named tensors against a model's inputs and converts them to an engine request."""

import struct
from collections.abc import Collection, Sequence
from typing import Final

from galley.errors import RequestError
from galley.service.requests import check_task
from galley.types import EngineRequest, Predict, Tensor, TensorSpec
from galley.types.model_info import ModelInfo, TensorInfo
from galley.types.tensors import ELEMENT_BYTES, MOST_BYTES

MOST_AXES: Final = 32
"""The most axes of a tensor: numpy's limit before version 2."""

MOST_LENGTH: Final = 2**31 - 1
"""The greatest length of an axis; without a limit, an empty tensor could have axes of any length."""

_LENGTH: Final = struct.Struct("<I")


def predict_request(
    inputs: Sequence[Tensor],
    outputs: Sequence[str],
    info: ModelInfo,
    *,
    request_id: str,
    priority: int = 0,
) -> EngineRequest:
    """Return a request for the outputs that a model computes from ``inputs``.

    Args:
        inputs: each of the model's inputs once, in any order; optional ones may be left out.
        outputs: names of the outputs to return, in this order; empty: all.
        info: description of the model.
        request_id: unique.
        priority: a lower value is scheduled sooner.

    Raises:
        RequestError: the model has no such task, inputs or outputs, or a tensor has another data type,
            shape or size than the model requires; the error names the tensor.
    """
    check_task(info, "predict")
    tensors = info.tensors
    assert tensors is not None, "a model that predicts has tensors"
    check_names("input", [tensor.name for tensor in inputs], [one.name for one in tensors.inputs])
    given = {tensor.name: tensor for tensor in inputs}
    for spec in tensors.inputs:
        tensor = given.get(spec.name)
        if tensor is not None:
            _check_tensor(tensor, spec)
        elif not spec.optional:
            raise RequestError(
                f"input {spec.name!r} is missing; {info.name} takes {_described(tensors.inputs)}",
                param="inputs",
            )
    size = sum(len(tensor.data) for tensor in inputs)
    if size > MOST_BYTES:
        raise RequestError(
            f"the inputs have {size} bytes; at most {MOST_BYTES} are accepted", param="inputs"
        )
    check_names("output", outputs, [one.name for one in tensors.outputs])
    payload = Predict(
        inputs=tuple(given[spec.name] for spec in tensors.inputs if spec.name in given),
        outputs=tuple(outputs),
        rows=_rows(inputs, tensors),
    )
    return EngineRequest(id=request_id, payload=payload, priority=priority)


def check_names(kind: str, names: Sequence[str], known: Collection[str]) -> None:
    """Raise RequestError for a name that the model does not have, or that is given twice.

    Args:
        kind: "input" or "output".
        names: the request's names.
        known: the model's names.
    """
    for index, name in enumerate(names):
        if name not in known:
            raise RequestError(
                f"there is no {kind} {name[:100]!r}; the model's {kind}s are "
                f"{', '.join(map(repr, known))}",
                param=f"{kind}s",
            )
        if name in names[:index]:
            raise RequestError(f"{kind} {name!r} is given twice", param=f"{kind}s")


def _check_tensor(tensor: Tensor, spec: TensorSpec) -> None:
    if tensor.datatype != spec.datatype:
        raise _wrong(tensor, f"has data type {tensor.datatype}; it takes {spec.datatype}")
    fits = len(tensor.shape) == len(spec.shape) and all(
        0 <= length <= MOST_LENGTH and wanted in (-1, length)
        for length, wanted in zip(tensor.shape, spec.shape, strict=True)
    )
    if not fits or len(tensor.shape) > MOST_AXES:
        raise _wrong(tensor, f"has shape {list(tensor.shape)}; it takes {list(spec.shape)}")
    if tensor.datatype == "BYTES":
        _check_bytes(tensor)
        return
    needed = tensor.elements * ELEMENT_BYTES[tensor.datatype]
    if len(tensor.data) != needed:
        raise _wrong(
            tensor,
            f"has {len(tensor.data)} bytes; shape {list(tensor.shape)} of {tensor.datatype} has {needed}",
        )
    if tensor.datatype == "BOOL" and bytes(tensor.data).translate(None, b"\0\1"):
        raise _wrong(tensor, "has a BOOL that is neither 0 nor 1")


def _check_bytes(tensor: Tensor) -> None:
    """Raise RequestError unless the data is as many elements, each after its length, as the shape has."""
    data, wanted = tensor.data, tensor.elements
    place = count = 0
    while place + _LENGTH.size <= len(data) and count < wanted:
        place += _LENGTH.size + _LENGTH.unpack_from(data, place)[0]
        count += 1
    if place != len(data) or count != wanted:
        raise _wrong(
            tensor,
            f"has {len(data)} bytes, which are not {wanted} elements of BYTES, each a length of 4 bytes "
            "(little-endian) and that many bytes",
        )


def _rows(inputs: Sequence[Tensor], tensors: TensorInfo) -> int:
    """Return the length of the batch axis, which all inputs share; 1 for a model without one.

    Raises:
        RequestError: the inputs' lengths differ, or one is 0 or above ``max_batch_size``.
    """
    if not tensors.batched or not inputs:
        return 1
    first = inputs[0]
    for tensor in inputs:
        rows = tensor.shape[0]
        if rows != first.shape[0]:
            raise _wrong(
                tensor,
                f"has {rows} rows and input {first.name!r} has {first.shape[0]}; the first axis is the "
                "batch, of the same length in all inputs",
            )
        if rows < 1 or rows > (tensors.max_batch_size or rows):
            most = tensors.max_batch_size or "any number"
            raise _wrong(tensor, f"has {rows} rows; the model takes 1 to {most} in a request")
    return first.shape[0]


def _described(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.name!r} ({spec.datatype}, {list(spec.shape)})" for spec in specs)


def _wrong(tensor: Tensor, what: str) -> RequestError:
    return RequestError(f"input {tensor.name!r} {what}", param="inputs")
