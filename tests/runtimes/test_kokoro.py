# ruff: noqa: RUF001 - phonemes
"""Kokoro's voices: what is spoken, mixes, languages, forms of files and errors."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

from galley.errors import CheckpointError, ModelError, RequestError, SettingsError, UnsupportedModel
from galley.llm.speaker import Speaker
from galley.runtimes.kokoro import MOST_PHONEMES, divided, load_kokoro, trimmed
from galley.runtimes.voice_engine import VoiceEngine
from galley.runtimes.voice_options import VoiceOptions
from galley.runtimes.voices import load
from galley.service.voice_requests import language_of, speak_request, voice_of
from galley.settings.engine import EngineSettings
from galley.settings.engine_choice import engine_of
from galley.tts.espeak import Espeak, punctuated
from galley.tts.kokoro import TIE, VOCABULARY, from_espeak
from galley.types import Audio, Output
from tests.runtimes import kokoro_files
from tests.runtimes.kokoro_files import NAMES, SAMPLES_OF_PHONEME

PHONEMES = '{"phonemes": "text"}'
SAID = "ðə tɹˈAn lˈivz."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    kokoro_files.model(tmp_path / "kokoro.onnx")
    kokoro_files.write_archive(tmp_path / "voices-v1.0.bin", kokoro_files.styles())
    return tmp_path


def engine_of_folder(folder: Path, options: str = PHONEMES) -> VoiceEngine:
    return load(EngineSettings(model=str(folder), threads=1, engine_options=options), folder)


def outputs_of(
    engine: VoiceEngine, text: str, voice: str | None = None, speed: float = 1.0
) -> list[Output]:
    name = voice_of(voice, engine.info)
    engine.add(speak_request(text, engine.info, request_id="a", voice=name, speed=speed))
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    return outputs


def spoken(engine: VoiceEngine, text: str, voice: str | None = None, speed: float = 1.0) -> Any:
    outputs = outputs_of(engine, text, voice, speed)
    assert outputs[-1].finish_reason == "stop", outputs[-1].error
    data = [output.result.data for output in outputs if isinstance(output.result, Audio)]
    return np.frombuffer(b"".join(data), "<i2")


def computed(folder: Path, phonemes: str, style: Any, speed: float = 1.0) -> Any:
    """Return what onnxruntime computes; style n - 1 is that of n phonemes, as in hexgrad/kokoro."""
    ids = [VOCABULARY[symbol] for symbol in phonemes]
    session = onnxruntime.InferenceSession(folder / "kokoro.onnx")
    given = {
        "tokens": np.array([[0, *ids, 0]], np.int64),
        "style": style[len(ids) - 1],
        "speed": np.array([speed], np.float32),
    }
    return (session.run(None, given)[0] * 32767).astype("<i2")


def test_the_audio_is_that_of_the_model_and_the_style_for_the_length(folder: Path) -> None:
    assert engine_of(str(folder)) == engine_of(str(folder / "kokoro.onnx")) == "voice"
    engine, styles = engine_of_folder(folder), kokoro_files.styles()
    info = engine.info.voice
    assert info is not None
    assert info.voices == ("af_heart", "am_ada", "bf_bea", "zf_zoe")
    assert info.aliases["default"] == "af_heart"
    assert info.aliases["bea"] == "bf_bea"
    assert (info.sample_rate, info.streams, info.mixes) == (24_000, False, True)
    for voice in NAMES:
        wanted = computed(folder, SAID, styles[voice])
        assert len(wanted) == (len(SAID) + 2) * SAMPLES_OF_PHONEME
        assert (spoken(engine, SAID, voice) == wanted).all()
    assert (spoken(engine, SAID) == computed(folder, SAID, styles["af_heart"])).all()
    fast = computed(folder, SAID, styles["am_ada"], 2.0)
    assert (spoken(engine, SAID, "ada", speed=2.0) == fast).all()


def test_mixes_are_weighted_means_of_styles(folder: Path) -> None:
    engine, styles = engine_of_folder(folder), kokoro_files.styles()
    half = (styles["am_ada"] + styles["bf_bea"]) / 2
    third = (2 * styles["am_ada"] + styles["bf_bea"]) / 3
    for name, style in {
        "am_ada+bf_bea": half,
        "ada + bea": half,
        "ada(0.5)+bea(0.5)": half,
        "am_ada(2)+bea": third,
        "ada+bea+ada": third,
        "ada(3)": styles["am_ada"],
    }.items():
        # The order of sums may change the last bit of a style.
        difference = spoken(engine, SAID, name).astype(int) - computed(folder, SAID, style)
        assert np.abs(difference).max() <= 1, name
    assert voice_of("ada(2)+bea", engine.info) == "am_ada(2.000000)+bf_bea"


@pytest.mark.parametrize(
    ("voice", "says"),
    [
        ("ada+xenia", "no voice 'xenia'"),
        ("ada+", "nor a mix of up to 8 voices"),
        ("ada(0)+bea(0)", "nor a mix"),
        ("ada(-1)+bea", "nor a mix"),
        ("ada(nan)+bea", "nor a mix"),
        ("+".join(["ada"] * 9), "nor a mix of up to 8"),
        ("ada,bea", "no voice 'ada,bea'|mixing"),
    ],
)
def test_a_mix_that_cannot_be_honored_is_refused_by_name(
    folder: Path, voice: str, says: str
) -> None:
    with pytest.raises(RequestError, match=says):
        voice_of(voice, engine_of_folder(folder).info)


def test_long_texts_are_divided_where_they_pause(folder: Path) -> None:
    engine, style = engine_of_folder(folder), kokoro_files.styles()["af_heart"]
    text = ("ˈabcd, " * 100).strip()
    parts = divided(text)
    assert " ".join(parts) == text
    assert len(parts) == 2
    assert all(part.endswith(",") and len(part) <= MOST_PHONEMES for part in parts)
    wanted = np.concatenate([computed(folder, part, style) for part in parts])
    assert (spoken(engine, text) == wanted).all()
    assert [len(part) for part in divided("a" * 1200)] == [510, 510, 180]
    assert divided("ab " * 300)[0].endswith("ab")


def test_only_short_silence_is_kept() -> None:
    tone = np.sin(np.arange(24_000) / 10).astype("f4")
    quiet = np.full(24_000, 1e-4, "f4")
    kept = trimmed(np.concatenate([quiet, tone, quiet]), 25)
    assert len(kept) == 720 + 24_000 + 6_000
    assert np.abs(kept[:720]).max() < 1e-3
    assert (trimmed(quiet * 0, 25) == quiet * 0).all()


def test_phonemes_are_those_that_the_model_was_trained_with() -> None:
    # From misaki 0.9.4: EspeakFallback(british=...) and EspeakG2P with espeak-ng.
    cases = {
        "en-us": ("The train leaves at ten, oh boy!", "ðə tɹˈAn lˈivz æt tˈɛn, ˈO bˈY!"),
        "en-gb": ("A bird in the judge's church.", "ə bˈɜːd ɪnðə ʤˈʌʤɪz ʧˈɜːʧ."),
        "fr": ("Bonjour, les enfants.", "bɔ̃ʒˈuʁ, lez ɑ̃fˈɑ̃."),
    }
    espeak = Espeak("en-us", TIE)
    for language, (text, wanted) in cases.items():
        espeak.select(language)
        said = from_espeak(punctuated(text, espeak.phonemes, {}), language)
        assert said == wanted


def test_each_voice_reads_its_own_language(folder: Path) -> None:
    engine = engine_of_folder(folder, "")
    info = engine.info.voice
    assert info is not None
    assert info.languages == ("en-US", "en-GB")
    assert language_of("bf_bea", info) == language_of("bf_bea+am_ada", info) == "en-GB"
    assert language_of("zf_zoe", info) == "en-US"
    voices = load_kokoro(folder / "kokoro.onnx", VoiceOptions(), 1)
    phonemes = {voice: voices.phonemes("over there", voice) for voice in ("am_ada", "bf_bea")}
    assert phonemes == {"am_ada": "ˌOvəɹ ðˈɛɹ", "bf_bea": "ˌQvə ðˈɛː"}
    [refused] = outputs_of(engine, "今日は")
    assert refused.refused
    assert "Japanese and Chinese" in (refused.error or "")
    [refused] = outputs_of(engine, "...")
    assert "no sounds for" in (refused.error or "")


def test_voices_are_read_in_all_published_forms(folder: Path) -> None:
    styles, archive = kokoro_files.styles(), folder / "voices-v1.0.bin"
    wanted = spoken(engine_of_folder(folder), SAID, "am_ada")
    archive.rename(folder / "styles.npz")
    options = f'{{"phonemes": "text", "voices": "{folder / "styles.npz"}"}}'
    assert (spoken(engine_of_folder(folder, options), SAID, "am_ada") == wanted).all()
    # onnx-community's form: a folder of values, and the model in a folder of its own.
    (folder / "voices").mkdir()
    for name, style in styles.items():
        (folder / "voices" / f"{name}.bin").write_bytes(style.tobytes())
    assert (spoken(engine_of_folder(folder), SAID, "am_ada") == wanted).all()
    (folder / "onnx").mkdir()
    path = kokoro_files.model(folder / "onnx" / "model.onnx", tokens="input_ids")
    assert engine_of(str(path)) == "voice"
    assert (spoken(engine_of_folder(path), SAID, "am_ada") == wanted).all()


def test_the_vocabulary_of_the_export_is_used(folder: Path) -> None:
    vocabulary = '{"vocab": {"a": 44, "x": 43}}'
    wanted = spoken(engine_of_folder(folder), "ab")
    kokoro_files.model(folder / "kokoro.onnx", kokoro_config=vocabulary)
    assert (spoken(engine_of_folder(folder), "xa") == wanted).all()
    kokoro_files.model(folder / "kokoro.onnx")
    (folder / "config.json").write_text(vocabulary, encoding="utf-8")
    assert (spoken(engine_of_folder(folder), "xa") == wanted).all()
    (folder / "config.json").write_text("[", encoding="utf-8")
    with pytest.raises(CheckpointError, match="vocabulary cannot be read"):
        engine_of_folder(folder)


def test_an_export_with_whole_speeds_refuses_others(folder: Path) -> None:
    kokoro_files.model(folder / "kokoro.onnx", speed=TensorProto.INT32)
    engine = engine_of_folder(folder)
    assert len(spoken(engine, SAID, speed=2.0)) == len(spoken(engine, SAID)) / 2
    [refused] = outputs_of(engine, SAID, speed=1.5)
    assert refused.refused
    assert "speed is 1.5, and this export" in (refused.error or "")


@pytest.mark.parametrize(
    ("voices", "says"),
    [
        ({"af_x": np.ones([4, 1, 128], "f4")}, "'af_x' is float32 of shape"),
        ({"af_x": np.ones([4, 2, 256], "f4")}, "'af_x' is float32 of shape"),
        ({"af_x": np.full([4, 1, 256], np.nan, "f4")}, "not finite"),
        (
            {"af_x": np.array([{}], object)},
            "not hold Kokoro's voices: Object arrays cannot be loaded",
        ),
        ({}, "it holds no voice"),
    ],
)
def test_files_without_proper_voices_are_refused(
    folder: Path, voices: dict[str, Any], says: str
) -> None:
    kokoro_files.write_archive(folder / "voices-v1.0.bin", voices)
    with pytest.raises(CheckpointError, match=says):
        engine_of_folder(folder)


def test_what_is_missing_or_does_not_apply_is_named(folder: Path) -> None:
    with pytest.raises(SettingsError, match=r"noise is 0\.5, but .* is Kokoro"):
        engine_of_folder(folder, '{"noise": 0.5}')
    with pytest.raises(SettingsError, match="no language 'xx'"):
        engine_of_folder(folder, '{"language": "xx"}')
    with pytest.raises(SettingsError, match="alias 'x' is for voice 'y'"):
        engine_of_folder(folder, '{"aliases": {"x": "y"}, "phonemes": "text"}')
    kokoro_files.write_archive(folder / "voices-2.npz", kokoro_files.styles())
    with pytest.raises(CheckpointError, match=r"several .*voices-v1\.0\.bin, voices-2\.npz"):
        engine_of_folder(folder)
    for file in folder.glob("voices*"):
        file.unlink()
    path = folder / "kokoro.onnx"
    alone = EngineSettings(model=str(path), engine="voice", threads=1)
    with pytest.raises(
        CheckpointError, match=r"neither kokoro\.onnx\.json.* nor the voices of Kokoro"
    ):
        load(alone, path)
    (folder / "voices.bin").write_bytes(b"\0" * 1000)
    with pytest.raises(CheckpointError, match="not hold Kokoro's voices: cannot reshape"):
        load(alone, path)
    kokoro_files.write_archive(folder / "voices.bin", kokoro_files.styles())
    kokoro_files.model(path, tokens="words")
    with pytest.raises(UnsupportedModel, match="this model has words, style, speed"):
        load(alone, path)
    path.write_bytes(b"no model")
    with pytest.raises(ModelError, match="onnxruntime cannot run it"):
        load(alone, path)


def test_a_speaker_reads_a_text_piece_by_piece(folder: Path) -> None:
    settings = EngineSettings(model=str(folder), threads=1)
    with Speaker(settings) as speaker:
        parts = list(speaker.speak("Dr. Brown arrives at 10:05. We wait.", voice="ada+bea"))
        assert len(parts) == 2
        with pytest.raises(RequestError, match="no voice 'nobody'"):
            speaker.speak("Hello.", voice="nobody")
