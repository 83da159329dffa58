"""``galley transcribe``: recordings to text or captions, with the engine in this process."""

import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Final, get_args

import click

from galley.cli.options import Command, Flags, start_logging, with_flags
from galley.cli.report import say_written
from galley.cli.speaker_options import Speakers, speaker_options, write_rttm
from galley.cli.speech_options import speech_options, transcribe_options
from galley.cli.terminal import progress
from galley.errors import RequestError, SettingsError
from galley.formats.source import BUNDLED_SPEECH
from galley.redact.spans import KINDS
from galley.settings.config import Settings
from galley.settings.engine import EngineSettings
from galley.types.audio import SampleType

if TYPE_CHECKING:
    from galley.speech.decoder import Audio
    from galley.speech.diarize.diarizer import Diarization
    from galley.speech.redaction import Redactor
    from galley.speech.results import Segment
    from galley.speech.transcribe import Transcription

FORMATS = ("text", "srt", "vtt", "json", "verbose_json", "diarized_json")
_STDIN: Final = Path("-")
SUFFIXES = {"text": ".txt", "json": ".json", "verbose_json": ".json", "diarized_json": ".json"}


def speech_settings(flags: Flags) -> Settings:
    """Return the settings of all sources; with the bundled speech model if no source names a model."""
    settings = flags.settings()
    return dataclasses.replace(settings, model=settings.model or BUNDLED_SPEECH)


@click.command(
    cls=Command,
    examples=(
        "galley transcribe call.mp3",
        "galley transcribe *.wav --format srt --output-dir transcripts",
    ),
)
@with_flags(EngineSettings, model=True)
@click.argument(
    "files",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, allow_dash=True),
    help="recordings; - is the standard input",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="format of the transcript",
)
@click.option(
    "--output-dir",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="write transcripts to DIR/NAME.srt (.json, .vtt, ...); default: print that of one file or of "
    "the standard input, write those of several files next to the recordings",
)
@click.option(
    "--normalize", is_flag=True, help="even out loudness, so that quiet speakers are transcribed"
)
@click.option(
    "--word-timestamps",
    is_flag=True,
    help="add the times of each word to json and verbose_json; captions follow the words",
)
@click.option(
    "--max-line-width",
    type=click.IntRange(min=1),
    help="maximum characters per caption in srt and vtt; needs --word-timestamps",
)
@click.option(
    "--track",
    type=click.IntRange(min=1),
    help="number of the audio track, from 1; default: the file's default track",
)
@click.option(
    "--channel",
    type=click.IntRange(min=1),
    help="which of a track's channels, from 1; default: all, mixed",
)
@click.option(
    "--raw-format",
    type=click.Choice(get_args(SampleType)),
    help="encoding of files without a header; needs --sample-rate",
)
@click.option("--sample-rate", type=int, help="sample rate of files without a header, in Hz")
@click.option("--channels", type=int, help="channels of files without a header; default: 1")
@click.option(
    "--redact",
    "kinds",
    metavar="KIND",
    multiple=True,
    help=f"remove personal data from the transcript: all, or {', '.join(KINDS)}; repeat for several",
)
@click.option(
    "--redacted-audio",
    is_flag=True,
    help="also write NAME.redacted.wav, with silence in place of what --redact removes",
)
@speaker_options
@speech_options
def transcribe(
    flags: Flags,
    files: Sequence[Path],
    format_: str,
    output_dir: Path | None,
    word_timestamps: bool,
    max_line_width: int | None,
    kinds: tuple[str, ...],
    redacted_audio: bool,
    speakers: Speakers,
    **wanted: Any,
) -> None:
    """Transcribe recordings: wav, mp3, flac, ogg, opus, m4a, aac, wma, aiff, and the sound of videos.

    The transcript of one file is printed; those of several are written next to the recordings, or into
    --output-dir. A file that cannot be read is reported and skipped, and the exit code is then 1.
    """
    settings = speech_settings(flags)
    start_logging(settings)
    targets = _targets(files, output_dir, SUFFIXES.get(format_, f".{format_}"))
    _check_words(format_, word_timestamps=word_timestamps, max_line_width=max_line_width)
    if redacted_audio and not kinds:
        raise SettingsError("--redacted-audio needs --redact KIND")
    for flag, given in (("--redacted-audio", redacted_audio), ("--diarize", speakers.wanted)):
        if given and _STDIN in files:
            raise SettingsError(f"{flag} reads the recording twice, and - can be read once")
    if format_ == "diarized_json" and not speakers.wanted:
        raise SettingsError("--format diarized_json needs --diarize")
    from galley.speech import require_extra

    require_extra()
    from galley.speech.redaction import Redactor, check_kinds
    from galley.speech.sources import raw_pcm
    from galley.speech.transcribe import Transcriber

    redact = check_kinds(kinds)
    normalize = wanted.pop("normalize")
    track, channel = wanted.pop("track"), wanted.pop("channel")
    raw = raw_pcm(*(wanted.pop(name) for name in ("raw_format", "sample_rate", "channels")))
    options = dataclasses.replace(
        transcribe_options(**wanted),
        word_timestamps=word_timestamps or redacted_audio or speakers.wanted,
    )
    diarize = speakers.options() if speakers.wanted else None
    failed = False
    with Transcriber.from_settings(settings) as transcriber:
        for file, target in zip(files, targets, strict=True):
            try:
                with _readable(file) as source:
                    transcription = transcriber.transcribe(
                        source, options, raw=raw, normalize=normalize, track=track, channel=channel
                    )
                    redactor = Redactor(redact)
                    found = None
                    if diarize is not None:
                        found = transcriber.diarize(
                            file,
                            diarize,
                            raw=raw,
                            track=track,
                            channel=channel,
                            models=speakers.files(),
                        )
                        if speakers.rttm:
                            write_rttm(found, file, (target or file).with_name(f"{file.stem}.rttm"))
                    _write(transcription, redactor, found, file, target, format_, max_line_width)
                if redacted_audio:
                    audio = (target or file).with_name(f"{file.stem}.redacted.wav")
                    _write_audio(
                        transcriber.open(file, raw=raw, track=track, channel=channel),
                        redactor,
                        audio,
                    )
            except RequestError as error:
                click.echo(f"galley: {error}", err=True)
                failed = True
    if failed:
        raise click.exceptions.Exit(1)


