"""Beams: words gained and time lost."""

from typing import Final

from galley.bench.serve.chart import Line
from galley.lab.bench import Lab
from galley.lab.experiment import Claim, Curves, Experiment, Figure, Finding
from galley.lab.speech import greedy, recordings, timed, transcriber, words_added
from galley.lab.speech_roofline import SpeechRoofline, work_of
from galley.speech.options import QualityRules

_BEAMS: Final = (1, 2, 5)


def _run(lab: Lab) -> Finding:
    spoken = recordings(lab)
    options = {
        beams: greedy(rules=QualityRules(beam_size=beams, best_of=1, temperatures=(0.0,)))
        for beams in _BEAMS
    }
    with transcriber(lab) as one:
        found = {beams: timed(one, spoken, options[beams]) for beams in _BEAMS}
        slower = lab.ratio(
            lambda: timed(one, spoken, options[5]).seconds,
            lambda: timed(one, spoken, options[1]).seconds,
        )
        work = work_of(one, lambda: timed(one, spoken, options[1]))
        roofline = SpeechRoofline(lab, one)
        wider = work._replace(tokens=5 * work.tokens)
        predicted = roofline.seconds(wider) / roofline.seconds(work)
    return Finding(
        figures=[
            Figure(measured=slower, predicted=predicted),
            words_added(spoken, found[1].wer, found[5].wer),
        ],
        header=["beams", "seconds", "word error rate"],
        rows=[[str(n), f"{found[n].seconds:.2f}", f"{found[n].wer:.1%}"] for n in _BEAMS],
        pictures=[
            Curves(
                title="Time by beams",
                x="beams",
                y="seconds",
                lines=[
                    Line("measured", [*_BEAMS], [found[n].seconds for n in _BEAMS], 0, dots=True)
                ],
            )
        ],
        notes=[
            "Without other temperatures, so only the beams differ. The encoder does the same work: "
            f"{work.encoded} rows, beside {work.steps} steps of the decoder."
        ],
    )


EXPERIMENT: Final = Experiment(
    name="beams",
    title="Beams: words gained and time lost",
    statement="Five beams take 1.5 to 3 times as long as greedy decoding, and gain less than a word in a "
    "hundred.",
    source="Whisper, arXiv:2212.04356, section 4.5; defaults of openai/whisper and faster-whisper",
    prediction="A roofline of the encoder's work and of as many steps of the decoder, with five times the "
    "rows. Words: none.",
    claims=(
        Claim(figure="time with 5 beams to greedy", unit="times", low=1.5, high=3),
        Claim(figure="words right in addition with 5 beams", unit="% of the words", low=0, high=1),
    ),
    run=_run,
    needs=("speech",),
)
