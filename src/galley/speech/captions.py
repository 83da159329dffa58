"""Transcripts in the response formats of OpenAI's audio API.

Where speakers were requested, text and captions name them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, get_args

import msgspec

from galley.errors import RequestError
from galley.speech.languages import NAMES
from galley.speech.results import Info, Segment, Word

Format = Literal["json", "text", "srt", "vtt", "verbose_json", "diarized_json"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)

_LEAST_SECONDS: Final = 0.2
"""Minimum time that a caption is shown, in seconds."""

Granularity = Literal["segment", "word"]


def check_format(name: str) -> Format:
    """Return ``name`` as a format; raise RequestError if there is no such format."""
    if name not in FORMATS:
        raise RequestError(
            f"unknown response_format {name!r}; supported: {', '.join(FORMATS)}",
            param="response_format",
        )
    return name


def text_of(segments: Iterable[Segment]) -> str:
    """Return the whole transcript, with the spaces that the model wrote."""
    return "".join(segment.text for segment in segments).strip()


def in_order(segments: Iterable[Segment]) -> list[Segment]:
    """Return segments of several channels in the order of their starts, numbered anew."""
    ordered = sorted(segments, key=lambda segment: segment.start)
    return [msgspec.structs.replace(segment, id=number) for number, segment in enumerate(ordered)]


def lines_of(segments: Iterable[Segment], width: int) -> Iterator[Segment]:
    """Split segments at words into parts of at most ``width`` characters, for captions.

    A longer word is not split, nor is a segment without word times.
    """
    for segment in segments:
        line: list[Word] = []
        for word in segment.words or ():
            if line and len("".join(w.text for w in (*line, word)).strip()) > width:
                yield _part(segment, line)
                line = []
            line.append(word)
        yield _part(segment, line) if line else segment


def _part(segment: Segment, words: Sequence[Word]) -> Segment:
    text = "".join(word.text for word in words)
    start, end = words[0].start, words[-1].end
    return msgspec.structs.replace(segment, text=text, start=start, end=end, words=tuple(words))


def as_text(segments: Iterable[Segment]) -> Iterator[str]:
    """Yield one line for each segment."""
    return (f"{_by(segment)}{_one_line(segment.text)}\n" for segment in segments)


def _by(segment: Segment) -> str:
    """Return the speaker as the start of a line of text; empty if there is none."""
    return "" if segment.speaker is None else f"{_one_line(segment.speaker)}: "


def as_srt(segments: Iterable[Segment]) -> Iterator[str]:
    """Yield SubRip captions, one for each segment."""
    for number, segment in enumerate(_shown(segments), start=1):
        times = f"{_clock(segment.start, ',')} --> {_clock(segment.end, ',')}"
        # SubRip has no escapes; a parser would mistake an arrow in the text for the line of times.
        text = f"{_by(segment)}{_one_line(segment.text)}".replace("-->", "->")
        yield f"{number}\n{times}\n{text}\n\n"


def _shown(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Yield the segments with display times: of a minimum length, none before the previous one ends.

    Words may be aligned to one point in time, so a line of them may end where it starts.
    """
    until = 0.0
    for segment in segments:
        start = max(until, segment.start)
        until = max(segment.end, round(start + _LEAST_SECONDS, 3))
        yield msgspec.structs.replace(segment, start=start, end=until)


def as_vtt(segments: Iterable[Segment]) -> Iterator[str]:
    """Yield WebVTT captions: the header, then one caption for each segment."""
    yield "WEBVTT\n\n"
    for segment in _shown(segments):
        times = f"{_clock(segment.start, '.')} --> {_clock(segment.end, '.')}"
        voice = "" if segment.speaker is None else f"<v {_escaped(segment.speaker)}>"
        yield f"{times}\n{voice}{_escaped(segment.text)}\n\n"


def _escaped(text: str) -> str:
    """Return text as WebVTT has it."""
    return _one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def as_json(
    segments: Sequence[Segment],
    usage: Mapping[str, Any] | None = None,
    warnings: Sequence[str] = (),
) -> bytes:
    """Return the text, the words if word times were requested, and the request's ``usage`` if given."""
    answer: dict[str, Any] = {"text": text_of(segments)}
    if any(segment.words is not None for segment in segments):
        answer["words"] = _words(segments)
    if warnings:
        answer["warnings"] = warnings
    if usage is not None:
        answer["usage"] = usage
    return msgspec.json.encode(answer)


def as_verbose_json(
    segments: Sequence[Segment],
    info: Info,
    granularities: Sequence[Granularity] = ("segment",),
    usage: Mapping[str, Any] | None = None,
) -> bytes:
    """Return all information about the transcript in OpenAI's fields, and ``warnings`` if there are any.

    ``usage`` is the request's usage, if given.
    """
    answer: dict[str, Any] = {
        "task": info.task,
        "language": NAMES.get(info.language, info.language),
        "duration": round(info.duration, 2),
        "text": text_of(segments),
    }
    if "segment" in granularities:
        answer["segments"] = [_segment(segment) for segment in segments]
    if "word" in granularities:
        answer["words"] = _words(segments)
    if info.warnings:
        answer["warnings"] = info.warnings
    if usage is not None:
        answer["usage"] = usage
    return msgspec.json.encode(answer)


def as_diarized_json(
    segments: Sequence[Segment], info: Info, usage: Mapping[str, Any] | None = None
) -> bytes:
    """Return the segments with their speakers in OpenAI's fields, and the request's ``usage`` if given."""
    answer: dict[str, Any] = {
        "task": info.task,
        "duration": round(info.duration, 2),
        "text": text_of(segments),
        "segments": [diarized(segment) for segment in segments],
    }
    if info.warnings:
        answer["warnings"] = info.warnings
    if usage is not None:
        answer["usage"] = usage
    return msgspec.json.encode(answer)


def diarized(segment: Segment) -> dict[str, Any]:
    """Return a segment of ``diarized_json``, which is an event of its stream, too."""
    return {
        "type": "transcript.text.segment",
        "id": f"seg_{segment.id}",
        "start": round(segment.start, 3),
        "end": round(segment.end, 3),
        "speaker": segment.speaker or "A",
        "text": segment.text.strip(),
    }


def _segment(segment: Segment) -> dict[str, Any]:
    fields = msgspec.structs.asdict(segment)
    del fields["words"]
    for name in ("language", "channel", "speaker"):
        if fields[name] is None:
            del fields[name]
    fields["seek"] = round(segment.start * 100)
    return fields


def _words(segments: Iterable[Segment]) -> list[dict[str, Any]]:
    """Return all words in OpenAI's fields, with their probabilities."""
    return [
        {
            "word": word.text.strip(),
            "start": word.start,
            "end": word.end,
            "probability": None if word.probability is None else round(word.probability, 4),
        }
        for segment in segments
        for word in segment.words or ()
    ]


def _one_line(text: str) -> str:
    # An empty line in the text would end the caption.
    return " ".join(text.split())


def _clock(seconds: float, point: str) -> str:
    """Format a time as ``01:02:03,456``; ``point`` separates the milliseconds."""
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    minutes, second = divmod(whole, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02d}:{minute:02d}:{second:02d}{point}{milliseconds:03d}"
