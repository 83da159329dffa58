"""The ``engine_options`` of engine ``voice``."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from galley.errors import SettingsError

Noise = Annotated[float, msgspec.Meta(ge=0, le=2)]

_SHOWN: Final = 20


class VoiceOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of voices; each form refuses those of the other.

    Attributes:
        aliases: further names of voices, such as those of OpenAI -> the voice's name.
        max_active: texts whose audio is made at a time.
        noise, duration_noise: of a Piper voice: how much the sound and the durations vary; None: as the
            voice says. With 0 for both, a text is spoken the same way each time.
        voices: of Kokoro: path of the file or folder of its voices; empty: next to the model.
        language: of Kokoro: espeak-ng's name of the language that all voices read; empty: each voice its
            own.
        phonemes: of Kokoro: what finds the phonemes; "text": the text is phonemes.
    """

    aliases: dict[str, str] = msgspec.field(default_factory=dict)
    max_active: Annotated[int, msgspec.Meta(ge=1, le=256)] = 16
    noise: Noise | None = None
    duration_noise: Noise | None = None
    voices: str = ""
    language: str = ""
    phonemes: Literal["espeak", "text"] = "espeak"

    def refuse_of_piper(self, file: Path) -> None:
        """Raise SettingsError for an option of Piper voices alone."""
        self._refuse(file, "Kokoro, whose voices do not vary", ("noise", "duration_noise"))

    def refuse_of_kokoro(self, file: Path) -> None:
        """Raise SettingsError for an option of Kokoro alone."""
        self._refuse(
            file, "a Piper voice, whose JSON file says this", ("voices", "language", "phonemes")
        )

    def check_aliases(self, voices: Collection[str]) -> None:
        """Raise SettingsError for an alias of a voice that there is not."""
        for alias, name in self.aliases.items():
            if name not in voices:
                raise SettingsError(
                    f"engine_options: alias {alias!r} is for voice {name!r}; the voices are "
                    f"{', '.join(list(voices)[:_SHOWN])}"
                )

    def _refuse(self, file: Path, what: str, names: tuple[str, ...]) -> None:
        unset = VoiceOptions()
        for name in names:
            if getattr(self, name) != getattr(unset, name):
                given = getattr(self, name)
                raise SettingsError(f"engine_options: {name} is {given!r}, but {file} is {what}")
