"""Compare the transcript of an hour of speech and silence in one file with those of its parts.

    python -m recipes.speech.heldout DIR
    python -m benchmarks.long_recording DIR/manifest.jsonl --minutes 60

Concatenates the manifest's recordings, repeated as needed, with silences between them. Transcribes each
recording alone, then the whole file. Words lost or doubled at a boundary, and words made up during a
silence, raise the long file's word error rate above that of the recordings. Memory is that of this process.
"""

import argparse
import json
import random
import tempfile
import time
import wave
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from galley.formats.source import BUNDLED_SPEECH
from galley.speech.audio import SAMPLE_RATE, Recording
from galley.speech.evaluate import ManifestEntry, Transcribed, read_manifest, score, transcribe_all
from galley.speech.options import QualityRules, TranscribeOptions
from galley.speech.transcribe import Transcriber

Samples = NDArray[np.float32]

SILENCES: Final = (1.0, 6.0)
"""Seconds between two recordings, drawn uniformly; half of the silences are digital zeros."""
NOISE: Final = 1e-4
"""Standard deviation of the noise in the other half: -80 dB."""


@dataclass(frozen=True)
class Result:
    """Error rates as shares of words; memory in bytes, after a tenth of the file and at its peak."""

    short_wer: float
    long_wer: float
    short_real_time_factor: float
    long_real_time_factor: float
    speech_share: float
    early_memory: int
    peak_memory: int


def main() -> None:
    """Join, transcribe, print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.long_recording",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--model", default=BUNDLED_SPEECH)
    parser.add_argument("--weight-dtype")
    parser.add_argument("--beam-size", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    arguments = parser.parse_args()
    settings: dict[str, Any] = {}
    if arguments.weight_dtype:
        settings["weight_dtype"] = arguments.weight_dtype
    options = TranscribeOptions(language="en", rules=QualityRules(beam_size=arguments.beam_size))
    samples = read_manifest(arguments.manifest)
    console = Console()
    with (
        tempfile.TemporaryDirectory() as folder,
        Transcriber(arguments.model, **settings) as transcriber,
    ):
        file = Path(folder) / "long.wav"
        joined, order, spoken = _join(samples, file, 60 * arguments.minutes)
        console.print(f"{file.stat().st_size / 1e6:.0f} MB of {arguments.minutes:g} minutes")
        with Progress(console=console) as bars:
            bar = bars.add_task("recordings", total=len(samples))
            short = transcribe_all(transcriber, samples, options, lambda n: bars.advance(bar, n))
            bar = bars.add_task("the whole", total=60 * arguments.minutes)
            whole, memory = _transcribe(
                transcriber, joined, options, lambda at: bars.update(bar, completed=at)
            )
    heard = {one.entry.audio: one for one in short}
    result = _result([heard[sample.audio] for sample in order], whole, spoken, memory)
    _print(result, console)
    if arguments.json:
        arguments.json.write_text(json.dumps(asdict(result), indent=2) + "\n")


def _join(
    samples: list[ManifestEntry], file: Path, seconds: float
) -> tuple[ManifestEntry, list[ManifestEntry], float]:
    """Write the long recording; return it, its parts in order, and the seconds of speech in it."""
    rng, noise = random.Random(0), np.random.default_rng(0)
    order: list[ManifestEntry] = []
    spoken = total = 0.0
    with wave.open(str(file), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(SAMPLE_RATE)
        while total < seconds:
            for sample in rng.sample(samples, len(samples)):
                said = np.concatenate(list(Recording(sample.audio)))
                silence = np.zeros(round(rng.uniform(*SILENCES) * SAMPLE_RATE), np.float32)
                if rng.random() < 0.5:
                    silence += NOISE * noise.standard_normal(len(silence)).astype(np.float32)
                for part in (said, silence):
                    out.writeframes(np.round(32767 * part.clip(-1, 1)).astype("<i2").tobytes())
                order.append(sample)
                spoken += len(said) / SAMPLE_RATE
                total += (len(said) + len(silence)) / SAMPLE_RATE
                if total >= seconds:
                    break
    return ManifestEntry(file, " ".join(sample.text for sample in order)), order, spoken


def _transcribe(
    transcriber: Transcriber,
    sample: ManifestEntry,
    options: TranscribeOptions,
    moved: Callable[[float], None],
) -> tuple[Transcribed, list[tuple[float, int]]]:
    """Transcribe a recording; return its text and the memory in use as each second was transcribed."""
    began = time.monotonic()
    transcription = transcriber.transcribe(sample.audio, options)
    texts: list[str] = []
    memory = []
    for segment in transcription:
        texts.append(segment.text)
        memory.append((segment.end, psutil.Process().memory_info().rss))
        moved(segment.end)
    seconds = time.monotonic() - began
    return Transcribed(sample, " ".join(texts), transcription.info.duration, seconds), memory


def _result(
    short: list[Transcribed], whole: Transcribed, spoken: float, memory: list[tuple[float, int]]
) -> Result:
    alone, together = score(short), score([whole])
    early = [used for at, used in memory if at <= whole.audio_seconds / 10]
    return Result(
        short_wer=alone.wer,
        long_wer=together.wer,
        short_real_time_factor=alone.real_time_factor,
        long_real_time_factor=together.real_time_factor,
        speech_share=spoken / whole.audio_seconds,
        early_memory=max(early, default=0),
        peak_memory=max((used for _, used in memory), default=0),
    )


def _print(result: Result, console: Console) -> None:
    console.print(
        f"word error rate: recordings {result.short_wer:.2%}, the whole {result.long_wer:.2%}, "
        f"difference {100 * (result.long_wer - result.short_wer):+.2f} points\n"
        f"real-time factor: recordings {result.short_real_time_factor:.4f}, "
        f"the whole {result.long_real_time_factor:.4f}, {result.speech_share:.0%} of which is recordings\n"
        f"memory: {result.early_memory / 1e6:.0f} MB after a tenth, "
        f"{result.peak_memory / 1e6:.0f} MB at most"
    )


if __name__ == "__main__":
    main()
