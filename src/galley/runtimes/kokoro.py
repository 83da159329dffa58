# ruff: noqa: RUF001 - punctuation
"""Kokoro voices (github.com/hexgrad/kokoro): one model in ONNX, and a file of voices.

The forms are those of kokoro-onnx (input ``tokens``) and of onnx-community (``input_ids``). The decoder
normalizes over all frames of a text, so a text's audio is synthesized as a whole, unlike that of VITS.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import numpy as np

from galley.errors import CheckpointError, UnsupportedModel
from galley.formats.json_file import read_file
from galley.runtimes.kokoro_styles import STYLE, find_styles, read_styles
from galley.runtimes.onnx import import_onnxruntime, session_options
from galley.runtimes.voice_engine import UnspeakableText
from galley.runtimes.voice_options import VoiceOptions
from galley.settings.engine_choice import VOICE_ENGINE
from galley.tts.espeak import Espeak, punctuated
from galley.tts.kokoro import TIE, VOCABULARY, from_espeak
from galley.tts.mixes import parse_mix
from galley.types import Speak
from galley.types.model_info import VoiceInfo

if TYPE_CHECKING:
    Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

RATE: Final = 24_000
MOST_PHONEMES: Final = 510
"""Most phonemes that the model reads at a time, without the two that enclose them."""

_BEST: Final = "af_heart"
"""The first voice where there is one: the one that Kokoro's authors grade best."""

_LANGUAGES: Final = {
    "a": ("en-US", "en-us"),
    "b": ("en-GB", "en-gb"),
    "e": ("es-ES", "es"),
    "f": ("fr-FR", "fr"),
    "h": ("hi-IN", "hi"),
    "i": ("it-IT", "it"),
    "p": ("pt-BR", "pt-br"),
}
"""First letter of a voice's name -> its language as a BCP 47 tag, and as espeak-ng names it."""

_NAMED: Final = re.compile(r"([a-z])[fm]_(.+)")
_UNREAD: Final = re.compile("[\u3040-\u30ff\u3400-\u9fff]")
"""Japanese and Chinese: Kokoro is trained with other phonemes than espeak-ng finds."""

_SPOKEN_MARKS: Final = {"–": "—"}
_ENDS: Final = re.compile(r"(?<=[.!?;:,—…])\s")
_QUIET: Final = 1e-3
"""Loudness, compared with the loudest part of the text, below which it is silence (60 dB)."""

_FRAME: Final = RATE // 100
_LEAD: Final = 3
_TAIL: Final = 25
_CLAUSE_TAIL: Final = 12
"""Frames of 10 ms of silence that are kept before a text, after it, and after one that ends in a clause."""


class _Config(msgspec.Struct):
    vocab: dict[str, int] = {}


