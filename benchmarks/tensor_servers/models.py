"""The models as plain functions of a batch, which every Python server calls in its own way."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

MOST: Final = 64
"""Requests of a batch."""
DELAY: Final = 0.001
"""Seconds for which a batch waits for further requests."""
PIXELS: Final = (3, 224, 224)


def session(path: Path) -> Any:
    """Return an onnxruntime session with one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


class Trees:
    """The booster: rows of features -> a score for each."""

    def __init__(self, folder: Path) -> None:
        import xgboost

        self.booster: Any = xgboost.Booster(model_file=folder / "trees.json")
        self.booster.set_param({"nthread": 1})

    def __call__(self, rows: list[list[float]]) -> list[float]:
        """Return the scores of a batch."""
        scores: list[float] = self.booster.inplace_predict(np.array(rows, np.float32)).tolist()
        return scores


class Text:
    """The encoder of texts: token ids of one length -> the first token's vector."""

    def __init__(self, folder: Path) -> None:
        self._session = session(folder / "text.onnx")

    def __call__(self, rows: list[list[int]]) -> list[list[float]]:
        """Return the vectors of a batch."""
        [vectors] = self._session.run(None, {"ids": np.array(rows, np.int64)})
        found: list[list[float]] = vectors.tolist()
        return found


class Image:
    """The classifier: pixels in base64 -> scores of its classes."""

    def __init__(self, folder: Path) -> None:
        self._session = session(folder / "image.onnx")

    def __call__(self, rows: list[str]) -> list[list[float]]:
        """Return the scores of a batch."""
        arrays = [np.frombuffer(base64.b64decode(row), np.float32).reshape(PIXELS) for row in rows]
        [scores] = self._session.run(None, {"pixels": np.stack(arrays)})
        found: list[list[float]] = scores.tolist()
        return found


MODELS: Final[dict[str, Callable[[Path], Callable[[Any], Any]]]] = {
    "trees": Trees,
    "text": Text,
    "image": Image,
}
