"""Requests and answers of KServe's protocol, version 1, which is TensorFlow Serving's over REST.

Values come row by row, or input by input. A row is the value of the only input, or an object with a value
for each input; a prediction is the value of the only output, or an object with a value for each output. In
the column form, whole tensors take the place of a row's values.
"""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final, Literal, TypedDict

from galley.errors import RequestError
from galley.protocols.common.messages import Strict
from galley.protocols.oip.schemas import InferInput
from galley.protocols.oip.tensor_data import tensor_of, values_of
from galley.types import Tensor
from galley.types.model_info import TensorInfo

SUFFIX: Final = ":predict"

PATHS: Final = re.compile(r"/v1/models/.+(:predict|/metadata|/versions/[^/]+)|/v1/config(/.*)?")
"""The paths of the protocol, and those of OpenVINO Model Server next to them."""


class PredictRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /v1/models/{model}:predict`: rows, which are computed together, or whole inputs.

    `instances` is an array of rows; `inputs` is the value of the only input, or an object with a value for
    each. The only signature of a model is `serving_default`.
    """

    instances: list[Any] | None = None
    inputs: Any = None
    signature_name: Literal["", "serving_default"] = ""

    def __post_init__(self) -> None:
        if (self.instances is None) == (self.inputs is None):
            has = "neither {} nor {}" if self.instances is None else "both {} and {}"
            given = has.format("instances (rows)", "inputs (whole tensors)")
            raise RequestError(
                f"the request has {given}; give one of them",
                param="instances",
            )
        if self.instances == []:
            raise RequestError("instances is empty; give at least one row", param="instances")


class PredictResponse(TypedDict):
    """Answer to rows: a prediction for each."""

    predictions: list[Any]


class ColumnResponse(TypedDict):
    """Answer to whole inputs: the value of the only output, or an object with a value for each."""

    outputs: Any


def inputs_of(parsed: PredictRequest, tensors: TensorInfo) -> Sequence[Tensor]:
    """Return the values of a request as tensors of the model's inputs.

    Raises:
        RequestError: a row lacks an input, values have different shapes or are not of the input's type, or
            the model has no such input; the error names the row or the input.
    """
    names = [spec.name for spec in tensors.inputs]
    if parsed.instances is not None:
        columns, param = _columns(parsed.instances, names), "instances"
    else:
        columns, param = _named(parsed.inputs, names), "inputs"
    specs = {spec.name: spec for spec in tensors.inputs}
    made = []
    for name, column in columns.items():
        if name not in specs:
            raise RequestError(
                f"there is no input {name[:100]!r}; the model's inputs are {', '.join(specs)}",
                param=param,
            )
        datatype = specs[name].datatype
        shape, data = _flat(column, name, param)
        if datatype == "BYTES":
            data = [_text(value, name, param) for value in data]
        given = InferInput(name=name, shape=shape, datatype=datatype, data=data)
        made.append(tensor_of(given, None, param))
    return made


def _columns(rows: Sequence[Any], names: Sequence[str]) -> Mapping[str, Any]:
    """Return input -> its values in all rows; all must have the inputs of the first row."""
    columns: dict[str, list[Any]] = {}
    for index, row in enumerate(rows):
        values = row if isinstance(row, dict) and "b64" not in row else None
        if values is None:
            if len(names) != 1:
                raise _wrong(index, f"is not an object with the inputs {', '.join(names)}")
            values = dict.fromkeys(names, row)
        first = values.keys() if index == 0 else columns.keys()
        if values.keys() != first:
            raise _wrong(index, f"has the inputs {_listed(values)}; row 0 has {_listed(columns)}")
        for name, value in values.items():
            columns.setdefault(name, []).append(value)
    return columns


def _named(inputs: Any, names: Sequence[str]) -> Mapping[str, Any]:
    """Return input -> its whole tensor."""
    if isinstance(inputs, dict) and "b64" not in inputs:
        return inputs
    if len(names) != 1:
        raise RequestError(
            f"inputs is not an object with the inputs {', '.join(names)}", param="inputs"
        )
    return dict.fromkeys(names, inputs)


def answer_of(
    parsed: PredictRequest, outputs: Sequence[Tensor]
) -> PredictResponse | ColumnResponse:
    """Return the outputs in the form in which the request has its inputs.

    Raises:
        RequestError: JSON cannot express an output's values, or, for rows, it has not a value for each.
    """
    if parsed.instances is not None:
        return _predictions(outputs, len(parsed.instances))
    values = {tensor.name: _nested(values_of(tensor), tensor.shape) for tensor in outputs}
    if len(values) == 1:
        [only] = values.values()
        return {"outputs": only}
    return {"outputs": values}


def _predictions(outputs: Sequence[Tensor], rows: int) -> PredictResponse:
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


def _flat(value: Any, name: str, param: str) -> tuple[list[int], list[Any]]:
    """Return the shape of nested arrays of one length at each level, and their elements."""
    shape, level = list[int](), [value]
    while level and isinstance(level[0], list):
        length = len(level[0])
        if any(not isinstance(item, list) or len(item) != length for item in level):
            raise RequestError(f"input {name!r} has arrays of different lengths", param=param)
        shape.append(length)
        level = list(chain.from_iterable(level))
    return shape, level


def _nested(values: list[Any], shape: Sequence[int]) -> Any:
    """Return elements as arrays within arrays; that of a tensor without axes as it is."""
    if not shape:
        return values[0]
    for length in reversed(shape[1:]):
        if not length:
            return [[] for _ in range(shape[0])]
        values = [values[i : i + length] for i in range(0, len(values), length)]
    return values


def _text(value: Any, name: str, param: str) -> Any:
    """Return the text of ``{"b64": ...}``, or the value as it is."""
    if not (isinstance(value, Mapping) and value.keys() == {"b64"}):
        return value
    try:
        return base64.b64decode(value["b64"], validate=True).decode()
    except (binascii.Error, ValueError, TypeError):
        raise RequestError(
            f"input {name!r} has a b64 that is not the base64 of a text in UTF-8", param=param
        ) from None


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(sorted(names))[:200] or "none"


def _wrong(index: int, what: str) -> RequestError:
    return RequestError(f"row {index} {what}", param=f"instances[{index}]")
