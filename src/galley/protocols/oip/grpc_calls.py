"""Calls of the Open Inference Protocol's gRPC service, each as a request of the same protocol over HTTP.

Both ways therefore share the routes, and with them keys, limits, deadlines, logs, metrics and errors.
"""

import struct
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final, NamedTuple

import msgspec

from galley.errors import RequestError
from galley.formats.declared_messages import CHOICE
from galley.protocols.oip.grpc_messages import PACKAGE, classes
from galley.protocols.oip.messages import HEADER_LENGTH
from galley.protocols.oip.tensor_data import DATATYPES, packed, packed_bytes

SERVICE: Final = f"{PACKAGE}.GRPCInferenceService"

UNSERVED: Final = (
    *("ModelConfig", "ModelStatistics", "TraceSetting", "LogSettings"),
    *(f"{kind}SharedMemoryStatus" for kind in ("System", "Cuda")),
    *(f"{kind}SharedMemoryRegister" for kind in ("System", "Cuda")),
    *(f"{kind}SharedMemoryUnregister" for kind in ("System", "Cuda")),
)
"""Triton's calls that are refused by name."""

TENSORFLOW_SERVING: Final = {
    "tensorflow.serving.PredictionService": (
        *("Predict", "GetModelMetadata"),
        *("Classify", "Regress", "MultiInference"),
    ),
    "tensorflow.serving.ModelService": ("GetModelStatus", "HandleReloadConfigRequest"),
}
"""Services of TensorFlow Serving and OpenVINO Model Server, with their calls: refused by name."""

MESSAGES: Final = classes()

_CONTENTS: Final = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Data type -> the field of InferTensorContents with its elements. FP16 has none."""

_RESERVED: Final = ("binary_data_size", "binary_data", "binary_data_output")
"""Parameters of HTTP, where a body may be JSON alone."""


class HttpRequest(NamedTuple):
    """A request over HTTP."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = {}


class HttpResponse(NamedTuple):
    """A response over HTTP; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def error(self) -> str:
        """The message of an error."""
        try:
            return str(msgspec.json.decode(self.body)["error"])
        except (msgspec.DecodeError, KeyError, TypeError):
            return f"status {self.status}"


class GrpcCall(NamedTuple):
    """A call.

    Attributes:
        request: class of its request.
        to_http: returns the HTTP request for a request, or raises RequestError.
        from_http: returns the response for a successful HTTP response.
        states: whether the statuses 404 and 503 are answers: "not ready".
    """

    request: Any
    to_http: Callable[[Any], HttpRequest]
    from_http: Callable[[HttpResponse], Any]
    states: bool = False

    def read(self, data: bytes) -> HttpRequest:
        """Return the HTTP request for an encoded request.

        Raises:
            RequestError: the bytes are not such a message, or the request has no meaning over HTTP.
        """
        try:
            message = self.request.FromString(data)
        except Exception as error:  # protobuf's DecodeError, by whichever of its implementations
            raise RequestError(
                f"the message is not a {self.request.DESCRIPTOR.name}: {error}"
            ) from None
        return self.to_http(message)


def _model_path(name: str, version: str, rest: str = "") -> str:
    versions = f"/versions/{version}" if version else ""
    return f"/v2/models/{name}{versions}{rest}"


def _infer_request(message: Any) -> HttpRequest:
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise RequestError(
            f"raw_input_contents has {len(raw)} tensors and inputs has {len(message.inputs)}: give all "
            "tensors raw, or none",
            param="raw_input_contents",
        )
    inputs, parts = [], []
    for index, given in enumerate(message.inputs):
        if raw and given.HasField("contents"):
            raise RequestError(
                f"input {given.name!r} has both contents and raw_input_contents",
                param=f"inputs[{index}].contents",
            )
        # The route refuses parameters by name, such as those of shared memory, which come without data.
        empty = not raw and given.parameters
        data = b"" if empty else raw[index] if raw else _contents(given, f"inputs[{index}]")
        parts.append(data)
        parameters = _parameters(given.parameters, f"inputs[{index}].parameters")
        described = {"name": given.name, "shape": list(given.shape), "datatype": given.datatype}
        inputs.append(described | {"parameters": parameters | {"binary_data_size": len(data)}})
    outputs = [
        {"name": one.name, "parameters": _parameters(one.parameters, f"outputs[{i}].parameters")}
        for i, one in enumerate(message.outputs)
    ]
    common = _parameters(message.parameters, "parameters") | {"binary_data_output": True}
    head = msgspec.json.encode(
        {"id": message.id, "parameters": common, "inputs": inputs, "outputs": outputs}
    )
    return HttpRequest(
        "POST",
        _model_path(message.model_name, message.model_version, "/infer"),
        b"".join([head, *parts]),
        {"content-type": "application/octet-stream", HEADER_LENGTH.lower(): str(len(head))},
    )


def _infer_response(response: HttpResponse) -> Any:
    place = int(response.headers.get(HEADER_LENGTH.lower(), len(response.body)))
    head = msgspec.json.decode(response.body[:place])
    message = MESSAGES["ModelInferResponse"](
        model_name=head["model_name"], model_version=head["model_version"], id=head.get("id", "")
    )
    for output in head["outputs"]:
        end = place + output["parameters"]["binary_data_size"]
        message.outputs.add(name=output["name"], datatype=output["datatype"], shape=output["shape"])
        message.raw_output_contents.append(response.body[place:end])
        place = end
    return message


def _contents(given: Any, param: str) -> bytes:
    """Return the elements of an input that are in its field ``contents`` as raw data.

    Raises:
        RequestError: they are in a field of another data type, or are not as many as the shape has.
    """
    datatype = given.datatype
    field = _CONTENTS.get(datatype)
    if field is None:
        known = datatype in DATATYPES
        how = "use raw_input_contents" if known else f"it takes {', '.join(DATATYPES)}"
        what = "has no field in contents" if known else "is unknown"
        raise RequestError(
            f"data type {datatype[:40]!r} of input {given.name!r} {what}: {how}", param=param
        )
    for other, values in given.contents.ListFields():
        if other.name != field and values:
            raise RequestError(
                f"input {given.name!r} of {datatype} has its elements in {other.name}, not in {field}",
                param=f"{param}.contents",
            )
    values = getattr(given.contents, field)
    count = prod(given.shape)
    if len(values) != count:
        raise RequestError(
            f"input {given.name!r} has {len(values)} elements in contents; its shape has {count}",
            param=f"{param}.contents",
        )
    if datatype == "BYTES":
        return packed_bytes(values)
    try:
        return packed(datatype, values)
    except (struct.error, OverflowError):
        raise RequestError(
            f"input {given.name!r} has an element that is out of the range of {datatype}",
            param=f"{param}.contents",
        ) from None


def _parameters(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return parameters as JSON values.

    Raises:
        RequestError: a parameter has no value, or no meaning over gRPC.
    """
    values = {}
    for name, parameter in given.items():
        which = parameter.WhichOneof(CHOICE)
        if which is None or which == "bytes_param" or name in _RESERVED:
            reason = "has no value" if which is None else "is not supported"
            raise RequestError(f"{where}: {name[:100]!r} {reason}", param=f"{where}.{name[:100]}")
        values[name] = getattr(parameter, which)
    return values


