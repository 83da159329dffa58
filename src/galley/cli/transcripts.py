"""Writes transcripts: of one recording while it is read, or of several that are read at a time."""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from galley.cli.report import opened, say_written
from galley.cli.speaker_options import Speakers, write_rttm
from galley.cli.terminal import clear_progress, named_progress, progress
from galley.errors import GalleyError, RequestError

if TYPE_CHECKING:
    from galley.redact.spans import Kind
    from galley.speech.diarize.diarizer import Diarization
    from galley.speech.diarize.options import DiarizeOptions
    from galley.speech.options import TranscribeOptions
    from galley.speech.redaction import Redactor
    from galley.speech.results import Segment
    from galley.speech.transcribe import Transcriber
    from galley.speech.transcription import Transcription

FORMATS: Final = ("text", "srt", "vtt", "json", "verbose_json", "diarized_json")
STDIN: Final = Path("-")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to make of each recording.

    Attributes:
        options: how to transcribe it.
        source: how to read it: arguments ``raw``, ``track`` and ``channel`` of ``Transcriber.transcribe``.
        normalize: even out loudness.
        format: one of :data:`FORMATS`.
        max_line_width: characters of a caption; None: any number.
        redact: kinds of personal data to remove.
        redacted_audio: also write the audio without it.
        diarize: how to find speakers; None: they are not wanted.
        speakers: the networks that find them, and whether their turns are written.
    """

    options: "TranscribeOptions"
    source: dict[str, Any]
    normalize: bool
    format: str
    max_line_width: int | None
    redact: "tuple[Kind, ...]"
    redacted_audio: bool
    diarize: "DiarizeOptions | None"
    speakers: Speakers


class Transcripts:
    """Transcribes recordings and writes the results; reports those that fail, and continues.

    Attributes:
        failed: number of recordings that failed.
    """

    def __init__(self, transcriber: "Transcriber", wanted: Wanted) -> None:
        """Begin with no recording."""
        self._transcriber = transcriber
        self._wanted = wanted
        self.failed = 0

    def one(self, file: Path, target: Path | None) -> None:
        """Write the transcript of a recording while it is read; to stdout if there is no target."""
        try:
            transcription = self._begin(file)
        except RequestError as error:
            self._fail(error)
        else:
            name = "stdin" if file == STDIN else file.name
            self._finish(file, target, transcription, _watched(transcription, name))

    def several(self, files: Sequence[Path], targets: Sequence[Path | None]) -> None:
        """Write the transcripts of recordings, each once it is complete."""
        from galley.speech.transcription import Ended

        begun: dict[int, Transcription] = {}
        found: dict[int, list[Segment]] = {}

        def beginning(place: int) -> "Callable[[], Transcription]":
            def begin() -> "Transcription":
                begun[place], found[place] = self._begin(files[place]), []
                return begun[place]

            return begin

        seconds, done = 0.0, 0
        each = self._transcriber.transcribe_each(map(beginning, range(len(files))))
        with closing(each), named_progress("recordings", len(files)) as show:
            for place, segment in each:
                if isinstance(segment, Ended):
                    done += 1
                    clear_progress()
                    if segment.error is not None:
                        self._fail(segment.error)
                    else:
                        self._finish(files[place], targets[place], begun[place], found[place])
                    for kept in (begun, found):
                        kept.pop(place, None)
                else:
                    seconds += segment.end - (found[place][-1].end if found[place] else 0.0)
                    found[place].append(segment)
                show(f"recordings, {seconds:.0f} s of audio", done)

    def _finish(
        self,
        file: Path,
        target: Path | None,
        transcription: "Transcription",
        segments: "Iterable[Segment]",
    ) -> None:
        try:
            self._write(file, target, transcription, segments)
        except RequestError as error:
            self._fail(error)

    def _fail(self, error: GalleyError) -> None:
        click.echo(f"galley: {error}", err=True)
        self.failed += 1

    def _begin(self, file: Path) -> "Transcription":
        wanted = self._wanted
        with _readable(file) as source:
            return self._transcriber.transcribe(
                source, wanted.options, normalize=wanted.normalize, **wanted.source
            )

    def _write(
        self,
        file: Path,
        target: Path | None,
        transcription: "Transcription",
        segments: "Iterable[Segment]",
    ) -> None:
        """Write all results of a recording, whose segments may still be read."""
        from galley.speech.redaction import Redactor

        wanted, source = self._wanted, self._wanted.source
        redactor = Redactor(wanted.redact)
        found: Diarization | None = None
        if wanted.diarize is not None:
            models = wanted.speakers.files()
            found = self._transcriber.diarize(file, wanted.diarize, models=models, **source)
            if wanted.speakers.rttm:
                write_rttm(found, file, (target or file).with_name(f"{file.stem}.rttm"))
        self._write_transcript(transcription, segments, redactor, found, target)
        if wanted.redacted_audio:
            from galley.speech.redacted_audio import write_redacted

            audio = (target or file).with_name(f"{file.stem}.redacted.wav")
            write_redacted(self._transcriber.open(file, **source), redactor.passages, audio)
            say_written(audio)

    def _write_transcript(
        self,
        transcription: "Transcription",
        segments: "Iterable[Segment]",
        redactor: "Redactor",
        found: "Diarization | None",
        target: Path | None,
    ) -> None:
        wanted = self._wanted
        if redactor.kinds:
            segments = _redacted(segments, redactor)
        if found is not None:
            from galley.speech.diarize.speakers import SpeakerLabels, labeled

            labels = SpeakerLabels(found, merges=wanted.format in ("text", "diarized_json"))
            segments = labeled(segments, labels)
        if wanted.max_line_width:
            from galley.speech.captions import lines_of

            segments = lines_of(segments, wanted.max_line_width)
        with opened(target, instead="give --output-dir DIR") as output:
            for piece in _formatted(transcription, wanted.format, segments):
                output.write(piece)
                output.flush()
        if target is not None:
            say_written(target)
        for warning in transcription.info.warnings:
            click.echo(f"galley: {warning}", err=True)


@contextmanager
def _readable(file: Path) -> Iterator[Path | BinaryIO]:
    """Yield a recording to read from; standard input becomes a file, since audio is read with seeking."""
    if file != STDIN:
        yield file
        return
    with tempfile.TemporaryFile() as whole:
        shutil.copyfileobj(sys.stdin.buffer, whole)
        if not whole.tell():
            raise RequestError("the standard input is empty; pipe a recording into the command")
        whole.seek(0)
        yield whole


def _formatted(
    transcription: "Transcription", format_: str, segments: "Iterable[Segment]"
) -> Iterator[str]:
    """Yield the transcript in parts, as segments arrive if the format allows."""
    from galley.speech import captions

    match format_:
        case "text":
            yield from captions.as_text(segments)
        case "srt":
            yield from captions.as_srt(segments)
        case "vtt":
            yield from captions.as_vtt(segments)
        case "json":
            yield captions.as_json(list(segments)).decode() + "\n"
        case "diarized_json":
            parts = list(segments)
            yield captions.as_diarized_json(parts, transcription.info).decode() + "\n"
        case _:
            # The info is complete only once all segments are read.
            complete = list(segments)
            timed = any(segment.words is not None for segment in complete)
            yield (
                captions.as_verbose_json(
                    complete, transcription.info, ("segment", "word") if timed else ("segment",)
                ).decode()
                + "\n"
            )


def _watched(transcription: "Transcription", name: str) -> "Iterator[Segment]":
    """Yield the segments, with a progress bar in seconds of audio if the file states its length."""
    total = round(transcription.stated_duration or 0)
    done = 0
    with progress(f"{name} (seconds)", total) as bar:
        for segment in transcription:
            if total:
                bar.update(min(total, round(segment.end)) - done)
                done = min(total, round(segment.end))
            yield segment
        bar.update(total - done)


def _redacted(segments: "Iterable[Segment]", redactor: "Redactor") -> "Iterator[Segment]":
    for segment in segments:
        yield from redactor.take(segment)
    yield from redactor.end()
