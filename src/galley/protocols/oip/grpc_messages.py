"""Messages of the Open Inference Protocol's gRPC service, as classes of the package ``protobuf``.

Names and numbers are those of KServe's ``open_inference_grpc.proto`` and, for the model repository, of
Triton's ``grpc_service.proto``. They are declared in a pool of their own, so that a client of the same
protocol can be in the process.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

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
"""Message -> its fields: number, name, type and label. The fields of label ``oneof`` are one choice."""

CHOICE: Final = "parameter_choice"
"""Name of the choice."""


def classes() -> Mapping[str, Any]:
    """Return the class of each message, by the message's name."""
    file = descriptor_pb2.FileDescriptorProto(
        name="galley/open_inference.proto", package=PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for line in fields:
            _declare(message, *line.split())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in _MESSAGES
    }


def _declare(message: Any, number: str, name: str, kind: str, label: str = "") -> None:
    declared = descriptor_pb2.FieldDescriptorProto
    field = message.field.add(name=name, number=int(number))
    field.label = declared.LABEL_REPEATED if label in ("repeated", "map") else 1
    if label == "map":
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _declare(entry, "1", "key", "string")
        _declare(entry, "2", "value", kind)
        field.type, field.type_name = declared.TYPE_MESSAGE, entry.name
    elif kind in _MESSAGES:
        field.type, field.type_name = declared.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    else:
        field.type = declared.Type.Value(f"TYPE_{kind.upper()}")
    if label == "oneof":
        if not message.oneof_decl:
            message.oneof_decl.add(name=CHOICE)
        field.oneof_index = 0