def _repository_request(action: str) -> Callable[[Any], HttpRequest]:
    def to_http(message: Any) -> HttpRequest:
        body: dict[str, Any] = {}
        if parameters := _parameters(message.parameters, "parameters"):
            body = {"parameters": parameters}
        _only_repository(message)
        path = f"/v2/repository/models/{message.model_name}/{action}"
        return _with_json(path, body)

    return to_http


def _index_request(message: Any) -> HttpRequest:
    _only_repository(message)
    return _with_json("/v2/repository/index", {"ready": message.ready})


def _only_repository(message: Any) -> None:
    if message.repository_name:
        raise RequestError(
            f"repository_name is {message.repository_name[:100]!r}: the repository has no name",
            param="repository_name",
        )


def _with_json(path: str, body: Mapping[str, Any]) -> HttpRequest:
    headers = {"content-type": "application/json"}
    return HttpRequest("POST", path, msgspec.json.encode(body), headers)


def _call(
    name: str,
    to_http: Callable[[Any], HttpRequest],
    from_http: Callable[[HttpResponse], Any] | None = None,
) -> GrpcCall:
    response = MESSAGES[f"{name}Response"]
    if from_http is None:

        def from_http(one: HttpResponse) -> Any:
            return response(**msgspec.json.decode(one.body)) if one.status == 200 else response()

    states = name in ("ServerLive", "ServerReady", "ModelReady")
    return GrpcCall(MESSAGES[f"{name}Request"], to_http, from_http, states)


CALLS: Final[Mapping[str, GrpcCall]] = {
    "ServerLive": _call("ServerLive", lambda _: HttpRequest("GET", "/v2/health/live")),
    "ServerReady": _call("ServerReady", lambda _: HttpRequest("GET", "/v2/health/ready")),
    "ModelReady": _call(
        "ModelReady", lambda m: HttpRequest("GET", _model_path(m.name, m.version, "/ready"))
    ),
    "ServerMetadata": _call("ServerMetadata", lambda _: HttpRequest("GET", "/v2")),
    "ModelMetadata": _call(
        "ModelMetadata", lambda m: HttpRequest("GET", _model_path(m.name, m.version))
    ),
    "ModelInfer": _call("ModelInfer", _infer_request, _infer_response),
    "RepositoryIndex": _call(
        "RepositoryIndex",
        _index_request,
        lambda one: MESSAGES["RepositoryIndexResponse"](models=msgspec.json.decode(one.body)),
    ),
    "RepositoryModelLoad": _call("RepositoryModelLoad", _repository_request("load")),
    "RepositoryModelUnload": _call("RepositoryModelUnload", _repository_request("unload")),
}
"""Name -> call."""
