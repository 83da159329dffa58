"""Speaker encoders on onnxruntime, by the form of their input; each turns speech into a voice.

The forms are those in which encoders are published: Resemblyzer's mel power, the Kaldi filter bank of
WeSpeaker and 3D-Speaker, and plain samples. A file's inputs show its form, so no option names it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from galley.errors import ModelNotFound, UnsupportedModel
from galley.speech.diarize.fbank import BANDS, FilterBank
from galley.speech.features import FRAME, HOP, SAMPLE_RATE, mel_bands
from galley.speech.sources import Samples

PART: Final = 160 * HOP
"""Samples of one encoder input: 1.6 s, as in Resemblyzer's training."""
_MELS: Final = 40
_LEVEL: Final = 10 ** (-30 / 20)
"""Level of speech in the encoders' training: 30 dB below full scale. Quieter voices are raised to it."""
_BATCH: Final = 32
_OUTPUTS: Final = ("embs", "embedding", "embeddings")
"""Usual names of the output with the voice, if a file has several."""
_INT16: Final = np.float32(32_768)

Prepare: TypeAlias = Callable[[Samples], NDArray[np.float32]]
"""Turns a clip into the encoder's input without the batch: ``[frames, bands]`` or ``[samples]``."""


class Likeness(NamedTuple):
    """How far apart voices are, as cosine distances.

    Attributes:
        different: mean distance from which two groups of voices are different speakers.
        known: distance up to which a speaker is the one of a reference.
        sharpness: how much a voice's likeness to speakers decides between them.
    """

    different: float
    known: float
    sharpness: float


RESEMBLYZER: Final = Likeness(different=0.37, known=0.35, sharpness=12.0)
"""Its vectors have no negative components, so all of them are near each other."""
MARGIN: Final = Likeness(different=0.65, known=0.6, sharpness=8.0)
"""Of encoders that were trained with a margin between speakers, as all recent ones are."""


