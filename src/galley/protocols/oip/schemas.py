"""Requests of the Open Inference Protocol."""

from typing import Annotated, Any, Literal

import msgspec

from galley.protocols.common.messages import Strict

_MOST_TENSORS = 1024


class InputParameters(Strict, frozen=True, kw_only=True):
    """`parameters` of an input. With `binary_data_size`, its data follow the JSON object.

    `content_type` is MLServer's: of `np` and `str`, elements are as they are without it; those of `base64`
    are decoded.
    """

    binary_data_size: Annotated[int, msgspec.Meta(ge=0)] | None = None
    content_type: Literal["np", "str", "base64"] | None = None


class OutputParameters(Strict, frozen=True, kw_only=True):
    """`parameters` of a requested output."""

    binary_data: bool | None = None


class RequestParameters(Strict, frozen=True, kw_only=True):
    """`parameters` of a request.

    `binary_data_output` is the default of outputs that do not say how they are returned. A lower
    `priority` is computed sooner. `timeout` is in microseconds from the arrival. `content_type` is
    that of inputs without one.
    """

    binary_data_output: bool = False
    priority: Annotated[int, msgspec.Meta(ge=0)] = 0
    timeout: Annotated[int, msgspec.Meta(ge=1)] | None = None
    content_type: Literal["np", "str", "base64"] | None = None


class InferInput(Strict, frozen=True, kw_only=True):
    """An input: `data` is an array of its elements, nested or not, in row-major order."""

    name: str
    shape: Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(max_length=32)]
    datatype: str
    parameters: InputParameters = InputParameters()
    data: list[Any] | None = None


class InferOutput(Strict, frozen=True, kw_only=True):
    """An output to return."""

    name: str
    parameters: OutputParameters = OutputParameters()


class InferRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /v2/models/{model}/infer`, or the JSON object at its beginning.

    `model_name`, if it is given, has to be the model of the path.
    """

    id: str = ""
    model_name: str = ""
    parameters: RequestParameters = RequestParameters()
    inputs: Annotated[list[InferInput], msgspec.Meta(max_length=_MOST_TENSORS)]
    outputs: Annotated[tuple[InferOutput, ...], msgspec.Meta(max_length=_MOST_TENSORS)] = ()


class IndexRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /v2/repository/index`. With `ready`, only models that answer requests are listed."""

    ready: bool = False


class LoadRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /v2/repository/models/{model}/load`: files and configuration are those on disk."""


class UnloadParameters(Strict, frozen=True, kw_only=True):
    """`parameters` of a request to unload. No model depends on another."""

    unload_dependents: bool = False


class UnloadRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /v2/repository/models/{model}/unload`."""

    parameters: UnloadParameters = UnloadParameters()
