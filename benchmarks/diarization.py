"""Diarization error rate, right words and cost on recordings with labeled speakers.

    python -m benchmarks.diarization --recordings ../shared/audio
    python -m benchmarks.diarization --recordings ../shared/audio --model WHISPER    # words, too
    python -m benchmarks.diarization --recordings ../shared/audio --minutes 60       # time and memory

The labeled recordings are pyannote's ``trn*.wav`` with ``trn.rttm``. Conversations are made of voices of
people, from these and from the tests' readings, over a telephone band; a tenth of the turns overlap.
"""

import argparse
import random
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import soxr
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import SpectralClustering

from galley.speech.audio import Recording
from galley.speech.diarize.diarizer import load
from galley.speech.diarize.encoders import PART
from galley.speech.diarize.nets import FRAME_STEP, Nets
from galley.speech.diarize.options import DiarizeOptions
from galley.speech.diarize.speakers import SpeakerLabels, labeled
from galley.speech.diarize.turns import Turn
from galley.speech.options import QualityRules, TranscribeOptions
from galley.speech.sources import RawPcm, Samples
from galley.speech.transcribe import Transcriber
from galley.speech.vad import SpeechDetector

RATE: Final = 16_000
READ: Final = Path(__file__).parents[1] / "tests" / "speech" / "data" / "read"
LABELED_SECONDS: Final = 30.0
STEP: Final = 0.01
"""Seconds in which errors are counted."""

Labels = Sequence[tuple[str, float, float]]
"""Speaker, start, end."""


class Errors(NamedTuple):
    """Seconds of missed speech, false alarms and confused speakers, and of speech; all with overlap."""

    missed: float = 0.0
    false: float = 0.0
    confused: float = 0.0
    speech: float = 0.0

    def __add__(self, other: tuple[float, ...]) -> "Errors":  # type: ignore[override]
        return Errors(*(a + b for a, b in zip(self, other, strict=True)))

    def __str__(self) -> str:
        parts = [100 * part / self.speech for part in self[:3]]
        return f"{sum(parts):5.1f} %  ({', '.join(f'{part:.1f}' for part in parts)})"


def errors(truth: Labels, found: Labels, seconds: float) -> Errors:
    """Return the errors without a collar, with the best mapping of speakers."""
    one, other = _frames(truth, seconds), _frames(found, seconds)
    rows, columns = linear_sum_assignment(-(one.astype(int) @ other.T))
    right = sum((one[r] & other[c]).astype(int) for r, c in zip(rows, columns, strict=True))
    spoken, heard = one.sum(axis=0), other.sum(axis=0)
    both = np.minimum(spoken, heard)
    counts = (
        np.maximum(spoken - heard, 0).sum(),
        np.maximum(heard - spoken, 0).sum(),
        (both - right).sum(),
        spoken.sum(),
    )
    return Errors(*(float(count) * STEP for count in counts))


def _frames(labels: Labels, seconds: float) -> np.ndarray:
    names = sorted({name for name, _, _ in labels})
    frames = np.zeros((len(names), round(seconds / STEP)), bool)
    for name, start, end in labels:
        frames[names.index(name), round(start / STEP) : round(end / STEP)] = True
    return frames


def read(path: Path) -> Samples:
    """Return a recording."""
    return np.concatenate(list(Recording(path)))


def labeled_recordings(folder: Path) -> list[tuple[str, Samples, Labels]]:
    """Return name, samples and labels of each recording; only the first half minute is labeled."""
    labels: dict[str, list[tuple[str, float, float]]] = {}
    for line in (folder / "trn.rttm").read_text(encoding="utf-8").splitlines():
        fields = line.split()
        start, length = float(fields[3]), float(fields[4])
        labels.setdefault(fields[1], []).append((fields[7], start, start + length))
    most = round(LABELED_SECONDS * RATE)
    return [(name, read(folder / f"{name}.wav")[:most], truth) for name, truth in labels.items()]


