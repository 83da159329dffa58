"""The routes of the Open Inference Protocol."""

from typing import Final, TypedDict

from starlette.requests import Request
from starlette.responses import Response

from galley import __version__
from galley.errors import RequestError
from galley.gateway import repository
from galley.gateway.call import Call, opened
from galley.gateway.caller import Caller
from galley.gateway.predictions import Prediction
from galley.gateway.registry import Registry
from galley.gateway.served import ServedModel
from galley.protocols.http import body
from galley.protocols.http.caller import caller_of
from galley.protocols.http.json_answers import Json
from galley.protocols.http.openapi import Handler, Operation
from galley.protocols.http.sse import while_connected
from galley.protocols.oip.messages import (
    HEADER_LENGTH,
    RAW,
    Inference,
    InferResponse,
    OipError,
    json_length,
    parse,
    parse_raw,
    write,
)
from galley.protocols.oip.schemas import InferRequest
from galley.types import TensorSpec

PREFIX: Final = "/v2"
ENDPOINT: Final = "/v2/models/infer"
"""Name of the inference route in metrics."""

OCTETS: Final = "application/octet-stream"

_MICROSECONDS: Final = 1e6


class Live(TypedDict):
    """Answer of `GET /v2/health/live`."""

    live: bool


class Ready(TypedDict):
    """Answer of `GET /v2/health/ready` and `GET /v2/models/{model}/ready`."""

    ready: bool


class ServerMetadata(TypedDict):
    """Answer of `GET /v2`."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(TypedDict):
    """An input or output; an axis of -1 has any length."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(TypedDict):
    """Answer of `GET /v2/models/{model}`; a model that does not take tensors has no inputs and outputs."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class OipOperation(Operation):
    """An operation whose errors are in the protocol's form."""

    error = OipError


def routes(models: Registry) -> list[Operation]:
    """Return the routes, served by ``models``."""

    async def server(_: Request) -> Response:
        """Describe the server."""
        answer: ServerMetadata = {
            "name": "galley",
            "version": __version__,
            "extensions": [
                "binary_tensor_data",
                "model_repository",
                "generate",
                "schedule_policy",
            ],
        }
        return Json(answer)

    async def live(_: Request) -> Response:
        """Report whether the server works: 503 only if it must be restarted."""
        works = models.lifecycle.state != "failed"
        return Json({"live": works}, 200 if works else 503)

    async def ready(_: Request) -> Response:
        """Report whether every model is ready."""
        is_ready = models.lifecycle.state == "ready"
        return Json({"ready": is_ready}, 200 if is_ready else 503)

    async def model_ready(request: Request) -> Response:
        """Report whether a model answers requests; one that is loaded on request does."""
        is_ready = _named(models, request).is_ready is not False
        return Json({"ready": is_ready}, 200 if is_ready else 503)

    async def metadata(request: Request) -> Response:
        """Describe a model's inputs and outputs; one that is loaded on request is loaded for that."""
        served = _named(models, request)
        served = await while_connected(request.receive, models.find(served.name))
        return Json(_metadata(served, repository.versions(models, served.base_name)))

    async def infer(request: Request) -> Response:
        """Compute a model's outputs."""
        settings = models.settings
        caller = caller_of(request, timeout=settings.request_timeout)
        models.expect("predict", caller)
        name = _named(models, request).name
        length = request.headers.get(HEADER_LENGTH)
        read = body.read_bytes if length is None else body.read_binary
        data = await read(request, max_bytes=settings.max_body_bytes)
        if length == RAW:
            found = await while_connected(request.receive, models.find(name, "predict", caller))
            given = parse_raw(data, found.backend().engine.info.require_tensors())
        else:
            given = await body.in_thread_if_large(
                json_length(data, length), lambda: parse(data, length)
            )
        _check_name(given, request.path_params["model"])
        timeout, priority = given.parsed.parameters.timeout, given.parsed.parameters.priority
        if timeout is not None:
            deadline = caller.arrived + timeout / _MICROSECONDS
            caller.deadline = min(caller.deadline, deadline)

        async def answered() -> Response:
            found = await models.find(name, "predict", caller, priority=priority)
            return await _answer(found, given, caller)

        return await while_connected(request.receive, answered())

    def described(path: str, handler: Handler, answer: type, *, status: bool = False) -> Operation:
        answers = {200: answer, 503: answer} if status else {200: answer}
        return OipOperation("GET", path, handler, tag="tensors", answers=answers)

    models_path = f"{PREFIX}/models/{{model:path}}"
    versioned = f"{models_path}/versions/{{version}}"
    return [
        described(PREFIX, server, ServerMetadata),
        described(f"{PREFIX}/health/live", live, Live, status=True),
        described(f"{PREFIX}/health/ready", ready, Ready, status=True),
        *(
            OipOperation(
                "POST",
                f"{path}/infer",
                infer,
                tag="tensors",
                body=InferRequest,
                answers={200: {"application/json": InferResponse, OCTETS: {}}},
            )
            for path in (versioned, models_path)
        ),
        *(
            described(f"{path}/ready", model_ready, Ready, status=True)
            for path in (versioned, models_path)
        ),
        *(described(path, metadata, ModelMetadata) for path in (versioned, models_path)),
    ]


def _check_name(given: Inference, name: str) -> None:
    if given.parsed.model_name not in ("", name):
        raise RequestError(
            f"model_name is {given.parsed.model_name[:100]!r}, and the path names {name!r}",
            param="model_name",
        )


def _named(models: Registry, request: Request) -> ServedModel:
    """Return the model that the path names, loaded or not. Raises UnknownModel."""
    path = request.path_params
    return repository.find_version(models, path["model"], path.get("version", ""))


def _metadata(served: ServedModel, versions: list[str]) -> ModelMetadata:
    info = served.backend().engine.info
    tensors = info.tensors
    return {
        "name": served.base_name,
        "versions": versions,
        "platform": info.family if tensors is None else tensors.platform,
        "inputs": [] if tensors is None else [_described(spec) for spec in tensors.inputs],
        "outputs": [] if tensors is None else [_described(spec) for spec in tensors.outputs],
    }


def _described(spec: TensorSpec) -> TensorMetadata:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


async def _answer(served: ServedModel, given: Inference, caller: Caller) -> Response:
    parsed = given.parsed
    names = [output.name for output in parsed.outputs]
    with opened(Call(served, ENDPOINT, caller)) as call:
        prediction = Prediction(call, given.inputs, names, priority=parsed.parameters.priority)
    try:
        outputs = await prediction.outputs()
    finally:
        prediction.close()
    size = sum(len(output.data) for output in outputs)
    data, length = await body.in_thread_if_large(
        size, lambda: write(served.base_name, served.version, parsed, outputs)
    )
    if length is None:
        return Response(data, media_type="application/json")
    return Response(data, headers={HEADER_LENGTH: str(length)}, media_type=OCTETS)
