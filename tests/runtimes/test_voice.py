"""Voices in the test's own process: parts of the audio, turns, recovery and errors."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from galley.errors import CheckpointError, SettingsError, UnsupportedModel
from galley.runtimes.vits import VitsModel
from galley.runtimes.voice_engine import VoiceEngine
from galley.runtimes.voices import load
from galley.service.voice_requests import speak_request
from galley.settings.engine import EngineSettings
from galley.settings.engine_choice import engine_of
from galley.types import Audio, Output
from tests.runtimes import voice_files
from tests.runtimes.voice_files import FRAMES_OF_PHONEME, HOP

LONG = "the quick brown fox jumps over the lazy dog, and so on."


def engine_of_voice(path: Path, options: str = "", **settings: Any) -> VoiceEngine:
    return load(
        EngineSettings(model=str(path), threads=1, engine_options=options, **settings), path
    )


def add(engine: VoiceEngine, name: str, text: str, voice: str = "ada", **wanted: Any) -> None:
    engine.add(speak_request(text, engine.info, request_id=name, voice=voice, **wanted))


def outputs_of(engine: VoiceEngine) -> list[Output]:
    outputs = []
    while engine.has_work:
        outputs += engine.step()
    return outputs


def samples(outputs: list[Output], name: str = "a") -> Any:
    parts = [o.result.data for o in outputs if o.request_id == name and isinstance(o.result, Audio)]
    return np.frombuffer(b"".join(parts), "<i2")


def computed(path: Path, text: str, speaker: int | None = None, length: float = 1.0) -> Any:
    """Return the samples that onnxruntime computes of the whole graph."""
    known = voice_files.config()["phoneme_id_map"]
    ids = [*known["^"], 0]
    for letter in text:
        ids += [*known[letter], 0]
    given: dict[str, Any] = {
        "input": np.array([[*ids, *known["$"]]], np.int64),
        "input_lengths": np.array([len(ids) + 1], np.int64),
        "scales": np.array([0, length, 0], np.float32),
    }
    if speaker is not None:
        given["sid"] = np.array([speaker], np.int64)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, given)[0].ravel() * 32767


@pytest.mark.parametrize("divisible", [True, False])
def test_parts_of_the_audio_are_those_of_the_whole_graph(tmp_path: Path, divisible: bool) -> None:
    path = voice_files.voice(tmp_path / "v.onnx", divisible=divisible)
    assert engine_of(str(path)) == engine_of(str(tmp_path)) == "voice"
    engine = engine_of_voice(path)
    info = engine.info.voice
    assert info is not None
    assert info.streams == divisible
    assert info.voices == ("ada",)
    assert info.aliases == {"v": "ada", "default": "ada"}
    assert (info.languages, info.sample_rate) == (("en-US",), voice_files.RATE)
    add(engine, "a", LONG)
    outputs = outputs_of(engine)
    assert [o.finish_reason for o in outputs] == [None] * (len(outputs) - 1) + ["stop"]
    assert (len(outputs) > 3) == divisible
    wanted = computed(path, LONG)
    assert len(wanted) == (2 * len(LONG) + 3) * FRAMES_OF_PHONEME * HOP
    assert np.abs(samples(outputs) - wanted).max() <= 4  # of 32,767
    timing = outputs[-1].timing
    assert timing is not None
    assert 0 < timing.first_token <= timing.total
    assert timing.engine_seconds == pytest.approx(engine.stats.busy_seconds)


def test_a_graph_whose_parts_cannot_be_run_is_computed_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: VitsModel) -> bool:
        raise RuntimeError(
            "Type Error: Type parameter (T) of Optype (Add) bound to different types"
        )

    monkeypatch.setattr(VitsModel, "_agrees", fails)
    path = voice_files.voice(tmp_path / "v.onnx")
    engine = engine_of_voice(path)
    assert engine.info.voice is not None
    assert not engine.info.voice.streams
    add(engine, "a", "one, two.")
    assert np.abs(samples(outputs_of(engine)) - computed(path, "one, two.")).max() <= 4  # of 32,767


def test_speed_and_speakers_change_the_speech(tmp_path: Path) -> None:
    path = voice_files.voice(tmp_path / "v.onnx", speakers=True)
    engine = engine_of_voice(path, '{"aliases": {"alloy": "bob"}}')
    info = engine.info.voice
    assert info is not None
    assert info.streams
    assert info.aliases == {"default": "ada", "alloy": "bob"}
    for number, name in enumerate(info.voices):
        add(engine, name, LONG, voice=name)
        mine = samples(outputs_of(engine), name)
        assert np.abs(mine - computed(path, LONG, number)).max() <= 4
        assert np.abs(mine - computed(path, LONG, 1 - number)).max() > 100
    add(engine, "a", LONG, speed=2.0)
    assert np.abs(samples(outputs_of(engine)) - computed(path, LONG, 0, 0.5)).max() <= 4


def test_a_new_text_is_spoken_before_others_are_far_ahead(tmp_path: Path) -> None:
    engine = engine_of_voice(voice_files.voice(tmp_path / "v.onnx"), '{"max_active": 2}')
    add(engine, "a", LONG)
    [first] = engine.step()
    add(engine, "b", LONG)
    add(engine, "c", LONG)
    assert (engine.stats.running, engine.stats.waiting) == (2, 1)
    [second] = engine.step()
    assert [first.request_id, second.request_id] == ["a", "b"]
    # A text whose listener has a minute of audio left waits for the others.
    add(engine, "d", "later", ahead=60.0)
    engine.abort(["a", "unknown"])
    rest = outputs_of(engine)
    ended = [output.request_id for output in rest if output.finish_reason]
    assert sorted(ended[:2]) == ["b", "c"]
    assert ended[2:] == ["d"]
    whole = samples([second, *rest], "b")
    assert (whole == samples(rest, "c")).all()
    assert not engine.has_work


@pytest.mark.parametrize("divisible", [True, False])
def test_a_text_continues_in_a_new_engine(tmp_path: Path, divisible: bool) -> None:
    path = voice_files.voice(
        tmp_path / "v.onnx", divisible=divisible, inference={"noise_scale": 1.0, "noise_w": 1.0}
    )
    engine = engine_of_voice(path)
    add(engine, "before", LONG)
    add(engine, "other", LONG)
    spoken = outputs_of(engine)
    assert (
        np.abs(samples(spoken, "before") - 1.0 * samples(spoken, "other")).max() > 100
    )  # it varies
    request = speak_request(LONG, engine.info, request_id="a", voice="ada")
    engine.add(request)
    begun = engine.step()  # a part, or all of it
    whole = samples(begun + outputs_of(engine))
    delivered = min(len(samples(begun)), len(whole) // 2)
    again = engine_of_voice(path)
    payload = request.payload.resumed([], answered=True, samples=delivered)
    again.add(type(request)(id="a", payload=payload))
    assert (samples(outputs_of(again)) == whole[delivered:]).all()


def test_a_text_without_known_sounds_is_refused_alone(tmp_path: Path) -> None:
    engine = engine_of_voice(voice_files.voice(tmp_path / "v.onnx"))
    add(engine, "a", "Ω")
    add(engine, "b", "fine")
    refused, *others = outputs_of(engine)
    assert (refused.finish_reason, refused.refused) == ("error", True)
    assert "no sounds for 'Ω'" in (refused.error or "")
    assert others[-1].finish_reason == "stop"


@pytest.mark.parametrize(
    ("changed", "kind", "says"),
    [
        ({"phoneme_type": "pinyin"}, UnsupportedModel, "phoneme_type is 'pinyin'"),
        ({"phoneme_id_map": {"a": [1]}}, CheckpointError, "phoneme_id_map has no '_'"),
        ({"num_speakers": 3}, CheckpointError, "num_speakers is 3, but the model has one speaker"),
        ({"audio": {"sample_rate": 1}}, CheckpointError, "not a Piper voice: .*sample_rate"),
        (
            {"inference": {"length_scale": "inf"}},
            CheckpointError,
            "not a Piper voice: .*length_scale",
        ),
        (
            {"phoneme_type": "espeak", "espeak": {"voice": "xx-none"}},
            SettingsError,
            "espeak-ng",
        ),
    ],
)
def test_what_is_wrong_with_a_voice_is_named(
    tmp_path: Path, changed: dict[str, Any], kind: type[Exception], says: str
) -> None:
    path = voice_files.voice(tmp_path / "v.onnx", **changed)
    with pytest.raises(kind, match=says):
        engine_of_voice(path)


def test_other_graphs_options_and_missing_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = voice_files.voice(tmp_path / "v.onnx")
    with pytest.raises(SettingsError, match="alias 'x' is for voice 'y'; the voices are ada"):
        engine_of_voice(path, '{"aliases": {"x": "y"}}')
    for name, value in (("dtype", "float32"), ("speculation", "recent")):
        with pytest.raises(SettingsError, match=rf"{name} is '{value}', but .* is a voice"):
            engine_of_voice(path, **{name: value})
    described = path.with_name("v.onnx.json")
    fields = json.loads(described.read_text(encoding="utf-8"))
    described.write_text(json.dumps(fields | {"phoneme_type": "espeak"}), encoding="utf-8")
    monkeypatch.setenv("GALLEY_ESPEAK_LIBRARY", "/no/such/library.so")
    with pytest.raises(SettingsError, match=r"apt-get install espeak-ng"):
        engine_of_voice(path)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "onnxruntime", None)
        with pytest.raises(SettingsError, match=r"engine voice needs onnxruntime.*\[voice\]"):
            load(EngineSettings(model=str(path)), path)
    path.write_bytes(b"no model" * 100)
    with pytest.raises(CheckpointError, match="not an ONNX model"):
        engine_of_voice(path)