def _targets(files: Sequence[Path], output_dir: Path | None, suffix: str) -> list[Path | None]:
    """Return the file that each transcript is written to; None for stdout."""
    if files.count(_STDIN) > 1:
        raise SettingsError("- was given twice; the standard input can be read once")
    if output_dir is None:
        alone = len(files) == 1
        targets = [
            None if alone or file == _STDIN else file.with_name(f"{file.stem}{suffix}")
            for file in files
        ]
    else:
        names = ("stdin" if file == _STDIN else file.stem for file in files)
        targets = [output_dir / f"{name}{suffix}" for name in names]
    written = [target for target in targets if target is not None]
    for target in written:
        if written.count(target) > 1:
            raise SettingsError(
                f"the transcripts of two files would both be written to {target}; rename one, or "
                "transcribe it alone"
            )
        if target in files:
            raise SettingsError(
                f"the transcript would overwrite the recording {target}; give --output-dir DIR"
            )
    if output_dir is not None:
        output_dir.mkdir(parents=True, exist_ok=True)
    return targets


@contextmanager
def _readable(file: Path) -> Iterator[Path | BinaryIO]:
    """Yield a recording to read from; standard input becomes a file, since audio is read with seeking."""
    if file != _STDIN:
        yield file
        return
    with tempfile.TemporaryFile() as whole:
        shutil.copyfileobj(sys.stdin.buffer, whole)
        if not whole.tell():
            raise RequestError("the standard input is empty; pipe a recording into the command")
        whole.seek(0)
        yield whole


def _check_words(format_: str, *, word_timestamps: bool, max_line_width: int | None) -> None:
    if word_timestamps and format_ == "text":
        raise SettingsError(
            "--word-timestamps: format text has no times; take --format json or srt"
        )
    if max_line_width and not (word_timestamps and format_ in ("srt", "vtt")):
        raise SettingsError("--max-line-width needs --word-timestamps and --format srt or vtt")


def _write_audio(recording: "Audio", redactor: "Redactor", target: Path) -> None:
    from galley.speech.redacted_audio import write_redacted

    write_redacted(recording, redactor.passages, target)
    say_written(target)


def _write(
    transcription: "Transcription",
    redactor: "Redactor",
    found: "Diarization | None",
    file: Path,
    target: Path | None,
    format_: str,
    max_line_width: int | None,
) -> None:
    segments = _watched(transcription, "stdin" if file == _STDIN else file.name)
    if redactor.kinds:
        segments = _redacted(segments, redactor)
    if found is not None:
        from galley.speech.diarize.speakers import SpeakerLabels, labeled

        labels = SpeakerLabels(found, merges=format_ in ("text", "diarized_json"))
        segments = labeled(segments, labels)
    if max_line_width:
        from galley.speech.captions import lines_of

        segments = lines_of(segments, max_line_width)
    with _opened(target) as output:
        for piece in _formatted(transcription, format_, segments):
            output.write(piece)
            output.flush()
    if target is not None:
        say_written(target)
    for warning in transcription.info.warnings:
        click.echo(f"galley: {warning}", err=True)


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


@contextmanager
def _opened(target: Path | None) -> Iterator[IO[str]]:
    if target is None:
        yield sys.stdout
        return
    try:
        file = target.open("w", encoding="utf-8")
    except OSError as error:
        raise RequestError(
            f"cannot write {target}: {error.strerror}; give --output-dir DIR"
        ) from error
    with file:
        yield file