class SpeakerEncoder:
    """A speaker encoder, loaded once for any number of recordings and threads.

    Args:
        path: the ONNX file.
        different: distance from which voices are different speakers, also from that of a reference;
            default: those of the form.

    Attributes:
        width: length of a voice.
        likeness: how far apart its voices are.

    Raises:
        ModelNotFound: the file is missing.
        UnsupportedModel: the file is not a speaker encoder of a supported form.
    """

    def __init__(self, path: Path, different: float | None = None) -> None:
        self._path = path
        self._session = session(path)
        inputs = self._session.get_inputs()
        if len(inputs) != 1 or "float" not in inputs[0].type:
            raise self._other_form()
        self._input = inputs[0].name
        self._batch, *self._shape = inputs[0].shape
        self._prepare, self._usual, self.likeness = self._form()
        if different is not None:
            self.likeness = self.likeness._replace(different=different, known=different)
        self._output = self._output_name()
        probe = self([np.zeros(PART, np.float32)])
        self.width = probe.shape[1]

    def __call__(self, clips: Sequence[Samples]) -> NDArray[np.float32]:
        """Return the voices in clips as unit vectors, float32 ``[clips, width]``.

        Args:
            clips: speech of one speaker each, mono float32 ``[samples]`` at 16 kHz; the first 1.6 s are
                used, and a shorter one is repeated.
        """
        inputs = np.stack([self._sized(self._prepare(_leveled(clip[:PART]))) for clip in clips])
        step = self._batch if isinstance(self._batch, int) else _BATCH
        found = [
            self._run(inputs[first : first + step], step) for first in range(0, len(inputs), step)
        ]
        voices = np.concatenate(found)
        unit: NDArray[np.float32] = voices / np.linalg.norm(voices, axis=1, keepdims=True).clip(
            1e-9
        )
        return unit

    def _run(self, inputs: NDArray[np.float32], step: int) -> NDArray[np.float32]:
        """Run one batch; a file with a fixed batch gets a full one."""
        count = len(inputs)
        if isinstance(self._batch, int) and count < step:
            inputs = np.resize(inputs, (step, *inputs.shape[1:]))
        try:
            found: NDArray[np.float32] = self._session.run([self._output], {self._input: inputs})[0]
        except Exception as error:  # onnxruntime's errors have no common base
            raise UnsupportedModel(
                f"speaker encoder {self._path} fails with an input of {list(inputs.shape)}: {error}"
            ) from error
        if found.ndim != 2 or len(found) != len(inputs) or not np.isfinite(found).all():
            raise UnsupportedModel(
                f"speaker encoder {self._path} has the output {self._output} of {list(found.shape)} for "
                f"{len(inputs)} clips; expected one vector of finite numbers for each"
            )
        return found[:count]

    def _sized(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Repeat or cut an input along time: to 1.6 s, or to the length that the file fixes."""
        fixed = self._shape[0]
        length = fixed if isinstance(fixed, int) else self._usual
        return np.resize(values, (length, *values.shape[1:]))

    def _form(self) -> tuple[Prepare, int, Likeness]:
        """Return how a clip is prepared, the length of its input for 1.6 s, and how alike voices are."""
        about = self._session.get_modelmeta().custom_metadata_map
        bands = self._shape[-1] if len(self._shape) == 2 else None
        if self._input == "mels" and bands == _MELS:
            return _mel_power(), PART // HOP, RESEMBLYZER
        if bands == BANDS:
            self._check_facts(about)
            framework = about.get("framework", "wespeaker" if self._input == "feats" else "")
            bank = _filter_bank(wespeaker=framework == "wespeaker")
            return bank, 1 + (PART - FRAME) // HOP, MARGIN
        if len(self._shape) == 1:
            return _plain, PART, MARGIN
        raise self._other_form()

    def _check_facts(self, about: dict[str, str]) -> None:
        """Refuse a file whose metadata states another input than those supported here."""
        expected = {
            "sample_rate": (str(SAMPLE_RATE),),
            "feature_normalize_type": ("global-mean", ""),
            "framework": ("wespeaker", "3d-speaker"),
        }
        for name, values in expected.items():
            if about.get(name, values[0]) not in values:
                raise UnsupportedModel(
                    f"speaker encoder {self._path}: {name} is {about[name]!r}; supported: "
                    f"{', '.join(filter(None, values))}"
                )

    def _output_name(self) -> str:
        names = [one.name for one in self._session.get_outputs()]
        if len(names) == 1:
            return str(names[0])
        for name in _OUTPUTS:
            if name in names:
                return name
        raise UnsupportedModel(
            f"speaker encoder {self._path} has the outputs {', '.join(names)}; expected a single one, or "
            f"one named {', '.join(_OUTPUTS)}"
        )

    def _other_form(self) -> UnsupportedModel:
        found = ", ".join(f"{one.name} {one.shape}" for one in self._session.get_inputs())
        return UnsupportedModel(
            f"speaker encoder {self._path} has the inputs {found}; supported are mels [batch, frames, "
            f"{_MELS}] (Resemblyzer), a filter bank [batch, frames, {BANDS}] (WeSpeaker, 3D-Speaker) and "
            "samples [batch, samples]"
        )


def session(path: Path) -> Any:
    """Load a network for one thread.

    Raises:
        ModelNotFound: the file is missing.
        UnsupportedModel: onnxruntime cannot load it.
    """
    if not path.is_file():
        raise ModelNotFound(f"{path} is missing")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(
            str(path), sess_options=options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime's errors have no common base
        raise UnsupportedModel(f"{path} cannot be loaded: {error}") from error


def _leveled(clip: Samples) -> Samples:
    level = float(np.sqrt(np.square(clip).mean() + 1e-12))
    return clip * np.float32(max(1.0, _LEVEL / level))


def _plain(clip: Samples) -> NDArray[np.float32]:
    return clip


def _filter_bank(*, wespeaker: bool) -> Prepare:
    """Return the input of WeSpeaker's encoders, or of 3D-Speaker's, which differ in window and scale."""
    bank = FilterBank("hamming" if wespeaker else "povey")
    scale = _INT16 if wespeaker else np.float32(1)

    def prepare(clip: Samples) -> NDArray[np.float32]:
        features = bank(clip * scale)
        features -= features.mean(axis=0)
        return features

    return prepare


def _mel_power() -> Prepare:
    """Return Resemblyzer's input: mel power, not its logarithm; frames are centered as librosa does it."""
    bands = mel_bands(_MELS, FRAME // 2 + 1, SAMPLE_RATE)
    hann = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FRAME) / FRAME)).astype(np.float32)

    def prepare(clip: Samples) -> NDArray[np.float32]:
        signal = np.pad(clip, FRAME // 2)
        frames = np.lib.stride_tricks.sliding_window_view(signal, FRAME)[::HOP] * hann
        spectrum: NDArray[Any] = np.fft.rfft(frames)
        power = np.square(spectrum.real) + np.square(spectrum.imag)
        mels: NDArray[np.float32] = power.astype(np.float32) @ bands
        return mels

    return prepare
