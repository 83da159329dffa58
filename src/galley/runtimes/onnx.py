"""ONNX models, computed by onnxruntime (extra ``onnx``)."""

import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from galley.errors import CheckpointError, SettingsError, UnsupportedModel
from galley.runtimes.build import TensorLoader
from galley.runtimes.library import import_library
from galley.runtimes.tensor_model import BatchOptions, InvalidTensors
from galley.settings.engine_choice import ONNX_ENGINE
from galley.types import Datatype, TensorSpec

if TYPE_CHECKING:
    from galley.runtimes.tensor_model import Array

# See galley.speech: onnxruntime reads it when it is first imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_SHORT: Final = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "dml": "DmlExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "migraphx": "MIGraphXExecutionProvider",
    "xnnpack": "XnnpackExecutionProvider",
}
"""Short names of execution providers; onnxruntime's own names are accepted as well."""

_DATATYPES: Final[dict[str, Datatype]] = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}

_LEVELS: Final = {
    "off": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}


class OnnxOptions(BatchOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ``engine_options`` of engine ``onnx``; the compute threads are the setting ``threads``.

    Attributes:
        execution_providers: names, the preferred one first, such as "cpu" or "CUDAExecutionProvider".
        provider_options: name of a provider, as given above -> its options, which are onnxruntime's.
        graph_optimization: how far onnxruntime rewrites the graph.
        inter_op_threads: threads that run independent nodes; 1: nodes run one after another.
        memory_arena: keep freed buffers for the next batch.
        memory_pattern: plan the buffers of a shape once.
    """

    execution_providers: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)] = ("cpu",)
    provider_options: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    graph_optimization: Literal["off", "basic", "extended", "all"] = "all"
    inter_op_threads: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    memory_arena: bool = True
    memory_pattern: bool = True


class OnnxModel:
    """An onnxruntime session: see :class:`galley.runtimes.tensor_model.TensorModel`."""

    def __init__(self, file: Path, options: OnnxOptions, threads: int) -> None:
        """Load ``file``.

        Raises:
            CheckpointError: it is no ONNX model that this onnxruntime reads.
            UnsupportedModel: an input or output is not a tensor of a type of the Open Inference Protocol.
            SettingsError: onnxruntime, or an execution provider, is not installed.
        """
        ort = import_onnxruntime()
        providers = _providers(ort, options)
        try:
            self._session = ort.InferenceSession(
                str(file), _session_options(ort, options, threads), providers=providers
            )
        except Exception as error:  # onnxruntime's errors have no common base
            raise CheckpointError(
                f"onnxruntime {ort.__version__} cannot load it: {_reason(error)}", file=str(file)
            ) from error
        first = providers[0][0]
        if first not in self._session.get_providers():
            raise SettingsError(
                f"execution provider {first} is installed but cannot be used here; onnxruntime's log above "
                "says why"
            )
        self._invalid = _invalid_argument()
        self.inputs = tuple(_spec("input", one, file) for one in self._session.get_inputs())
        self.outputs = tuple(_spec("output", one, file) for one in self._session.get_outputs())

    def run(self, inputs: "Mapping[str, Array]", outputs: Sequence[str]) -> "list[Array]":
        """Compute the outputs of these names."""
        try:
            results: list[Any] = self._session.run(list(outputs), dict(inputs))
        except self._invalid as error:
            raise InvalidTensors(_reason(error)) from None
        for name, result in zip(outputs, results, strict=True):
            if result is None:
                raise InvalidTensors(f"the model has no output {name!r} for these inputs")
        return results

    def close(self) -> None:
        """Do nothing: the session is memory, which is freed with the object."""


def import_onnxruntime(engine: str = ONNX_ENGINE, extra: str = "onnx") -> Any:
    """Import onnxruntime; see :func:`galley.runtimes.library.import_library`."""
    return import_library("onnxruntime", engine, extra)


def session_options(ort: Any, threads: int) -> Any:
    """Return options that all sessions of a server have, with this number of compute threads."""
    made = ort.SessionOptions()
    made.intra_op_num_threads = threads
    made.log_severity_level = 3
    # Threads that spin between runs would take the cores from the server and from other engines.
    made.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return made


def _invalid_argument() -> type[Exception]:
    state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    found: type[Exception] = state.InvalidArgument
    return found


def _providers(ort: Any, options: OnnxOptions) -> list[tuple[str, dict[str, str]]]:
    """Return onnxruntime's names of the providers, with their options.

    Raises:
        SettingsError: one is not installed, or options are given for one that is not used.
    """
    installed = ort.get_available_providers()
    chosen = []
    for given in options.execution_providers:
        name = _SHORT.get(given.lower(), given)
        if name not in installed:
            raise SettingsError(
                f"execution_providers: {given!r} is not installed; installed: {', '.join(installed)}. "
                "Others come with other builds of onnxruntime, such as onnxruntime-gpu or "
                "onnxruntime-openvino"
            )
        chosen.append((name, options.provider_options.get(given, {})))
    for given in options.provider_options:
        if given not in options.execution_providers:
            raise SettingsError(
                f"provider_options: {given!r} is not among execution_providers "
                f"({', '.join(options.execution_providers)})"
            )
    return chosen


def _session_options(ort: Any, options: OnnxOptions, threads: int) -> Any:
    made = session_options(ort, threads)
    made.inter_op_num_threads = options.inter_op_threads
    if options.inter_op_threads > 1:
        made.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    level = _LEVELS[options.graph_optimization]
    made.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    made.enable_cpu_mem_arena = options.memory_arena
    made.enable_mem_pattern = options.memory_pattern
    return made


def _spec(kind: str, argument: Any, file: Path) -> TensorSpec:
    datatype = _DATATYPES.get(argument.type)
    if datatype is None:
        advice = ""
        if "map" in argument.type:
            advice = "; convert it again with zipmap=False (skl2onnx, onnxmltools)"
        raise UnsupportedModel(
            f"{file}: {kind} {argument.name!r} is a {argument.type}, for which the Open Inference Protocol "
            f"has no data type{advice}"
        )
    shape = tuple(axis if isinstance(axis, int) and axis >= 0 else -1 for axis in argument.shape)
    return TensorSpec(name=argument.name, datatype=datatype, shape=shape)


def _reason(error: Exception) -> str:
    """Return onnxruntime's message without its prefix of codes."""
    text = str(error).strip()
    if text.startswith("[ONNXRuntimeError]"):
        text = text.split(" : ", 3)[-1]
    return text[:500]


load: Final = TensorLoader(
    engine=ONNX_ENGINE,
    executor="onnxruntime",
    platform="onnxruntime_onnx",
    options=OnnxOptions,
    load=OnnxModel,
)
