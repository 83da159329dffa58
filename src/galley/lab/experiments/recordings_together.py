"""Recordings transcribed together."""

from time import perf_counter
from typing import Final

from galley.bench.serve.chart import Line
from galley.lab.bench import Lab
from galley.lab.experiment import Claim, Curves, Experiment, Figure, Finding
from galley.lab.speech import greedy, recordings, transcriber
from galley.lab.speech_roofline import SpeechRoofline, work_of

_TOGETHER: Final = (1, 2, 4, 8)
_MOST: Final = _TOGETHER[-1]


def _run(lab: Lab) -> Finding:
    spoken = recordings(lab)
    several = [spoken[number % len(spoken)] for number in range(max(_MOST, len(spoken)))]
    audio = sum(each.seconds for each in several)
    with transcriber(lab) as one:

        def seconds(together: int) -> float:
            began = perf_counter()
            for start in range(0, len(several), together):
                part = several[start : start + together]
                begun = [one.transcribe(each.samples, greedy()) for each in part]
                for _ in one.together(begun):
                    pass
            return perf_counter() - began

        gain = lab.ratio(lambda: seconds(1), lambda: seconds(_MOST))
        work = work_of(one, lambda: seconds(1))
        roofline = SpeechRoofline(lab, one)
        shared = work._replace(steps=work.steps / _MOST)
        predicted = roofline.seconds(work) / roofline.seconds(shared)
        rates = [audio / seconds(together) for together in _TOGETHER]
    return Finding(
        figures=[Figure(measured=gain, predicted=predicted)],
        header=["recordings at a time", "seconds of audio a second"],
        rows=[[str(n), f"{rate:.1f}"] for n, rate in zip(_TOGETHER, rates, strict=True)],
        pictures=[
            Curves(
                title="Throughput by recordings at a time",
                x="recordings at a time",
                y="seconds of audio a second",
                lines=[Line("measured", [*_TOGETHER], rates, 0, dots=True)],
            )
        ],
        notes=[
            "Decoder steps of several recordings share the weights. Encoders gain nothing: one chunk "
            "alone is bound by arithmetic. One after the other, there were "
            f"{work.encoded} rows of encoders, and {work.tokens} rows in {work.steps} steps of the decoder."
        ],
    )


EXPERIMENT: Final = Experiment(
    name="recordings-together",
    title="Recordings transcribed together",
    statement="A batch of recordings is transcribed 2 to 4 times as fast as one after the other.",
    source="faster-whisper's BatchedInferencePipeline (GPU)",
    prediction="A roofline of the encoders' work, which stays, and of the decoder's steps: an eighth of "
    "them, with as many rows in all.",
    claims=(Claim(figure="throughput of 8 to 1 at a time", unit="times", low=2, high=4),),
    run=_run,
    needs=("speech",),
)
