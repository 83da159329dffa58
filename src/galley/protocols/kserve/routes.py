"""The route of KServe's protocol, version 1."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from galley.gateway.call import Call, opened
from galley.gateway.predictions import Prediction
from galley.gateway.registry import Registry
from galley.protocols.common.json_body import parse_json
from galley.protocols.common.validate import validate
from galley.protocols.http import body
from galley.protocols.http.caller import caller_of
from galley.protocols.http.json_answers import Json
from galley.protocols.http.openapi import Operation
from galley.protocols.http.sse import while_connected
from galley.protocols.kserve.messages import (
    SUFFIX,
    PredictRequest,
    PredictResponse,
    inputs_of,
    predictions_of,
)
from galley.protocols.oip.routes import OipOperation

ENDPOINT: Final = f"/v1/models/{SUFFIX}"
"""Name of the route in metrics."""


def routes(models: Registry) -> list[Operation]:
    """Return the route, served by ``models``."""

    async def predict(request: Request) -> Response:
        """Compute a model's outputs for rows of values."""
        settings = models.settings
        caller = caller_of(request, timeout=settings.request_timeout)
        models.expect("predict", caller)
        name = models.named(request.path_params["model"]).name
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
            return await body.in_thread_if_large(
                size, lambda: Json(predictions_of(outputs, len(parsed.instances)))
            )

        return await while_connected(request.receive, answer())

    return [
        OipOperation(
            "POST",
            f"/v1/models/{{model:path}}{SUFFIX}",
            predict,
            tag="tensors",
            body=PredictRequest,
            answers={200: PredictResponse},
        )
    ]
