"""Calls with music and key tones: what the recognizer gets, what is reported and what is written."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from galley.calls.pipeline import CallOptions, Pipeline
from galley.redact.spans import Kind
from galley.speech.audio import Recording, Samples
from galley.speech.decoder import DecodedRecording, Decoder
from galley.speech.diarize.options import DiarizeOptions
from galley.speech.options import QualityRules, SpeechOptions, TranscribeOptions
from galley.speech.transcribe import Transcriber
from tests.speech.recordings import CALL, encode
from tests.speech.sounds import press, tune

RATE = 16_000
MUSIC = 8
AFTER_MUSIC = RATE * MUSIC
RULES = QualityRules(beam_size=1, temperatures=(0.0,))


@pytest.fixture(scope="module")
def transcriber() -> Iterator[Transcriber]:
    with Transcriber(threads=1) as transcriber:
        yield transcriber


@pytest.fixture(scope="module")
def call() -> Samples:
    """Return music, a person, and two keys."""
    speech = np.concatenate(list(Recording(CALL)))[: 6 * RATE]
    speech = speech * np.float32(0.3 / np.abs(speech).max())
    return np.concatenate([tune(MUSIC), speech, press(697, 1209, 80), press(941, 1336, 80)])


def results(
    transcriber: Transcriber,
    folder: Path,
    channels: tuple[Samples, ...],
    *,
    redact: tuple[Kind, ...] = (),
    **options: Any,
) -> dict[str, Any]:
    recording = folder / "call.wav"
    recording.write_bytes(encode("wav", *channels))
    wanted = CallOptions(
        # Detection finds speech nearly everywhere, so that it is not what keeps music out.
        transcribe=TranscribeOptions(
            word_timestamps=True, speech=SpeechOptions(threshold=0.01), rules=RULES
        ),
        diarize=DiarizeOptions(),
        redact=redact,
        redacted_audio=bool(redact),
        **options,
    )
    Pipeline(transcriber, wanted).run("call", recording, folder)
    files = [
        json.loads((folder / f"{name}.json").read_text()) for name in ("quality", "transcript")
    ]
    return {"quality": files[0], "words": files[1]["words"]}


def test_music_and_keys_are_reported_and_kept_from_the_recognizer(
    transcriber: Transcriber, call: Samples, tmp_path: Path
) -> None:
    found = results(transcriber, tmp_path, (call,), redact=("card",))
    [(start, end)] = found["quality"]["music"]
    assert start == 0
    assert end == pytest.approx(MUSIC, abs=2)
    keys = found["quality"]["key_presses"]
    assert [round(key_end - key_start, 1) for key_start, key_end in keys] == [0.1, 0.1]
    assert found["words"]
    assert all(word["start"] >= end - 0.1 for word in found["words"])
    # The tones of the keys are a number, so they are not in the audio.
    written = np.concatenate(list(Recording(tmp_path / "redacted.wav")))
    assert np.abs(written[:AFTER_MUSIC]).max() > 0.05
    assert not written[-15_000:].any()
    assert np.abs(call[-15_000:]).max() > 0.1


def test_keep_music_leaves_it_in_what_is_heard(
    transcriber: Transcriber, call: Samples, tmp_path: Path
) -> None:
    found = results(transcriber, tmp_path, (call,), keep_music=True)
    assert found["quality"]["music"]
    assert any(word["start"] < MUSIC - 2 for word in found["words"])


def test_a_channel_with_music_does_not_silence_the_other(
    transcriber: Transcriber, call: Samples, tmp_path: Path
) -> None:
    speech = call[AFTER_MUSIC : AFTER_MUSIC + 6 * RATE]
    found = results(transcriber, tmp_path, (tune(6), speech))
    assert len(found["quality"]["music"]) == 1
    assert found["words"]


def test_a_call_is_decoded_once(
    transcriber: Transcriber, call: Samples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[dict[str, Any]] = []
    decode = Decoder.open

    def counted(self: Decoder, source: Any, **options: Any) -> DecodedRecording:
        opened.append(options)
        return decode(self, source, **options)

    monkeypatch.setattr(Decoder, "open", counted)
    speech = call[AFTER_MUSIC : AFTER_MUSIC + 3 * RATE]
    found = results(transcriber, tmp_path, (speech, speech[::-1].copy()), redact=("card",))
    assert found["words"]
    assert len(opened) == 1
