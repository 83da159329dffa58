"""States and tensors of models in the form of TensorFlow Serving, whose clients ask for them over REST."""

from collections.abc import Sequence
from typing import Any, Final, TypedDict

from galley.gateway.repository import Entry, State
from galley.types import Datatype, TensorSpec
from galley.types.model_info import TensorInfo

SIGNATURE: Final = "serving_default"
"""The only signature of a model."""

_TYPES: Final[dict[Datatype, str]] = {
    "BOOL": "DT_BOOL",
    "UINT8": "DT_UINT8",
    "UINT16": "DT_UINT16",
    "UINT32": "DT_UINT32",
    "UINT64": "DT_UINT64",
    "INT8": "DT_INT8",
    "INT16": "DT_INT16",
    "INT32": "DT_INT32",
    "INT64": "DT_INT64",
    "FP16": "DT_HALF",
    "FP32": "DT_FLOAT",
    "FP64": "DT_DOUBLE",
    "BYTES": "DT_STRING",
}

_STATES: Final[dict[State, str]] = {
    "READY": "AVAILABLE",
    "LOADING": "LOADING",
    "UNAVAILABLE": "END",
}


class Status(TypedDict):
    """Why a version is in its state; `error_code` is `OK` where nothing failed."""

    error_code: str
    error_message: str


class VersionStatus(TypedDict):
    """The state of a version: `AVAILABLE`, `LOADING` or `END`."""

    version: str
    state: str
    status: Status


class StatusResponse(TypedDict):
    """Answer of `GET /v1/models/{model}/versions/{version}`."""

    model_version_status: list[VersionStatus]


class ModelSpec(TypedDict):
    """A model's name and version."""

    name: str
    version: str


class MetadataResponse(TypedDict):
    """Answer of `GET /v1/models/{model}/metadata`; an axis of -1 has any length."""

    modelSpec: ModelSpec
    metadata: dict[str, Any]


def status_of(versions: Sequence[Entry]) -> StatusResponse:
    """Return the states of versions of a model."""
    return {
        "model_version_status": [
            {
                "version": one.version,
                "state": _STATES[one.state],
                "status": {
                    "error_code": "UNAVAILABLE" if one.reason else "OK",
                    "error_message": one.reason,
                },
            }
            for one in versions
        ]
    }


def metadata_of(name: str, version: str, tensors: TensorInfo) -> MetadataResponse:
    """Return the inputs and outputs of a version of a model."""
    signature = {
        "inputs": {spec.name: _described(spec) for spec in tensors.inputs},
        "outputs": {spec.name: _described(spec) for spec in tensors.outputs},
        "methodName": "tensorflow/serving/predict",
    }
    definition = {
        "@type": "type.googleapis.com/tensorflow.serving.SignatureDefMap",
        "signatureDef": {SIGNATURE: signature},
    }
    return {
        "modelSpec": {"name": name, "version": version},
        "metadata": {"signature_def": definition},
    }


def _described(spec: TensorSpec) -> dict[str, Any]:
    axes = [{"size": str(length)} for length in spec.shape]
    return {"name": spec.name, "dtype": _TYPES[spec.datatype], "tensorShape": {"dim": axes}}
