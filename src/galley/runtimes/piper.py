# ruff: noqa: RUF001 - punctuation
"""Piper voices: a VITS model in ONNX, and next to it a JSON file with the same name and ``.json`` added.

The file is read as Piper writes it (github.com/OHF-Voice/piper1-gpl, docs/VOICES.md).
"""

import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from galley.errors import CheckpointError, UnsupportedModel
from galley.formats.json_file import read_file
from galley.runtimes.vits import Scales, VitsModel
from galley.runtimes.voice_engine import UnspeakableText
from galley.runtimes.voice_options import Noise, VoiceOptions
from galley.settings.engine_choice import voice_config
from galley.tts.espeak import Espeak, punctuated
from galley.types import Speak
from galley.types.model_info import VoiceInfo

if TYPE_CHECKING:
    from galley.runtimes.vits import Array

_PAD: Final = "_"
_BEGIN: Final = "^"
_END: Final = "$"
_SPOKEN_MARKS: Final = {"…": ".", "—": ",", "–": ","}
"""Marks that voices are not trained with -> what is said in their place."""

Ids = tuple[Annotated[int, msgspec.Meta(ge=0, lt=65536)], ...]


class _Audio(msgspec.Struct):
    sample_rate: Annotated[int, msgspec.Meta(ge=8000, le=192000)]


class _EspeakVoice(msgspec.Struct):
    voice: str = "en-us"


class _Inference(msgspec.Struct):
    noise_scale: Noise = 0.667
    # The length of the audio, and so the memory for it, is in proportion.
    length_scale: Annotated[float, msgspec.Meta(ge=0.05, le=20)] = 1.0
    noise_w: Noise = 0.8


class _Language(msgspec.Struct):
    code: str = ""


class PiperConfig(msgspec.Struct, kw_only=True):
    """The JSON file of a voice; fields that do not shape its speech are not read."""

    audio: _Audio
    phoneme_id_map: dict[str, Ids]
    espeak: _EspeakVoice = msgspec.field(default_factory=_EspeakVoice)
    inference: _Inference = msgspec.field(default_factory=_Inference)
    language: _Language = msgspec.field(default_factory=_Language)
    phoneme_type: str = "espeak"
    phoneme_map: dict[str, tuple[str, ...]] = {}
    num_speakers: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 1
    speaker_id_map: dict[str, Annotated[int, msgspec.Meta(ge=0)]] = {}
    dataset: str = ""


class PiperVoice:
    """A voice: see :class:`galley.runtimes.voice_engine.VoiceModel`."""

    def __init__(
        self, model: VitsModel, config: PiperConfig, options: VoiceOptions, path: Path
    ) -> None:
        """Combine a model and its configuration.

        Raises:
            CheckpointError: the configuration lacks a phoneme that every text needs, or a speaker.
            SettingsError: espeak-ng, which finds the phonemes, is not installed; or an alias is of no
                voice.
            UnsupportedModel: the phonemes are found in a way that is not supported.
        """
        self._model, self._config = model, config
        for needed in (_PAD, _BEGIN, _END):
            if needed not in config.phoneme_id_map:
                raise CheckpointError(f"phoneme_id_map has no {needed!r}", file=str(path))
        if model.has_speakers != (config.num_speakers > 1):
            takes = "takes a speaker's number" if model.has_speakers else "has one speaker"
            raise CheckpointError(
                f"num_speakers is {config.num_speakers}, but the model {takes}", file=str(path)
            )
        self._espeak = None
        if config.phoneme_type == "espeak":
            self._espeak = Espeak(config.espeak.voice)
        elif config.phoneme_type != "text":
            raise UnsupportedModel(
                f"{path}: phoneme_type is {config.phoneme_type!r}; supported are espeak and text"
            )
        self._speakers = _speakers(config, path)
        options.check_aliases(self._speakers)
        own, varies = config.inference, options.duration_noise
        self._scales = Scales(
            noise=own.noise_scale if options.noise is None else options.noise,
            length=own.length_scale,
            duration_noise=own.noise_w if varies is None else varies,
        )
        aliases = {} if model.has_speakers else {path.name.removesuffix(".onnx.json"): self.first}
        self.info = VoiceInfo(
            sample_rate=config.audio.sample_rate,
            voices=tuple(self._speakers),
            aliases={**aliases, "default": self.first, **options.aliases},
            languages=((config.language.code or config.espeak.voice).replace("_", "-"),),
            streams=model.streams,
        )

    @property
    def first(self) -> str:
        """The name of the first voice."""
        return next(iter(self._speakers))

    def speak(self, payload: Speak) -> "Iterator[tuple[Array, bool]]":
        """Return the samples of a text in parts; see :class:`galley.runtimes.voice_engine.VoiceModel`."""
        ids = self.ids(payload.text)
        scales = replace(self._scales, length=self._scales.length / payload.speed)
        return self._model.speak(ids, scales, self._speakers[payload.voice], seed=payload.seed)

    def ids(self, text: str) -> list[int]:
        """Return the phonemes of a text as the model numbers them; those that it lacks are left out.

        Raises:
            UnspeakableText: there are none.
        """
        known = self._config.phoneme_id_map
        pad = known[_PAD]
        ids, found = [*known[_BEGIN], *pad], False
        for phoneme in unicodedata.normalize("NFD", self._phonemes(text)):
            for part in self._config.phoneme_map.get(phoneme, (phoneme,)):
                if part in known and part not in (_PAD, _BEGIN, _END):
                    ids += (*known[part], *pad)
                    found = found or part.isalnum()
        if not found:
            raise UnspeakableText(f"the voice has no sounds for {text[:100]!r}")
        return [*ids, *known[_END]]

    def _phonemes(self, text: str) -> str:
        if self._espeak is None:
            return text
        return punctuated(text, self._espeak.phonemes, _SPOKEN_MARKS)


def load_piper(file: Path, options: VoiceOptions, threads: int) -> PiperVoice:
    """Load the voice of a file and its configuration.

    Raises:
        ModelError, SettingsError: the files or the options cannot be used.
    """
    options.refuse_of_kokoro(file)
    config = read_config(voice_config(file))
    return PiperVoice(VitsModel(file, threads), config, options, voice_config(file))


def read_config(path: Path) -> PiperConfig:
    """Read a voice's JSON file. Raises CheckpointError if it is missing or a field is wrong."""
    try:
        return msgspec.json.decode(read_file(path), type=PiperConfig, strict=False)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CheckpointError(f"this is not a Piper voice: {error}", file=str(path)) from error


def _speakers(config: PiperConfig, path: Path) -> dict[str, int]:
    """Return the name of each speaker and its number."""
    if config.num_speakers == 1:
        return {config.dataset or path.name.removesuffix(".onnx.json"): 0}
    for name, number in config.speaker_id_map.items():
        if number >= config.num_speakers:
            raise CheckpointError(
                f"speaker {name!r} has number {number}, and there are {config.num_speakers}",
                file=str(path),
            )
    named = dict(sorted(config.speaker_id_map.items(), key=lambda one: one[1]))
    return named or {str(number): number for number in range(config.num_speakers)}
