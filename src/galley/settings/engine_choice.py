"""The engine of a model for which none is named, by its file or folder."""

from pathlib import Path
from typing import Final

NATIVE_ENGINE: Final = "native"
"""Name of Galley's built-in engine; :mod:`galley.service.protocol` finds others by name."""

ONNX_ENGINE: Final = "onnx"
XGBOOST_ENGINE: Final = "xgboost"
LIGHTGBM_ENGINE: Final = "lightgbm"
SKLEARN_ENGINE: Final = "sklearn"
OPENVINO_ENGINE: Final = "openvino"
VOICE_ENGINE: Final = "voice"
LLAMA_CPP_ENGINE: Final = "llama.cpp"
CTRANSLATE2_ENGINE: Final = "ctranslate2"
ONNX_GENAI_ENGINE: Final = "onnxruntime-genai"
VLLM_ENGINE: Final = "vllm"
TENSORRT_LLM_ENGINE: Final = "tensorrt-llm"

OPENVINO_FILE: Final = "openvino_model.xml"
"""A language model in OpenVINO's format, in the folder that Optimum Intel exports."""

ONNX_GENAI_FILE: Final = "genai_config.json"
"""The configuration of a language model in the folder that ONNX Runtime GenAI's builder writes."""

ENGINE_OF_SUFFIX: Final = {
    ".onnx": ONNX_ENGINE,
    ".json": XGBOOST_ENGINE,
    ".ubj": XGBOOST_ENGINE,
    ".txt": LIGHTGBM_ENGINE,
    ".skops": SKLEARN_ENGINE,
}
"""Suffix of a file -> the engine that serves such files."""

_BEGINNINGS: Final = {".json": b'{"learner":', ".txt": b"tree\n"}
"""Suffix that other files have, too -> how a model begins."""

_TENSORFLOW: Final = (
    "a TensorFlow model: convert it to ONNX with tf2onnx (python -m tf2onnx.convert --help)"
)
_PICKLE: Final = (
    "a pickle, which can run any code when it is loaded: save the estimator with skops.io.dump, a booster "
    "with its save_model (.json, .ubj, .txt), a network with torch.onnx.export"
)
CONVERTED: Final = {
    ".pmml": "a PMML model: convert the model that it was made of to ONNX with skl2onnx or onnxmltools",
    **dict.fromkeys((".pb", ".tflite", ".h5", ".keras"), _TENSORFLOW),
    **dict.fromkeys((".pkl", ".pickle", ".joblib", ".pt", ".pth"), _PICKLE),
}
"""Suffix of a file that no engine serves -> what it is, and what to convert it with."""

_SAVED_MODEL: Final = "saved_model.pb"


def engine_of(model: str) -> str:
    """Return the name of the engine that serves ``model``, a name of the hub, a file or a folder.

    A folder with safetensors is a checkpoint of Galley's own engine, whatever else it holds.
    """
    path = Path(model)
    if (named := _engine_of_file(path)) is not None:
        return named
    try:
        files = list(path.expanduser().iterdir()) if model else []
    except (OSError, ValueError, RuntimeError):  # no folder, no access, or no such user's home
        return NATIVE_ENGINE
    if any(file.suffix.lower() in (".safetensors", ".gguf") for file in files):
        return NATIVE_ENGINE
    if any(file.name == OPENVINO_FILE for file in files):
        return OPENVINO_ENGINE
    if any(file.name == ONNX_GENAI_FILE for file in files):
        return ONNX_GENAI_ENGINE
    engines = {_engine_of_file(file) for file in files} - {None}
    known = (VOICE_ENGINE, *ENGINE_OF_SUFFIX.values())
    found = (engine for engine in known if engine in engines)
    return next(found, NATIVE_ENGINE)


def is_file_of_engine(path: Path) -> bool:
    """Return whether ``path`` is a model in one file, of an engine other than Galley's own."""
    return _engine_of_file(path) is not None


def conversion_of(path: Path) -> str | None:
    """Return what a model that no engine serves is, and what to convert it with; None for others."""
    if (path / _SAVED_MODEL).is_file():
        return _TENSORFLOW
    return CONVERTED.get(path.suffix.lower()) if path.is_file() else None


def voice_config(path: Path) -> Path:
    """Return the place of the configuration of a Piper voice, next to its model."""
    return path.with_name(f"{path.name}.json")


def kokoro_voices(path: Path) -> list[Path]:
    """Return the files and folders of Kokoro's voices next to a model.

    They are ``voices*.bin``, ``voices*.npz`` and a folder ``voices`` with ``.bin`` files; of a model in a
    folder ``onnx``, next to the folder.
    """
    folder = path.expanduser().parent
    if folder.name == "onnx":
        folder = folder.parent
    try:
        files = [
            file for suffix in ("bin", "npz") for file in sorted(folder.glob(f"voices*.{suffix}"))
        ]
        named = folder / "voices"
        return [*files, *([named] if any(named.glob("*.bin")) else [])]
    except (OSError, ValueError, RuntimeError):
        return []


def _engine_of_file(path: Path) -> str | None:
    suffix = path.suffix.lower()
    engine = ENGINE_OF_SUFFIX.get(suffix)
    if engine == ONNX_ENGINE and (_is_file(voice_config(path)) or kokoro_voices(path)):
        return VOICE_ENGINE
    beginning = _BEGINNINGS.get(suffix)
    if beginning is None:
        return engine
    try:
        with path.expanduser().open("rb") as file:
            return engine if file.read(len(beginning)) == beginning else None
    except (OSError, ValueError, RuntimeError):
        return None


def _is_file(path: Path) -> bool:
    try:
        return path.expanduser().is_file()
    except (OSError, ValueError, RuntimeError):
        return False
