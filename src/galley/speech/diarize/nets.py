"""The two networks of diarization on onnxruntime: who is active when, and whose voice it is.

Both are in ``models/``, or in a folder of the user's with files of the same names, as ``recipes/speakers``
makes them. The speaker encoder may also be any file of a published form (:mod:`.encoders`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from galley.errors import ModelNotFound, UnsupportedModel
from galley.speech.diarize.encoders import SpeakerEncoder, session
from galley.speech.diarize.options import BUNDLED_FILES, NetFiles
from galley.speech.features import SAMPLE_RATE
from galley.speech.sources import Samples

BUNDLED: Final = Path(__file__).parent / "models"

WINDOW: Final = 10 * SAMPLE_RATE
"""Samples of a window of segmentation."""
FRAME_STEP: Final = 270
"""Samples from one frame of segmentation to the next."""
FRAME_CENTER: Final = 495
"""Sample of a window in the middle of its first frame."""
FRAMES: Final = 589
"""Frames of a window."""
LOCAL_SPEAKERS: Final = 3
"""Speakers that segmentation can tell apart in one window."""


class Nets:
    """Segmentation and speaker encoder, loaded once for any number of recordings and threads.

    Args:
        files: the files; default: the bundled ones.

    Attributes:
        encoder: the speaker encoder.

    Raises:
        ModelNotFound: a file is missing.
        UnsupportedModel: a file is not such a network.
    """

    def __init__(self, files: NetFiles = BUNDLED_FILES) -> None:
        folder = files.folder or BUNDLED
        path = _present(folder / "segmentation.onnx")
        self._segmentation = session(path)
        shapes = {one.name: one.shape[1:] for one in self._segmentation.get_inputs()}
        if shapes != {"samples": [1, WINDOW]}:
            raise UnsupportedModel(
                f"{path} has the inputs {shapes}; expected samples of [1, {WINDOW}], as made by "
                "recipes/speakers; make it again"
            )
        self.encoder = SpeakerEncoder(
            files.encoder or _present(folder / "encoder.onnx"), files.distance
        )

    def activity(self, windows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the probability that each local speaker is active, float32 ``[windows, FRAMES, 3]``.

        ``windows`` is float32 ``[windows, WINDOW]`` at 16 kHz. Local speakers are numbered within a window.
        """
        found: NDArray[np.float32] = self._segmentation.run(None, {"samples": windows[:, None]})[0]
        return found

    def voices(self, clips: Sequence[Samples]) -> NDArray[np.float32]:
        """Return the voices in clips as unit vectors, ``[clips, width]``; see :class:`SpeakerEncoder`."""
        if not clips:
            return np.zeros((0, self.encoder.width), np.float32)
        return self.encoder(clips)


def _present(path: Path) -> Path:
    """Return the path of a network. Raises ModelNotFound, with what to do, if there is no such file."""
    if not path.exists():
        where = (
            "part of Galley's source tree, but not of its wheel"
            if path.parent == BUNDLED
            else "missing"
        )
        raise ModelNotFound(
            f"{path} is {where}; make it with recipes/speakers, and set speaker_models to its folder"
        )
    return path
