"""The flags of diarization, and the options that they stand for."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from galley.cli.report import say_written
from galley.errors import RequestError, SettingsError

if TYPE_CHECKING:
    from galley.speech.diarize.diarizer import Diarization
    from galley.speech.diarize.options import DiarizeOptions, NetFiles


_COUNTS: Final = ("num_speakers", "min_speakers", "max_speakers")


@dataclass(frozen=True, kw_only=True)
class Speakers:
    """The flags.

    Attributes:
        wanted: find the speakers.
        rttm: write their turns as RTTM.
        known: NAME=FILE of each known speaker.
        models: folder with the networks; None: the bundled ones.
        encoder: file of the speaker encoder; None: that of the folder.
        distance: cosine distance from which voices are different speakers; None: the encoder's usual one.
        counts: num_speakers, min_speakers and max_speakers as given.
    """

    wanted: bool
    rttm: bool
    known: tuple[str, ...]
    models: Path | None
    encoder: Path | None
    distance: float | None
    counts: dict[str, int | None]

    def files(self) -> "NetFiles":
        """Return the files of the networks."""
        from galley.speech.diarize.options import NetFiles

        return NetFiles(self.models, self.encoder, self.distance)

    def options(self) -> "DiarizeOptions":
        """Return the options of a diarization.

        Raises:
            SettingsError: a known speaker is not NAME=FILE, or the file cannot be read.
            RequestError: values contradict each other.
        """
        from galley.speech.diarize.options import DiarizeOptions

        names, voices = [], []
        for pair in self.known:
            name, equals, file = pair.partition("=")
            if not (name and equals and file):
                raise SettingsError(f"--speaker {pair}: expected NAME=FILE")
            try:
                voices.append(Path(file).read_bytes())
            except OSError as error:
                raise SettingsError(
                    f"--speaker {pair}: cannot read {file}: {error.strerror}"
                ) from error
            names.append(name)
        return DiarizeOptions(known_names=tuple(names), known_voices=tuple(voices), **self.counts)


_VOICES: Final = (
    click.option("--num-speakers", type=int, help="number of speakers; default: found"),
    click.option("--min-speakers", type=int, help="minimum number of speakers"),
    click.option("--max-speakers", type=int, help="maximum number of speakers"),
    click.option(
        "--speaker",
        metavar="NAME=FILE",
        multiple=True,
        help="a known speaker, and 2 to 10 s of that voice; repeat for several",
    ),
    click.option(
        "--speaker-models",
        metavar="DIR",
        type=click.Path(path_type=Path, file_okay=False),
        help="folder with segmentation.onnx and encoder.onnx; default: those of the source tree",
    ),
    click.option(
        "--speaker-encoder",
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        help="speaker encoder in ONNX form, as WeSpeaker, 3D-Speaker or Resemblyzer have them",
    ),
    click.option(
        "--speaker-distance",
        type=click.FloatRange(0, 2, min_open=True),
        help="cosine distance from which voices are different speakers; default: the encoder's usual one",
    ),
)


def speaker_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags of diarization to a command, which gets them as ``speakers``."""
    function = _with_speakers(command)
    return _all(
        function,
        click.option(
            "--diarize", is_flag=True, help="find the speakers, and label the text with them"
        ),
        *_VOICES,
        click.option("--rttm", is_flag=True, help="also write the turns as NAME.rttm"),
    )


def call_speaker_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags of speakers to a command that always finds them."""
    return _all(_with_speakers(command), *_VOICES)


def _all(function: Callable[..., None], *options: Callable[..., Any]) -> Callable[..., None]:
    for option in reversed(options):
        function = option(function)
    return function


def _with_speakers(command: Callable[..., None]) -> Callable[..., None]:
    @wraps(command)
    def with_speakers(
        *args: Any,
        speaker: tuple[str, ...],
        speaker_models: Path | None,
        speaker_encoder: Path | None,
        speaker_distance: float | None,
        diarize: bool = True,
        rttm: bool = False,
        **flags: Any,
    ) -> None:
        counts = {name: flags.pop(name) for name in _COUNTS}
        if not diarize:
            given = {
                "rttm": rttm,
                "speaker": speaker,
                "speaker_models": speaker_models,
                "speaker_encoder": speaker_encoder,
                "speaker_distance": speaker_distance,
                **counts,
            }
            for name, value in given.items():
                if value:
                    raise SettingsError(f"--{name.replace('_', '-')} needs --diarize")
        speakers = Speakers(
            wanted=diarize,
            rttm=rttm,
            known=speaker,
            models=speaker_models,
            encoder=speaker_encoder,
            distance=speaker_distance,
            counts=counts,
        )
        command(*args, speakers=speakers, **flags)

    return with_speakers


def write_rttm(found: "Diarization", file: Path, target: Path) -> None:
    """Write the turns of a recording as RTTM. Raises RequestError if that is not possible."""
    from galley.speech.diarize.speakers import as_rttm

    try:
        target.write_text("".join(as_rttm(file.stem, found)), encoding="utf-8")
    except OSError as error:
        raise RequestError(
            f"cannot write {target}: {error.strerror}; give --output-dir DIR"
        ) from error
    say_written(target)