class KokoroModel:
    """Session of onnxruntime for a Kokoro model. For one thread.

    Attributes:
        vocabulary: phoneme -> number, as the model was exported with it.
    """

    def __init__(self, file: Path, threads: int) -> None:
        """Load the model.

        Raises:
            CheckpointError: onnxruntime cannot read it.
            UnsupportedModel: its inputs are not those of Kokoro.
            SettingsError: onnxruntime is not installed.
        """
        ort = import_onnxruntime(VOICE_ENGINE, "voice")
        try:
            options = session_options(ort, threads)
            self._session = ort.InferenceSession(
                str(file), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's errors have no common base
            raise CheckpointError(f"onnxruntime cannot run it: {error}", file=str(file)) from error
        types = {one.name: one.type for one in self._session.get_inputs()}
        self._tokens = "input_ids" if "input_ids" in types else "tokens"
        if set(types) != {self._tokens, "style", "speed"}:
            raise UnsupportedModel(
                f"{file}: Kokoro has the inputs tokens (or input_ids), style and speed, and this model "
                f"has {', '.join(types)}"
            )
        self._style = np.float16 if types["style"] == "tensor(float16)" else np.float32
        self._whole_speeds = "int" in types["speed"]
        self._speed = {"tensor(int32)": np.int32, "tensor(int64)": np.int64}.get(
            types["speed"], np.float32
        )
        self.vocabulary = self._vocabulary(file)

    def speak(self, ids: list[int], style: "Array", speed: float) -> "Array":
        """Return the samples of phonemes.

        Args:
            ids: phonemes, :data:`MOST_PHONEMES` at most.
            style: float32 ``[STYLE]``.
            speed: pace; 1 is the voice's own.

        Raises:
            UnspeakableText: the model takes only whole speeds, and this one is not.
        """
        if self._whole_speeds and speed != int(speed):
            raise UnspeakableText(
                f"speed is {speed}, and this export of Kokoro takes only whole numbers"
            )
        given = {
            self._tokens: np.array([[0, *ids, 0]], np.int64),
            "style": style.reshape(1, STYLE).astype(self._style),
            "speed": np.array([speed], self._speed),
        }
        return np.asarray(self._session.run(None, given)[0], np.float32).reshape(-1)

    def _vocabulary(self, file: Path) -> Mapping[str, int]:
        """Return the vocabulary in the model's metadata, or in config.json next to it, or Kokoro's own."""
        known = self._session.get_modelmeta().custom_metadata_map.get("kokoro_config")
        place = file.with_name("config.json")
        try:
            if known is not None:
                config = msgspec.json.decode(known, type=_Config)
            elif place.is_file():
                config = msgspec.json.decode(read_file(place), type=_Config)
            else:
                return VOCABULARY
        except (msgspec.MsgspecError, RecursionError) as error:
            raise CheckpointError(
                f"its vocabulary cannot be read: {error}", file=str(file)
            ) from error
        return config.vocab or VOCABULARY


class KokoroVoice:
    """Kokoro with its voices: see :class:`galley.runtimes.voice_engine.VoiceModel`."""

    def __init__(
        self, model: KokoroModel, styles: "Mapping[str, Array]", options: VoiceOptions
    ) -> None:
        """Combine a model and its voices, float32 ``[lengths, STYLE]`` each.

        Raises:
            SettingsError: espeak-ng is not installed or lacks a language; or an alias is of no voice.
        """
        self._model, self._options = model, options
        names = sorted(styles, key=lambda name: name != _BEST)
        self._styles = {name: styles[name] for name in names}
        self._languages = {name: options.language or _language(name)[1] for name in names}
        options.check_aliases(self._styles)
        self._espeak = None
        if options.phonemes == "espeak":
            self._espeak = Espeak(self._languages[names[0]], TIE)
            for language in set(self._languages.values()):
                self._espeak.select(language)
        tags = {name: options.language or _language(name)[0] for name in names}
        if self._espeak is None:
            tags = dict.fromkeys(names, "")  # phonemes are not normalized
        self.info = VoiceInfo(
            sample_rate=RATE,
            voices=tuple(names),
            aliases={**_short_names(names), "default": names[0], **options.aliases},
            languages=tuple(dict.fromkeys(tag for tag in tags.values() if tag)),
            voice_languages=tags,
            mixes=True,
        )

    def speak(self, payload: Speak) -> "Iterator[tuple[Array, bool]]":
        """Yield the samples of a text; see :class:`galley.runtimes.voice_engine.VoiceModel`.

        A text is one part, unless it has more phonemes than the model reads at a time.
        """
        phonemes = self.phonemes(payload.text, payload.voice)
        parts = divided(phonemes)
        for part in parts:
            ids = [self._model.vocabulary[symbol] for symbol in part]
            style = self.style(payload.voice, len(ids))
            samples = self._model.speak(ids, style, payload.speed)
            yield trimmed(samples, _TAIL if part[-1] in ".!?" else _CLAUSE_TAIL), part is parts[-1]

    def style(self, voice: str, phonemes: int) -> "Array":
        """Return the style of a voice or a mix for a number of phonemes, float32 ``[STYLE]``."""
        mix = self._mixed(voice)
        total = sum(weight for _, weight in mix)
        made = np.zeros(STYLE, np.float32)
        for name, weight in mix:
            styles = self._styles[name]
            made += np.float32(weight / total) * styles[min(phonemes, len(styles)) - 1]
        return made

    def _mixed(self, voice: str) -> list[tuple[str, float]]:
        """Return the names and weights of a mix's voices; a voice is a mix of one."""
        mix = [(voice, 1.0)] if voice in self._styles else parse_mix(voice)
        assert mix, voice
        return mix

    def phonemes(self, text: str, voice: str) -> str:
        """Return the phonemes of a text that the model has.

        Raises:
            UnspeakableText: there are none, or the text is Japanese or Chinese.
        """
        known, espeak = self._model.vocabulary, self._espeak
        said = text
        if espeak is not None:
            if _UNREAD.search(text):
                raise UnspeakableText(
                    "Kokoro's phonemes of Japanese and Chinese are not those of espeak-ng; a model with "
                    """engine_options '{"phonemes": "text"}' takes phonemes as its text"""
                )
            language = self._languages[self._mixed(voice)[0][0]]
            espeak.select(language)
            said = from_espeak(punctuated(text, espeak.phonemes, _SPOKEN_MARKS), language)
        said = "".join(symbol for symbol in said if symbol in known).strip()
        if not any(symbol.isalnum() for symbol in said):
            raise UnspeakableText(f"the voice has no sounds for {text[:100]!r}")
        return said


def load_kokoro(file: Path, options: VoiceOptions, threads: int) -> KokoroVoice:
    """Load a model and its voices.

    Raises:
        ModelError, SettingsError: the files or the options cannot be used.
    """
    options.refuse_of_piper(file)
    styles = read_styles(find_styles(file, options.voices))
    return KokoroVoice(KokoroModel(file, threads), styles, options)


def divided(phonemes: str) -> list[str]:
    """Return phonemes in parts that the model can read, divided at marks, or else at words."""
    parts, rest = list[str](), phonemes
    while len(rest) > MOST_PHONEMES:
        ends = [match.end() for match in _ENDS.finditer(rest, 0, MOST_PHONEMES)]
        space = rest.rfind(" ", 1, MOST_PHONEMES)
        end = ends[-1] if ends else (space if space > 0 else MOST_PHONEMES)
        parts.append(rest[:end].strip())
        rest = rest[end:].strip()
    return [part for part in [*parts, rest] if part]


def trimmed(samples: "Array", tail: int) -> "Array":
    """Return samples without the silence around them that the model makes, apart from some frames.

    Args:
        samples: float32.
        tail: frames of 10 ms of silence that are kept at the end.
    """
    whole = samples[: len(samples) // _FRAME * _FRAME].reshape(-1, _FRAME)
    loudness = np.sqrt(np.square(whole).mean(axis=1))
    heard = np.flatnonzero(loudness > _QUIET * loudness.max(initial=0.0))
    if not len(heard):
        return samples
    begin = max(0, int(heard[0]) - _LEAD)
    return samples[begin * _FRAME : (int(heard[-1]) + 1 + tail) * _FRAME]


def _language(voice: str) -> tuple[str, str]:
    named = _NAMED.fullmatch(voice)
    return _LANGUAGES.get(named[1] if named else "a", _LANGUAGES["a"])


def _short_names(names: list[str]) -> dict[str, str]:
    """Return the names without their prefix, such as "bella" of "af_bella", of which there is only one."""
    short = [(match[2], name) for name in names if (match := _NAMED.fullmatch(name))]
    several = {one for one, _ in short if [other for other, _ in short].count(one) > 1}
    return {one: name for one, name in short if one not in several and one not in names}
