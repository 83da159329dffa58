"""The two networks of diarization on onnxruntime: who is active when, and whose voice it is.

Both are in ``models/``, or in a folder of the user's with files of the same names, as ``recipes/speakers``
makes them.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from galley.errors import ModelNotFound, UnsupportedModel
from galley.speech.features import FRAME, HOP, SAMPLE_RATE, mel_bands

BUNDLED: Final = Path(__file__).parent / "models"

WINDOW: Final = 5 * SAMPLE_RATE
"""Samples of a window of segmentation."""
FRAME_STEP: Final = 270
"""Samples from one frame of segmentation to the next."""
FRAME_CENTER: Final = 495
"""Sample of a window in the middle of its first frame."""
FRAMES: Final = 293
"""Frames of a window."""
LOCAL_SPEAKERS: Final = 3
"""Speakers that segmentation can tell apart in one window."""
PART_FRAMES: Final = 160
"""Mel frames of one encoder input: 1.6 s, as in its training."""
VOICE: Final = 256
"""Width of a voice."""
_MELS: Final = 40
_BATCH: Final = 32


class Nets:
    """Segmentation and speaker encoder, loaded once for any number of recordings and threads.

    Args:
        folder: has ``segmentation.onnx`` and ``encoder.onnx``; default: the bundled ones.

    Raises:
        ModelNotFound: a file is missing.
        UnsupportedModel: a file is no such network.
    """

    def __init__(self, folder: Path | None = None) -> None:
        folder = folder or BUNDLED
        self._segmentation = _session(folder / "segmentation.onnx", "samples")
        self._encoder = _session(folder / "encoder.onnx", "mels")
        self._bands = mel_bands(_MELS, FRAME // 2 + 1, SAMPLE_RATE)
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME) / FRAME)
        self._hann: NDArray[np.float32] = hann.astype(np.float32)

    def activity(self, windows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the probability that each local speaker is active, float32 ``[windows, FRAMES, 3]``.

        ``windows`` is float32 ``[windows, WINDOW]`` at 16 kHz. Local speakers are numbered within a window.
        """
        found: NDArray[np.float32] = self._segmentation.run(None, {"samples": windows[:, None]})[0]
        return found

    def embed(self, parts: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the voices of parts as unit vectors, float32 ``[parts, 256]``.

        ``parts`` is mel power, float32 ``[parts, PART_FRAMES, 40]``.
        """
        starts = range(0, len(parts), _BATCH)
        found = [self._encoder.run(None, {"mels": parts[i : i + _BATCH]})[0] for i in starts]
        return np.concatenate(found)

    def mel_power(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the mel power of samples at 16 kHz, float32 ``[frames, 40]``, one frame every 10 ms.

        Frames are centered as librosa does it; the encoder was trained on power, not on its logarithm.
        """
        signal = np.pad(samples, FRAME // 2)
        frames = np.lib.stride_tricks.sliding_window_view(signal, FRAME)[::HOP] * self._hann
        spectrum: NDArray[Any] = np.fft.rfft(frames)
        power = np.square(spectrum.real) + np.square(spectrum.imag)
        mels: NDArray[np.float32] = power.astype(np.float32) @ self._bands
        return mels


def _session(path: Path, input_name: str) -> Any:
    if not path.exists():
        where = (
            "part of Galley's source tree, but not of its wheel"
            if path.parent == BUNDLED
            else "missing"
        )
        raise ModelNotFound(
            f"{path} is {where}; make it with recipes/speakers, and set speaker_models to its folder"
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        session: Any = onnxruntime.InferenceSession(
            str(path), sess_options=options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime's errors have no common base
        raise UnsupportedModel(f"{path} cannot be loaded: {error}") from error
    names = [one.name for one in session.get_inputs()]
    if names != [input_name]:
        raise UnsupportedModel(
            f"{path} has the inputs {', '.join(names)}; expected {input_name}, as made by recipes/speakers"
        )
    return session
