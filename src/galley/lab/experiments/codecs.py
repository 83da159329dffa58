"""Codecs and sample rates: what a transcript loses."""

from typing import Final, NamedTuple

from galley.bench.serve.bars import Series
from galley.lab.bench import Lab
from galley.lab.experiment import Bars, Claim, Experiment, Finding
from galley.lab.speech import (
    greedy,
    recordings,
    through,
    timed,
    transcriber,
    words_added,
    words_wrong,
)


class _Codec(NamedTuple):
    """A codec as FFmpeg names it, and how it is used."""

    name: str
    container: str
    encoder: str
    rate: int
    bits: int | None


CODECS: Final = (
    _Codec("FLAC, 16 kHz", "flac", "flac", 16_000, None),
    _Codec("Opus, 24 kbit/s", "ogg", "libopus", 16_000, 24_000),
    _Codec("Opus, 8 kbit/s", "ogg", "libopus", 16_000, 8_000),
    _Codec("MP3, 32 kbit/s", "mp3", "libmp3lame", 16_000, 32_000),
    _Codec("AAC, 32 kbit/s", "adts", "aac", 16_000, 32_000),
    _Codec("G.711 mu-law, 8 kHz", "wav", "pcm_mulaw", 8_000, None),
)
_NEAR: Final = "Opus, 24 kbit/s"
_TELEPHONE: Final = "G.711 mu-law, 8 kHz"


def _run(lab: Lab) -> Finding:
    spoken = recordings(lab)
    rates: dict[str, float] = {}
    sizes: dict[str, float] = {}
    with transcriber(lab) as one:
        base = timed(one, spoken, greedy()).wer
        for codec in CODECS:
            files = [through(each.samples, *codec[1:]) for each in spoken]
            sizes[codec.name] = sum(map(len, files)) / sum(each.seconds for each in spoken) / 1000
            texts = [one.transcribe(file, greedy()).text() for file in files]
            rates[codec.name] = words_wrong(spoken, texts)
    names = [*rates]
    return Finding(
        # People miss no words.
        figures=[words_added(spoken, rates[of], base, predicted=0.0) for of in (_NEAR, _TELEPHONE)],
        header=["codec", "kB for each second", "word error rate"],
        rows=[["as recorded", "", f"{base:.1%}"]]
        + [[name, f"{sizes[name]:.2f}", f"{rates[name]:.1%}"] for name in names],
        pictures=[
            Bars(
                title="Words wrong by codec",
                unit="%",
                names=names,
                series=[Series("measured", [100 * rates[name] for name in names])],
            )
        ],
        notes=[f"{len(spoken)} recordings, {sum(each.seconds for each in spoken):.0f} s."],
    )


EXPERIMENT: Final = Experiment(
    name="codecs",
    title="Codecs and sample rates: what a transcript loses",
    statement="Opus at 24 kbit/s costs no words; a telephone's G.711 at 8 kHz costs a few.",
    source="advice of speech APIs: 16 kHz or more, lossless where possible",
    prediction="No words, for people miss none: Opus keeps 8 kHz at this rate, and whole sentences are "
    "understood with the 4 kHz of a telephone (ANSI S3.5). A model may miss what it never heard.",
    claims=(
        Claim(figure="words wrong in addition with Opus", unit="% of the words", high=1),
        Claim(figure="words wrong in addition with G.711", unit="% of the words", low=0, high=5),
    ),
    run=_run,
    needs=("speech",),
)
