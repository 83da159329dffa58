"""Recordings for the experiments on speech, and what a speech model makes of them.

The extra "speech" is imported when an experiment runs, so that the others need none.
"""

import io
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from galley.bench.report import Spread
from galley.demo.speech import CALL
from galley.lab.bench import Lab
from galley.lab.experiment import Figure
from galley.speech.features import SAMPLE_RATE
from galley.speech.options import QualityRules, TranscribeOptions

if TYPE_CHECKING:
    from galley.speech.transcribe import Transcriber

Samples = NDArray[np.float32]

_LEAST_WORDS: Final = 1000
"""Words from which the standard error of a word error rate of 10 % is 1 % of the words."""

_MOST_QUICK: Final = 60.0
"""Most seconds of recordings in a quick run."""


@dataclass(frozen=True)
class Spoken:
    """A recording: mono samples at 16 kHz, and what is said."""

    samples: Samples
    text: str

    @property
    def seconds(self) -> float:
        """Its length."""
        return len(self.samples) / SAMPLE_RATE


@dataclass(frozen=True)
class Transcripts:
    """Transcripts of recordings: the seconds that they took, their word error rate, and the texts."""

    seconds: float
    wer: float
    texts: list[str]


def recordings(lab: Lab) -> list[Spoken]:
    """Return the recordings of ``--recordings``, or the bundled call.

    Raises:
        RequestError: the list cannot be read.
        AudioError: a recording cannot be read.
    """
    from galley.speech.evaluate import read_manifest

    if lab.recordings is None:
        text = json.loads(CALL.with_suffix(".json").read_text(encoding="utf-8"))["text"]
        return [Spoken(_read(CALL), text)]
    found: list[Spoken] = []
    for entry in read_manifest(lab.recordings):
        found.append(Spoken(_read(entry.audio), entry.text))
        if lab.quick and sum(one.seconds for one in found) > _MOST_QUICK:
            break
    return found


@contextmanager
def transcriber(lab: Lab) -> Iterator["Transcriber"]:
    """Load the speech model of ``--speech-model``, which encodes a repeated recording each time anew."""
    from galley.speech.transcribe import Transcriber

    # With the prefix cache, outputs of encoders are kept, so repeats would measure the decoder alone.
    with Transcriber(lab.speech_model, threads=lab.settings.threads, prefix_cache=False) as one:
        yield one


def greedy(**changes: Any) -> TranscribeOptions:
    """Return options without beams and without other temperatures, so that the work is predictable."""
    rules = QualityRules(beam_size=1, best_of=1, temperatures=(0.0,))
    return TranscribeOptions(**{"rules": rules, **changes})


def timed(one: "Transcriber", spoken: Sequence[Spoken], options: TranscribeOptions) -> Transcripts:
    """Transcribe one recording after the other."""
    began = time.perf_counter()
    texts = [one.transcribe(each.samples, options).text() for each in spoken]
    seconds = time.perf_counter() - began
    return Transcripts(seconds, words_wrong(spoken, texts), texts)


def words_wrong(spoken: Sequence[Spoken], texts: Sequence[str]) -> float:
    """Return the word error rate of transcripts."""
    from galley.speech.evaluate import word_error_rate

    return word_error_rate([each.text for each in spoken], texts)


def words_added(
    spoken: Sequence[Spoken], more: float, less: float, predicted: float | None = None
) -> Figure:
    """Return by how many words in a hundred two word error rates of the recordings differ."""
    words = sum(len(each.text.split()) for each in spoken)
    few = f"{words} words are too few for a rate of errors; give recordings of {_LEAST_WORDS:,} or more"
    return Figure(
        measured=Spread.of([100 * (more - less)]),
        predicted=predicted,
        doubt=few if words < _LEAST_WORDS else "",
    )


def through(samples: Samples, container: str, codec: str, rate: int, bits: int | None) -> bytes:
    """Return a recording as a file of a codec.

    Args:
        samples: mono, at 16 kHz.
        container: FFmpeg's name of the file format.
        codec: FFmpeg's name of the encoder.
        rate: sample rate of the file in Hz.
        bits: bits per second; None: the encoder's default, or what the codec has.
    """
    import av
    from av.audio.frame import AudioFrame

    file = io.BytesIO()
    with av.open(file, "w", format=container) as written:
        stream = written.add_stream(codec, rate=rate, layout="mono")
        assert isinstance(stream, av.AudioStream)
        context = stream.codec_context
        if bits is not None:
            context.bit_rate = bits
        frame = AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
        frame.sample_rate = SAMPLE_RATE
        convert = av.AudioResampler(context.format.name, "mono", rate)
        fifo = av.AudioFifo()
        for part in (*convert.resample(frame), *convert.resample(None)):
            fifo.write(part)
        while (full := fifo.read(context.frame_size or 1024, partial=True)) is not None:
            written.mux(stream.encode(full))
        written.mux(stream.encode(None))
    return file.getvalue()


def _read(path: Path) -> Samples:
    from galley.speech.audio import Recording

    with Recording(path) as blocks:
        return np.concatenate([np.zeros(0, np.float32), *blocks])
