"""Voice activity detection: Silero VAD (in ``silero/``) on onnxruntime, one probability for each 32 ms."""

from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from galley.speech.features import SAMPLE_RATE
from galley.speech.segmenter import VAD_FRAME, VadStream

_CONTEXT: Final = 64
"""Number of preceding samples that the model gets together with each frame."""
_LEVEL: Final = 0.1
"""Peak to which quiet audio is raised: 20 dB below full scale."""
_QUIET: Final = 0.03
"""Audio with a lower peak is quiet: 30 dB below full scale."""
_MOST_GAIN: Final = 100.0
"""Maximum gain: 40 dB."""
_FADING: Final = 0.93
"""Decay per second of the peak that sets the gain: half of the peak is left after ten seconds."""
_MODEL: Final = Path(__file__).parent / "silero" / "silero_vad_16k_sequence.onnx"


class SpeechDetector:
    """The detection model, loaded once for any number of streams and threads."""

    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session: Any = onnxruntime.InferenceSession(
            str(_MODEL), sess_options=options, providers=["CPUExecutionProvider"]
        )

    def stream(self) -> "SileroStream":
        """Return a new detector state for one recording or stream."""
        return SileroStream(self._session)


class Leveled:
    """Detection over audio that may be quiet; the detector was trained on speech of normal loudness.

    The gain follows the loudest block of the last few seconds and is never below 1.

    Args:
        detector: the detector that gets the amplified audio.
    """

    def __init__(self, detector: VadStream) -> None:
        self._detector = detector
        self._peak = 0.0

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Implement :meth:`VadStream.feed`."""
        faded = self._peak * _FADING ** (len(samples) / SAMPLE_RATE)
        self._peak = max(faded, float(np.abs(samples).max(initial=0.0)))
        return self._detector.feed(leveled(samples, self._peak))

    def finish(self) -> NDArray[np.float32]:
        """Implement :meth:`VadStream.finish`."""
        return self._detector.finish()


def leveled(samples: NDArray[np.float32], peak: float | None = None) -> NDArray[np.float32]:
    """Raise quiet audio to 20 dB below full scale, by at most 40 dB; return other audio unchanged.

    ``peak`` decides whether it is quiet; default: the peak of ``samples``.
    """
    if peak is None:
        peak = float(np.abs(samples).max(initial=0.0))
    if not 0.0 < peak < _QUIET:
        return samples
    return samples * np.float32(min(_MOST_GAIN, _LEVEL / peak))


class SileroStream:
    """Detection over one recording or stream, which arrives in blocks of any size.

    All complete frames of a block are one call of the model: a second costs little more than one frame.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self._hidden = np.zeros((1, 1, 128), np.float32)
        self._cell = np.zeros((1, 1, 128), np.float32)
        self._tail = np.zeros(_CONTEXT, np.float32)
        """Context of the next frame, and its samples so far."""

    def feed(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the probabilities, float32 ``[frames]``, of the frames that ``samples`` completes.

        ``samples`` is mono at 16 kHz.
        """
        signal = np.concatenate([self._tail, samples])
        frames = (len(signal) - _CONTEXT) // VAD_FRAME
        self._tail = signal[frames * VAD_FRAME :]
        if not frames:
            return np.empty(0, np.float32)
        frames_in_context = np.lib.stride_tricks.sliding_window_view(signal, _CONTEXT + VAD_FRAME)
        probabilities: NDArray[np.float32]
        probabilities, self._hidden, self._cell = self._session.run(
            ["speech_probs", "hn", "cn"],
            {
                "input": np.ascontiguousarray(frames_in_context[: frames * VAD_FRAME : VAD_FRAME]),
                "h": self._hidden,
                "c": self._cell,
            },
        )
        return probabilities

    def finish(self) -> NDArray[np.float32]:
        """Return the probability of an incomplete last frame, which is padded with silence."""
        missing = -(len(self._tail) - _CONTEXT) % VAD_FRAME
        return self.feed(np.zeros(missing, np.float32))
