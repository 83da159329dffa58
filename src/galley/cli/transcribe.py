"""``galley transcribe``: recordings to text or captions, with the engine in this process."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import click

from galley.cli.options import Command, Flags, start_logging, with_flags
from galley.cli.speaker_options import Speakers, speaker_options
from galley.cli.speech_options import speech_options, transcribe_options
from galley.cli.transcripts import FORMATS, STDIN, Transcripts, Wanted
from galley.errors import SettingsError
from galley.formats.source import BUNDLED_SPEECH
from galley.redact.spans import KINDS
from galley.settings.config import Settings
from galley.settings.engine import EngineSettings
from galley.types.audio import SampleType

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
    --output-dir. Several are transcribed at a time. A file that cannot be read is reported and skipped, and
    the exit code is then 1.
    """
    settings = speech_settings(flags)
    start_logging(settings)
    targets = _targets(files, output_dir, SUFFIXES.get(format_, f".{format_}"))
    _check_words(format_, word_timestamps=word_timestamps, max_line_width=max_line_width)
    if redacted_audio and not kinds:
        raise SettingsError("--redacted-audio needs --redact KIND")
    for flag, given in (("--redacted-audio", redacted_audio), ("--diarize", speakers.wanted)):
        if given and STDIN in files:
            raise SettingsError(f"{flag} reads the recording twice, and - can be read once")
    if format_ == "diarized_json" and not speakers.wanted:
        raise SettingsError("--format diarized_json needs --diarize")
    from galley.speech import require_extra

    require_extra()
    from galley.speech.redaction import check_kinds
    from galley.speech.sources import raw_pcm
    from galley.speech.transcribe import Transcriber

    redact = check_kinds(kinds)
    normalize = wanted.pop("normalize")
    source = {name: wanted.pop(name) for name in ("track", "channel")}
    source["raw"] = raw_pcm(*(wanted.pop(n) for n in ("raw_format", "sample_rate", "channels")))
    options = dataclasses.replace(
        transcribe_options(**wanted),
        word_timestamps=word_timestamps or redacted_audio or speakers.wanted,
    )
    results = Wanted(
        options=options,
        source=source,
        normalize=normalize,
        format=format_,
        max_line_width=max_line_width,
        redact=redact,
        redacted_audio=redacted_audio,
        diarize=speakers.options() if speakers.wanted else None,
        speakers=speakers,
    )
    with Transcriber.from_settings(settings) as transcriber:
        transcripts = Transcripts(transcriber, results)
        if len(files) == 1:
            transcripts.one(files[0], targets[0])
        else:
            transcripts.several(files, targets)
    if transcripts.failed:
        raise click.exceptions.Exit(1)


def _targets(files: Sequence[Path], output_dir: Path | None, suffix: str) -> list[Path | None]:
    """Return the file that each transcript is written to; None for stdout."""
    if files.count(STDIN) > 1:
        raise SettingsError("- was given twice; the standard input can be read once")
    if output_dir is None:
        alone = len(files) == 1
        targets = [
            None if alone or file == STDIN else file.with_name(f"{file.stem}{suffix}")
            for file in files
        ]
    else:
        names = ("stdin" if file == STDIN else file.stem for file in files)
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


def _check_words(format_: str, *, word_timestamps: bool, max_line_width: int | None) -> None:
    if word_timestamps and format_ == "text":
        raise SettingsError(
            "--word-timestamps: format text has no times; take --format json or srt"
        )
    if max_line_width and not (word_timestamps and format_ in ("srt", "vtt")):
        raise SettingsError("--max-line-width needs --word-timestamps and --format srt or vtt")
