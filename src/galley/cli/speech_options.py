"""The flags of a transcription, and the options that they stand for."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from galley.errors import SettingsError

if TYPE_CHECKING:
    from galley.speech.options import SpeechOptions, TranscribeOptions


class _NumberOrNone(click.ParamType[float | str]):
    """A number, or the word none."""

    name = "number or none"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "NUMBER|none"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | str:
        if isinstance(value, str) and value.lower() == "none":
            return _NONE
        return float(click.FLOAT.convert(value, param, ctx))


_NONE: Final = "none"
_THRESHOLD: Final = _NumberOrNone()


def speech_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags of a transcription to a command; see :func:`transcribe_options`."""
    options = (
        click.option("--language", help="spoken language (en, german, ...); default: detected"),
        click.option(
            "--multilingual",
            is_flag=True,
            help="detect the language of each chunk, for recordings in several languages",
        ),
        click.option(
            "--task",
            type=click.Choice(("transcribe", "translate")),
            default="transcribe",
            show_default=True,
            help="transcribe, or translate into English",
        ),
        click.option(
            "--prompt", default="", help="names and words that may occur in the recording"
        ),
        click.option(
            "--hotwords",
            default="",
            help="names and terms that are given to the decoder for every chunk",
        ),
        click.option(
            "--beam-size",
            type=int,
            default=5,
            show_default=True,
            help="width of the beam search, 1 to 10; 1 is greedy decoding, which is faster",
        ),
        click.option(
            "--best-of",
            type=int,
            default=5,
            show_default=True,
            help="texts sampled at a temperature above 0; the likeliest is used",
        ),
        click.option(
            "--temperature",
            "temperatures",
            type=float,
            multiple=True,
            help="temperature to try, may be given several times; default: 0, and if the text is bad 0.2, "
            "0.4, 0.6, 0.8 and 1",
        ),
        click.option(
            "--compression-ratio-threshold",
            type=_THRESHOLD,
            default=2.4,
            show_default=True,
            help="text that zlib compresses more, and that loops or was cut off, is bad",
        ),
        click.option(
            "--log-prob-threshold",
            type=_THRESHOLD,
            default=-1.0,
            show_default=True,
            help="text with a lower mean log-probability is bad",
        ),
        click.option(
            "--no-speech-threshold",
            type=_THRESHOLD,
            default=0.6,
            show_default=True,
            help="probability of no speech above which bad text is left out",
        ),
        click.option(
            "--condition-on-previous-text",
            is_flag=True,
            help="give the decoder the text before each chunk; chunks then wait for one another",
        ),
        click.option(
            "--hallucination-silence-threshold",
            type=float,
            metavar="SECONDS",
            help="leave out text that is likely invented, with more silence than this around it",
        ),
        click.option(
            "--vad/--no-vad", default=True, show_default=True, help="leave silence out (Silero VAD)"
        ),
        click.option("--vad-threshold", type=float, help="probability of speech; default: 0.5"),
        click.option(
            "--vad-neg-threshold",
            type=float,
            help="probability below which speech ends; default: 0.15 below --vad-threshold",
        ),
        click.option("--vad-min-speech-ms", type=int, help="shorter speech is noise; default: 100"),
        click.option(
            "--vad-min-silence-ms", type=int, help="a shorter pause is kept; default: 800"
        ),
        click.option(
            "--vad-pad-ms", type=int, help="audio kept before and after speech; default: 400"
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def transcribe_options(
    *, vad: bool, temperatures: tuple[float, ...], **flags: Any
) -> "TranscribeOptions":
    """Return the options of a transcription; ``flags`` are the others of :func:`speech_options`.

    Raises:
        RequestError: a value is wrong.
        SettingsError: flags contradict each other.
    """
    from galley.speech.options import QualityRules, SpeechOptions, TranscribeOptions

    speech = _speech(vad, _taken(flags, SpeechOptions, "vad_"))
    rules: dict[str, Any] = {
        name: None if value == _NONE else value
        for name, value in _taken(flags, QualityRules).items()
    }
    if temperatures:
        rules["temperatures"] = temperatures
    return TranscribeOptions(speech=speech, rules=QualityRules(**rules), **flags)


def _taken(flags: dict[str, Any], options: type, prefix: str = "") -> dict[str, Any]:
    """Remove the flags named like fields of ``options``, after ``prefix``, and return them by field."""
    names = [field.name for field in dataclasses.fields(options) if prefix + field.name in flags]
    return {name: flags.pop(prefix + name) for name in names}


def _speech(vad: bool, flags: dict[str, Any]) -> "SpeechOptions | None":
    from galley.speech.options import SpeechOptions

    given = {name: value for name, value in flags.items() if value is not None}
    if vad:
        return SpeechOptions(**given)
    for name in given:
        flag = f"--vad-{name.replace('_', '-')}"
        raise SettingsError(f"{flag} needs speech detection, which --no-vad turns off")
    return None
