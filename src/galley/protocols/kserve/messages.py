"""Requests and answers of KServe's protocol, version 1: rows of values, as TensorFlow Serving has them.

A row is the value of the only input, or an object with a value for each input; a prediction is the value of
the only output, or an object with a value for each output.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, TypedDict

import msgspec

from galley.errors import RequestError
from galley.protocols.common.messages import Strict
from galley.protocols.oip.schemas import InferInput
from galley.protocols.oip.tensor_data import tensor_of, values_of
from galley.types import Tensor
from galley.types.model_info import TensorInfo

SUFFIX = ":predict"


class PredictRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /v1/models/{model}:predict`: `instances` are rows, which are computed together."""

    instances: Annotated[list[Any], msgspec.Meta(min_length=1)]


class PredictResponse(TypedDict):
    """Answer: a prediction for each row."""

    predictions: list[Any]


def inputs_of(parsed: PredictRequest, tensors: TensorInfo) -> Sequence[Tensor]:
    """Return the rows of a request as tensors of the model's inputs.

    Raises:
        RequestError: a row lacks an input, its values have other shapes than those of the first row, or are
            not of the input's type; the error names the row.
    """
    specs = {spec.name: spec for spec in tensors.inputs}
    columns: dict[str, list[Any]] = {}
    for index, row in enumerate(parsed.instances):
        values = row if isinstance(row, dict) and "b64" not in row else None
        if values is None:
            if len(specs) != 1:
                raise _wrong(index, f"is not an object with the inputs {', '.join(specs)}")
            values = dict.fromkeys(specs, row)
        first = values.keys() if index == 0 else columns.keys()
        if values.keys() != first:
            raise _wrong(index, f"has the inputs {_listed(values)}; row 0 has {_listed(columns)}")
        for name, value in values.items():
            columns.setdefault(name, []).append(value)
    made = []
    for name, column in columns.items():
        if name not in specs:
            raise RequestError(
                f"there is no input {name[:100]!r}; the model's inputs are {', '.join(specs)}",
                param="instances",
            )
        datatype = specs[name].datatype
        shape, data = _flat(column, name)
        if datatype == "BYTES":
            data = [_text(value, name) for value in data]
        given = InferInput(name=name, shape=shape, datatype=datatype, data=data)
        made.append(tensor_of(given, None, "instances"))
    return made


def predictions_of(outputs: Sequence[Tensor], rows: int) -> PredictResponse:
    """Return the outputs as predictions.

    Raises:
        RequestError: an output does not have a value for each row, or JSON cannot express its values.
    """
    columns: dict[str, list[Any]] = {}
    for tensor in outputs:
        if tensor.shape[:1] != (rows,):
            raise RequestError(
                f"output {tensor.name!r} has shape {list(tensor.shape)}, and no value for each of {rows} "
                "rows: use /v2/models/M/infer",
                param="instances",
            )
        columns[tensor.name] = _nested(values_of(tensor), tensor.shape)
    if len(columns) == 1:
        [only] = columns.values()
        return {"predictions": only}
    return {"predictions": [{n: column[i] for n, column in columns.items()} for i in range(rows)]}


def _flat(column: list[Any], name: str) -> tuple[list[int], list[Any]]:
    """Return the shape of nested arrays of one length at each level, and their elements."""
    shape, level = [len(column)], column
    while level and isinstance(level[0], list):
        length = len(level[0])
        if any(not isinstance(item, list) or len(item) != length for item in level):
            raise RequestError(
                f"the rows of input {name!r} have arrays of different lengths", param="instances"
            )
        shape.append(length)
        level = list(chain.from_iterable(level))
    return shape, level


def _nested(values: list[Any], shape: Sequence[int]) -> list[Any]:
    for length in reversed(shape[1:]):
        if not length:
            return [[] for _ in range(shape[0])]
        values = [values[i : i + length] for i in range(0, len(values), length)]
    return values


def _text(value: Any, name: str) -> Any:
    """Return the text of ``{"b64": ...}``, or the value as it is."""
    if not (isinstance(value, Mapping) and value.keys() == {"b64"}):
        return value
    try:
        return base64.b64decode(value["b64"], validate=True).decode()
    except (binascii.Error, ValueError, TypeError):
        raise RequestError(
            f"input {name!r} has a b64 that is not the base64 of a text in UTF-8", param="instances"
        ) from None


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names))[:200] or "none"


def _wrong(index: int, what: str) -> RequestError:
    return RequestError(f"row {index} {what}", param=f"instances[{index}]")
