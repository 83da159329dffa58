"""``galley speak``: a text to a file of speech, with the engine in this process."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import click

from galley.cli.options import Command, Flags, start_logging, with_flags
from galley.cli.report import check_folders, say_written
from galley.errors import RequestError, SettingsError
from galley.service.voice_requests import FASTEST, SLOWEST
from galley.settings.engine import EngineSettings
from galley.tts.encode import FORMATS, AudioFormat, encoder, wav_header

_SUFFIXES: Final[dict[str, AudioFormat]] = {
    **{f".{form}": form for form in FORMATS},
    ".ogg": "opus",
    ".raw": "pcm",
}


@click.command(
    cls=Command,
    examples=(
        'galley speak "The train leaves at 10:05." --model voice.onnx --output train.wav',
        "galley speak - --model voice.onnx --format pcm <book.txt | aplay -r 24000 -f S16_LE",
    ),
)
@with_flags(EngineSettings, model=True)
@click.argument("text", help="what to say; - is the standard input")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    help="file to write, in the format of its suffix; default: the standard output",
)
@click.option("--format", "form", type=click.Choice(FORMATS), help="format; default: by --output")
@click.option(
    "--voice",
    help="one of the model's voices, or a mix of Kokoro's: af_bella+af_sky; default: the first",
)
@click.option(
    "--speed",
    type=click.FloatRange(SLOWEST, FASTEST),
    default=1.0,
    show_default=True,
    help="pace, compared with the voice's own",
)
def speak(
    flags: Flags,
    text: str,
    output: Path | None,
    form: AudioFormat | None,
    voice: str | None,
    speed: float,
) -> None:
    """Speak TEXT with a Piper or Kokoro voice.

    --model names the .onnx file. Next to it have to be the .onnx.json of a Piper voice, or the voices of
    Kokoro.
    """
    settings = flags.settings()
    if not settings.model:
        raise SettingsError("no voice is bundled: give --model VOICE.onnx, a Piper voice or Kokoro")
    form = form or _format_of(output)
    check_folders(output=output)
    start_logging(settings)
    from galley.llm.speaker import Speaker

    said = sys.stdin.read() if text == "-" else text
    with Speaker(settings) as speaker:
        # Before the file is opened: an error in the request must not cost an earlier recording.
        audio = speaker.speak(said, voice=voice, speed=speed)
        encoding = encoder(form, speaker.sample_rate)
        with _opened(output) as file:
            size = 0
            for samples in audio:
                size += len(samples)
                file.write(encoding.encode(samples))
                file.flush()
            file.write(encoding.finish())
            if form == "wav" and output is not None and file.seekable():
                file.seek(0)
                file.write(wav_header(speaker.sample_rate, size))
    if output is not None:
        say_written(output)


def _format_of(output: Path | None) -> AudioFormat:
    if output is None:
        if sys.stdout.isatty():
            raise SettingsError("give --output FILE; the audio would be written to the terminal")
        return "wav"
    form = _SUFFIXES.get(output.suffix.lower())
    if form is None:
        raise SettingsError(
            f"--output {output}: the suffix is not one of {', '.join(_SUFFIXES)}; give --format"
        )
    return form


@contextmanager
def _opened(target: Path | None) -> Iterator[IO[bytes]]:
    if target is None:
        yield sys.stdout.buffer
        return
    try:
        file = target.open("wb")
    except OSError as error:
        raise RequestError(f"cannot write {target}: {error.strerror}") from error
    with file:
        yield file
