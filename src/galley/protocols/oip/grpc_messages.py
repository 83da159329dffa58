"""Messages of the Open Inference Protocol's gRPC service, as classes of the package ``protobuf``.

Names and numbers are those of KServe's ``open_inference_grpc.proto`` and, for the model repository, of
Triton's ``grpc_service.proto``.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from galley.formats.declared_messages import message_classes

PACKAGE: Final = "inference"

_TENSOR: Final = ("1 name string", "2 datatype string", "3 shape int64 repeated")
_NAMED: Final = ("1 name string", "2 version string")
_REPOSITORY_MODEL: Final = (
    "1 repository_name string",
    "2 model_name string",
    "3 parameters ModelRepositoryParameter map",
)

_MESSAGES: Final[Mapping[str, Sequence[str]]] = {
    "ServerLiveRequest": (),
    "ServerLiveResponse": ("1 live bool",),
    "ServerReadyRequest": (),
    "ServerReadyResponse": ("1 ready bool",),
    "ModelReadyRequest": _NAMED,
    "ModelReadyResponse": ("1 ready bool",),
    "ServerMetadataRequest": (),
    "ServerMetadataResponse": (*_NAMED, "3 extensions string repeated"),
    "ModelMetadataRequest": _NAMED,
    "TensorMetadata": _TENSOR,
    "ModelMetadataResponse": (
        "1 name string",
        "2 versions string repeated",
        "3 platform string",
        "4 inputs TensorMetadata repeated",
        "5 outputs TensorMetadata repeated",
    ),
    "InferParameter": (
        "1 bool_param bool oneof",
        "2 int64_param int64 oneof",
        "3 string_param string oneof",
        "4 double_param double oneof",
        "5 uint64_param uint64 oneof",
    ),
    "InferTensorContents": (
        "1 bool_contents bool repeated",
        "2 int_contents int32 repeated",
        "3 int64_contents int64 repeated",
        "4 uint_contents uint32 repeated",
        "5 uint64_contents uint64 repeated",
        "6 fp32_contents float repeated",
        "7 fp64_contents double repeated",
        "8 bytes_contents bytes repeated",
    ),
    "InferInputTensor": (
        *_TENSOR,
        "4 parameters InferParameter map",
        "5 contents InferTensorContents",
    ),
    "InferRequestedOutputTensor": ("1 name string", "2 parameters InferParameter map"),
    "ModelInferRequest": (
        "1 model_name string",
        "2 model_version string",
        "3 id string",
        "4 parameters InferParameter map",
        "5 inputs InferInputTensor repeated",
        "6 outputs InferRequestedOutputTensor repeated",
        "7 raw_input_contents bytes repeated",
    ),
    "InferOutputTensor": (
        *_TENSOR,
        "4 parameters InferParameter map",
        "5 contents InferTensorContents",
    ),
    "ModelInferResponse": (
        "1 model_name string",
        "2 model_version string",
        "3 id string",
        "4 parameters InferParameter map",
        "5 outputs InferOutputTensor repeated",
        "6 raw_output_contents bytes repeated",
    ),
    "ModelStreamInferResponse": ("1 error_message string", "2 infer_response ModelInferResponse"),
    "ModelRepositoryParameter": (
        "1 bool_param bool oneof",
        "2 int64_param int64 oneof",
        "3 string_param string oneof",
        "4 bytes_param bytes oneof",
    ),
    "RepositoryIndexRequest": ("1 repository_name string", "2 ready bool"),
    "ModelIndex": (*_NAMED, "3 state string", "4 reason string"),
    "RepositoryIndexResponse": ("1 models ModelIndex repeated",),
    "RepositoryModelLoadRequest": _REPOSITORY_MODEL,
    "RepositoryModelLoadResponse": (),
    "RepositoryModelUnloadRequest": _REPOSITORY_MODEL,
    "RepositoryModelUnloadResponse": (),
}
"""Message -> its fields; see :func:`galley.formats.declared_messages.message_classes`."""


def classes() -> Mapping[str, Any]:
    """Return the class of each message, by the message's name."""
    return message_classes(PACKAGE, _MESSAGES)
