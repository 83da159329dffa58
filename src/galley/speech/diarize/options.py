"""Options of diarization, validated at construction."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from galley.errors import RequestError

MOST_SPEAKERS = 32


@dataclass(frozen=True)
class NetFiles:
    """The files of the networks of diarization.

    Attributes:
        folder: has ``segmentation.onnx`` and ``encoder.onnx``; None: the bundled ones.
        encoder: the speaker encoder; None: that of the folder.
        distance: cosine distance from which voices are different speakers; None: the usual one of encoders
            of this form.
    """

    folder: Path | None = None
    encoder: Path | None = None
    distance: float | None = None


BUNDLED_FILES: Final = NetFiles()


@dataclass(frozen=True, kw_only=True)
class DiarizeOptions:
    """Options of one diarization.

    Attributes:
        num_speakers: the number of speakers, if it is known; None: it is found.
        min_speakers, max_speakers: bounds of a number that is found.
        known_names: names of speakers whose voices are known.
        known_voices: a recording of each, as a file's bytes: 2 to 10 s of that speaker alone.

    Raises:
        RequestError: a value is out of range, or values contradict each other; ``param`` names it.
    """

    num_speakers: int | None = None
    min_speakers: int | None = None
    max_speakers: int | None = None
    known_names: tuple[str, ...] = ()
    known_voices: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        for name in ("num_speakers", "min_speakers", "max_speakers"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MOST_SPEAKERS:
                raise RequestError(
                    f"{name} must be between 1 and {MOST_SPEAKERS}, got {value}", param=name
                )
            if value is not None and name != "num_speakers" and self.num_speakers is not None:
                raise RequestError(
                    f"num_speakers sets the number of speakers; leave out {name}", param=name
                )
        if self.least > (self.most or MOST_SPEAKERS):
            raise RequestError(
                f"min_speakers ({self.least}) is above max_speakers ({self.most})",
                param="min_speakers",
            )
        if len(self.known_names) != len(self.known_voices):
            raise RequestError(
                f"{len(self.known_names)} names and {len(self.known_voices)} references of known speakers; "
                "each name needs one reference",
                param="known_speaker_names",
            )
        if len(self.known_names) > MOST_SPEAKERS:
            raise RequestError(
                f"{len(self.known_names)} known speakers; at most {MOST_SPEAKERS} are possible",
                param="known_speaker_names",
            )
        if len(set(self.known_names)) < len(self.known_names):
            raise RequestError("two known speakers have the same name", param="known_speaker_names")

    @property
    def least(self) -> int:
        """Least number of speakers."""
        return self.num_speakers or self.min_speakers or 1

    @property
    def most(self) -> int | None:
        """Most speakers; None: no bound."""
        return self.num_speakers or self.max_speakers