def voices(folder: Path) -> dict[str, list[Samples]]:
    """Return the sentences of each voice."""
    places = {
        "jfk": [("jfk.flac", 0.1, 10.8)],
        "meo069": [("trn03.wav", 1.5, 29.9)],
        "fee078": [("trn05.wav", 9.4, 18.9), ("trn05.wav", 19.8, 29.9)],
        "mee075": [("trn04.wav", 17.0, 21.0), ("trn04.wav", 21.9, 23.9)],
    }
    found = {
        name: [read(folder / file)[round(a * RATE) : round(b * RATE)] for file, a, b in parts]
        for name, parts in places.items()
    }
    found["austen"] = [read(READ / f"austen-{number}.flac") for number in range(1, 6)]
    found["report"] = [read(READ / "report.flac")]
    return {
        name: [part * np.float32(0.3 / np.abs(part).max()) for part in parts]
        for name, parts in found.items()
    }


def conversation(
    pool: dict[str, list[Samples]], names: Sequence[str], seconds: float, seed: int
) -> tuple[Samples, Labels]:
    """Return a call and its labels; pauses of half a second and more are not speech."""
    chance = random.Random(seed)
    sound = np.zeros(round((seconds + 20) * RATE), np.float32)
    truth: list[tuple[str, float, float]] = []
    end, last = RATE // 2, ""
    while end < seconds * RATE:
        last = chance.choice([name for name in names if name != last])
        whole = chance.choice(pool[last])
        length = min(len(whole), round(chance.uniform(1.5, 6.0) * RATE))
        begin = chance.randrange(len(whole) - length + 1)
        said = whole[begin : begin + length]
        start = end + round(chance.uniform(0.1, 0.9) * RATE)
        if truth and chance.random() < 0.2:
            start = max(0, end - round(chance.uniform(0.3, 1.2) * RATE))
        sound[start : start + length] += said
        truth += [(last, (start + a) / RATE, (start + b) / RATE) for a, b in _loud(said)]
        end = max(end, start + length)
    narrow = soxr.resample(sound[: end + RATE // 2], RATE, RATE // 2)
    return soxr.resample(narrow, RATE // 2, RATE).astype(np.float32), truth


def _loud(samples: Samples) -> list[list[int]]:
    power = np.sqrt(np.convolve(np.square(samples), np.ones(800) / 800, "same"))[::160] > 0.006
    edges = np.flatnonzero(np.diff(np.concatenate([[0], power.astype(int), [0]]))) * 160
    runs: list[list[int]] = []
    for start, end in edges.reshape(-1, 2).tolist():
        if runs and start - runs[-1][1] < RATE // 2:
            runs[-1][1] = end
        elif end - start > RATE // 20:
            runs.append([start, end])
    return runs


def spectral(samples: Samples, count: int, nets: Nets) -> Labels:
    """Return the labels of the same encoder with spectral clustering, and Silero's speech."""
    speech = SpeechDetector().stream().feed(samples) > 0.5
    centers = np.arange(PART // 2, len(samples) - PART // 2, PART // 4)
    centers = centers[speech[np.minimum(centers // 512, len(speech) - 1)]]
    if len(centers) <= count:
        return []
    found = nets.voices([samples[c - PART // 2 : c + PART // 2] for c in centers])
    clusters = SpectralClustering(count, affinity="precomputed", random_state=0)
    names = clusters.fit_predict(np.clip(found @ found.T, 0, 1)) if count > 1 else [0] * len(found)
    labels = []
    for frame in np.flatnonzero(speech):
        nearest = int(np.abs(centers - frame * 512).argmin())
        labels.append((str(names[nearest]), frame * 512 / RATE, (frame + 1) * 512 / RATE))
    return labels


def of(samples: Samples) -> Recording:
    """Return samples as a recording."""
    pcm = (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
    return Recording(pcm, raw=RawPcm(RATE))


def turns(samples: Samples, options: DiarizeOptions) -> list[tuple[str, float, float]]:
    """Return the turns that are found."""
    return [_label(turn) for turn in load()(of(samples), options, Recording).turns]


def _label(turn: Turn) -> tuple[str, float, float]:
    return str(turn.speaker), turn.start, turn.end


def compare(calls: Sequence[tuple[str, Samples, Labels]], title: str) -> None:
    """Print the errors of each call, with the number of speakers found and given."""
    nets = Nets()
    sums = [Errors(), Errors(), Errors()]
    print(
        f"{title}: DER (missed, false alarm, confusion): found | given | given, spectral clustering"
    )
    for name, samples, truth in calls:
        count = len({speaker for speaker, _, _ in truth})
        results = (
            turns(samples, DiarizeOptions()),
            turns(samples, DiarizeOptions(num_speakers=count)),
            spectral(samples, count, nets),
        )
        each = [errors(truth, found, len(samples) / RATE) for found in results]
        sums = [total + one for total, one in zip(sums, each, strict=True)]
        heard = len({speaker for speaker, _, _ in results[0]})
        print(f"  {name:28} {count} speakers, {heard} found: ", " | ".join(map(str, each)))
    print(f"  {'all':28}", " | ".join(map(str, sums)))


def words(calls: Sequence[tuple[str, Samples, Labels]], model: str) -> None:
    """Print the share of words that have the speaker of their time."""
    rules = QualityRules(beam_size=1)
    right = total = 0
    with Transcriber(model) as transcriber:
        for _, samples, truth in calls:
            found = load()(of(samples), DiarizeOptions(), Recording)
            heard = transcriber.transcribe(
                samples, TranscribeOptions(language="en", word_timestamps=True, rules=rules)
            )
            said = list(labeled(heard, SpeakerLabels(found, merges=True)))
            pairs = [
                (segment.speaker, speaker)
                for segment in said
                for word in segment.words or ()
                for speaker, start, end in truth
                if start <= (word.start + word.end) / 2 < end
            ]
            mine, theirs = (sorted({str(p[i]) for p in pairs}) for i in (0, 1))
            counts = np.zeros((len(mine), len(theirs)), int)
            for one, other in pairs:
                counts[mine.index(str(one)), theirs.index(other)] += 1
            rows, columns = linear_sum_assignment(-counts)
            right += int(counts[rows, columns].sum())
            total += len(pairs)
    print(f"words with the right speaker: {right} of {total} ({right / total:.1%})")


def cost(pool: dict[str, list[Samples]], minutes: float) -> None:
    """Print the CPU time and the memory of one long call."""
    samples, truth = conversation(pool, ["austen", "meo069"], minutes * 60, 0)
    recording = of(samples)
    load()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    found = load()(recording, DiarizeOptions(), Recording)
    spent = time.process_time() - started
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    seconds = len(samples) / RATE
    print(f"{seconds / 60:.0f} minutes: {spent:.0f} s of CPU time, {spent / seconds:.3f} of real time; "
          f"{grown / 1024:.0f} MB more than before, {len(found.names)} speakers, "
          f"DER {errors(truth, list(map(_label, found.turns)), seconds)}")  # fmt: skip


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recordings", type=Path, required=True)
    parser.add_argument("--calls", type=int, default=8)
    parser.add_argument("--model", help="a speech model, for words")
    parser.add_argument("--minutes", type=float, help="length of one long call")
    args = parser.parse_args()
    print(f"frames of {FRAME_STEP / RATE * 1000:.1f} ms")
    pool = voices(args.recordings)
    if args.minutes:
        cost(pool, args.minutes)
        return
    chance = random.Random(0)
    calls = []
    for number in range(args.calls):
        names = chance.sample(sorted(pool), (2, 2, 3, 4)[number % 4])
        calls.append((" ".join(names), *conversation(pool, names, 60, number)))
    if args.model:
        words(calls, args.model)
        return
    compare(labeled_recordings(args.recordings), "labeled recordings")
    compare(calls, "conversations")


if __name__ == "__main__":
    main()
