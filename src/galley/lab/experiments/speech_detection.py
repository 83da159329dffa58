"""Speech detection: work saved on a call."""

import dataclasses
from typing import Final

import numpy as np

from galley.bench.report import Spread
from galley.bench.serve.bars import Series
from galley.lab.bench import Lab
from galley.lab.experiment import Bars, Claim, Experiment, Figure, Finding
from galley.lab.speech import Samples, Spoken, greedy, recordings, timed, transcriber, words_added
from galley.speech.features import SAMPLE_RATE

_NOISE_DB: Final = -60.0
"""Level of the noise of a line on which nobody speaks, compared with full scale."""

_LEAST_SECONDS: Final = 60.0


def _run(lab: Lab) -> Finding:
    spoken = recordings(lab)
    channel = _one_channel(spoken)
    with transcriber(lab) as one:
        found = one.transcribe(channel.samples, greedy())
        speech = sum(segment.end - segment.start for segment in found)
        whole, detected = greedy(speech=None), greedy()
        before, after = timed(one, [channel], whole), timed(one, [channel], detected)
        left = lab.ratio(
            lambda: timed(one, [channel], detected).seconds,
            lambda: timed(one, [channel], whole).seconds,
        )
    saved = Spread(*(100 * (1 - share) for share in (left.median, left.high, left.low)))
    predicted = 100 * (1 - speech / channel.seconds)
    return Finding(
        figures=[
            Figure(measured=saved, predicted=predicted),
            # Words of recordings that are repeated count once.
            words_added(spoken, after.wer, before.wer),
        ],
        header=["", "seconds of work", "word error rate"],
        rows=[
            ["all audio", f"{before.seconds:.2f}", f"{before.wer:.1%}"],
            ["speech alone", f"{after.seconds:.2f}", f"{after.wer:.1%}"],
        ],
        pictures=[
            Bars(
                title="Transcribing one side of a call",
                unit="seconds",
                names=["all audio", "speech alone"],
                series=[Series("measured", [before.seconds, after.seconds])],
            )
        ],
        notes=[
            f"One channel of a call, made of the recordings: {channel.seconds:.0f} s, in which its speaker "
            "is silent half of the time. The detector's own work is included."
        ],
    )


def _one_channel(spoken: list[Spoken]) -> Spoken:
    """Return the recordings in turns with silences of the same length, for a minute at least."""
    random = np.random.default_rng(0)
    parts: list[Samples] = []
    texts: list[str] = []
    while sum(map(len, parts)) < _LEAST_SECONDS * SAMPLE_RATE or len(texts) < len(spoken):
        one = spoken[len(texts) % len(spoken)]
        noise = random.standard_normal(len(one.samples)) * 10 ** (_NOISE_DB / 20)
        parts += [one.samples, noise.astype(np.float32)]
        texts.append(one.text)
    return dataclasses.replace(spoken[0], samples=np.concatenate(parts), text=" ".join(texts))


EXPERIMENT: Final = Experiment(
    name="speech-detection",
    title="Speech detection: work saved on a call",
    statement="Detecting speech first saves 40 to 60 % of the work on a call's channel, since each side "
    "is silent half of the time, and loses no words.",
    source="conversational speech: two sides of about 40 % each (ITU-T P.59)",
    prediction="The share of the audio in which nobody speaks.",
    claims=(
        Claim(figure="time saved", unit="%", low=40, high=60),
        Claim(figure="words wrong in addition", unit="% of the words", high=1),
    ),
    run=_run,
    needs=("speech",),
)
