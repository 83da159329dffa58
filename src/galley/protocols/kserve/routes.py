"""The routes of KServe's protocol, version 1, and those of TensorFlow Serving's that its clients need."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from galley.gateway import repository
from galley.gateway.call import Call, opened
from galley.gateway.predictions import Prediction
from galley.gateway.registry import Registry
from galley.gateway.served import ServedModel
from galley.protocols.common.json_body import parse_json
from galley.protocols.common.validate import validate
from galley.protocols.http import body
from galley.protocols.http.caller import caller_of
from galley.protocols.http.json_answers import Json
from galley.protocols.http.openapi import Operation
from galley.protocols.http.sse import while_connected
from galley.protocols.kserve.descriptions import (
    MetadataResponse,
    StatusResponse,
    metadata_of,
    status_of,
)
from galley.protocols.kserve.messages import (
    SUFFIX,
    ColumnResponse,
    PredictRequest,
    PredictResponse,
    answer_of,
    inputs_of,
)
from galley.protocols.oip.routes import OipOperation

ENDPOINT: Final = f"/v1/models/{SUFFIX}"
"""Name of the route in metrics."""

_LATEST: Final = ("", "0")
"""What clients write for the version that a model has without one: ovmsclient sends 0."""


def routes(models: Registry) -> list[Operation]:
    """Return the routes, served by ``models``."""

    async def status(request: Request) -> Response:
        """Report the state of a version of a model; of version 0, that of all versions."""
        name, version = _path(request)
        served = repository.find_version(models, name, version)
        every = [one for one in repository.entries(models) if one.name == served.base_name]
        return Json(status_of([one for one in every if version in ("", one.version)]))

    async def metadata(request: Request) -> Response:
        """Describe a model's inputs and outputs; one that is loaded on request is loaded for that."""
        served = _named(models, request)
        served = await while_connected(request.receive, models.find(served.name, "predict"))
        tensors = served.backend().engine.info.require_tensors()
        return Json(metadata_of(served.base_name, served.version, tensors))

    async def predict(request: Request) -> Response:
        """Compute a model's outputs for rows of values, or for whole tensors."""
        settings = models.settings
        caller = caller_of(request, timeout=settings.request_timeout)
        models.expect("predict", caller)
        name = _named(models, request).name
        data = await body.read_bytes(request, max_bytes=settings.max_body_bytes)
        parsed = await body.in_thread_if_large(
            len(data), lambda: validate(PredictRequest, parse_json(data))
        )
        served = await while_connected(request.receive, models.find(name, "predict", caller))

        async def answer() -> Response:
            with opened(Call(served, ENDPOINT, caller)) as call:
                tensors = call.info.tensors
                assert tensors is not None, "a model that predicts has tensors"
                inputs = await body.in_thread_if_large(
                    len(data), lambda: inputs_of(parsed, tensors)
                )
                prediction = Prediction(call, inputs)
            try:
                outputs = await prediction.outputs()
            finally:
                prediction.close()
            size = sum(len(output.data) for output in outputs)
            return await body.in_thread_if_large(size, lambda: Json(answer_of(parsed, outputs)))

        return await while_connected(request.receive, answer())

    model = "/v1/models/{model:path}"
    versioned = f"{model}/versions/{{version}}"
    return [
        *(
            OipOperation(
                "POST",
                f"{path}{SUFFIX}",
                predict,
                tag="tensors",
                body=PredictRequest,
                answers={200: (PredictResponse, ColumnResponse)},
            )
            for path in (versioned, model)
        ),
        *(
            OipOperation(
                "GET", f"{path}/metadata", metadata, tag="tensors", answers={200: MetadataResponse}
            )
            for path in (versioned, model)
        ),
        OipOperation("GET", versioned, status, tag="tensors", answers={200: StatusResponse}),
    ]


def _path(request: Request) -> tuple[str, str]:
    """Return the model and the version that the path names; no version: the latest."""
    version = request.path_params.get("version", "")
    return request.path_params["model"], "" if version in _LATEST else version


def _named(models: Registry, request: Request) -> ServedModel:
    """Return the model that the path names, loaded or not. Raises UnknownModel."""
    return repository.find_version(models, *_path(request))
