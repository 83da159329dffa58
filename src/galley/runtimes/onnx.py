"""ONNX models, computed by onnxruntime (extra ``onnx``)."""

import importlib
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from galley.errors import CheckpointError, GalleyError, SettingsError, UnsupportedModel
from galley.runtimes.build import TensorLoader
from galley.runtimes.library import import_library
from galley.runtimes.optimized_graphs import OptimizedGraph, external_files
from galley.runtimes.tensor_model import BatchOptions, InvalidTensors, LoadSettings
from galley.settings.engine_choice import ONNX_ENGINE
from galley.types import Datatype, TensorSpec

if TYPE_CHECKING:
    from galley.runtimes.tensor_model import Array

log = logging.getLogger("galley.runtimes")

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

_OF_SESSION: Final = ("graph_optimization", "inter_op_threads", "memory_arena", "memory_pattern")
"""The options of :class:`OnnxOptions` that are a session's, except its providers."""

_DATA_FOLDER: Final = "session.model_external_initializers_file_folder_path"
"""The session option with the folder of external data of a model that is not loaded from a file."""

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

    @property
    def device(self) -> str:
        """The short name of the preferred execution provider."""
        first = self.execution_providers[0]
        return next((short for short, name in _SHORT.items() if name == first), first.lower())


class OnnxModel:
    """An onnxruntime session: see :class:`galley.runtimes.tensor_model.TensorModel`."""

    def __init__(self, session: Any, file: Path) -> None:
        """Wrap a session of ``file``.

        Raises:
            UnsupportedModel: an input or output is not a tensor of a type of the Open Inference Protocol.
        """
        self._session = session
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


def load_model(file: Path, options: OnnxOptions, settings: LoadSettings) -> OnnxModel:
    """Load ``file``, from its optimized graph of an earlier start if that was kept.

    Raises:
        CheckpointError: it is no ONNX model that this onnxruntime reads.
        UnsupportedModel: an input or output is not a tensor of a type of the Open Inference Protocol.
        SettingsError: onnxruntime, or an execution provider, is not installed.
    """
    ort = import_onnxruntime()
    providers = _providers(ort, options)
    sessions = _Sessions(ort, file, options, settings.threads, providers)
    # Other providers compile parts of a graph for their device, which onnxruntime cannot write.
    portable = [name for name, _ in providers] == [_SHORT["cpu"]]
    if settings.weight_cache and options.graph_optimization != "off" and portable:
        model = _from_cache(sessions)
        if model is not None:
            return model
    try:
        session = sessions.of_model()
    except Exception as error:  # onnxruntime's errors have no common base
        raise CheckpointError(
            f"onnxruntime {ort.__version__} cannot load it: {_reason(error)}", file=str(file)
        ) from error
    first = providers[0][0]
    if first not in session.get_providers():
        raise SettingsError(
            f"execution provider {first} is installed but cannot be used here; onnxruntime's log above "
            "says why"
        )
    return OnnxModel(session, file)


@dataclass(frozen=True, slots=True)
class _Sessions:
    """Makes onnxruntime's sessions of a file."""

    ort: Any
    file: Path
    options: OnnxOptions
    threads: int
    providers: list[tuple[str, dict[str, str]]]

    def of_model(self, graph_to: str = "") -> Any:
        """Return a session of the file; write its optimized graph to a path, if one is given."""
        made = _session_options(self.ort, self.options, self.threads)
        if graph_to:
            made.optimized_model_filepath = graph_to
        return self.ort.InferenceSession(str(self.file), made, providers=self.providers)

    def of_graph(self, graph: bytes, data_folder: Path) -> Any:
        """Return a session of an optimized graph, which is used as it is."""
        made = _session_options(self.ort, self.options, self.threads)
        made.graph_optimization_level = self.ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        made.add_session_config_entry(_DATA_FOLDER, str(data_folder))
        return self.ort.InferenceSession(graph, made, providers=self.providers)

    @property
    def key(self) -> object:
        """All that an optimized graph depends on, except the model and the CPU."""
        build = self.ort.__version__, self.ort.get_build_info()
        options = {name: getattr(self.options, name) for name in _OF_SESSION}
        return build, options, self.providers, self.threads


def _from_cache(sessions: _Sessions) -> OnnxModel | None:
    """Return the model of a kept graph, or keep its graph; None if that cannot be done."""
    file = sessions.file
    try:
        kept = OptimizedGraph(file, sessions.key)
    except (OSError, ValueError, GalleyError) as error:
        log.debug("the optimized graph of %s is not kept: %s", file, error)
        return None

    def load(graph: bytes) -> OnnxModel:
        return OnnxModel(sessions.of_graph(graph, kept.data_folder), file)

    if (graph := kept.read()) is not None:
        try:
            return load(graph)
        except Exception as error:  # onnxruntime's errors have no common base
            log.info("the optimized graph of %s cannot be loaded: %s", file, _reason(error))
    return kept.make(lambda path: OnnxModel(sessions.of_model(path), file), load)


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


def _least_bytes(file: Path) -> int:
    """Return the bytes of a model and of its external data, if they are found."""
    files = [file]
    with suppress(OSError, ValueError):
        files += external_files(file)
    return sum(one.stat().st_size for one in files)


load: Final = TensorLoader(
    engine=ONNX_ENGINE,
    executor="onnxruntime",
    platform="onnxruntime_onnx",
    options=OnnxOptions,
    load=load_model,
    least_bytes=_least_bytes,
)
