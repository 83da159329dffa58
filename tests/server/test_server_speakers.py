"""Transcripts by speaker over HTTP, as OpenAI's own client reads them."""

import base64
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai import OpenAI
from openai.types.audio import TranscriptionDiarized

from tests.server.serving import Server
from tests.speech.recordings import encode
from tests.speech.voices import READ, conversation, speaker_at

pytestmark = pytest.mark.xdist_group("server_speakers")

URL = "/v1/audio/transcriptions"
DIARIZED: dict[str, Any] = {
    "model": "galley-demo-speech",
    "response_format": "diarized_json",
    "language": "en",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    log = tmp_path_factory.mktemp("server") / "log"
    with Server("galley-demo-speech", log, threads=1) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> OpenAI:
    return server.openai()


@pytest.fixture(scope="module")
def call() -> bytes:
    """Return two people's conversation as a file."""
    return encode("wav", conversation()[0])


@pytest.fixture(scope="module")
def whole(client: OpenAI, call: bytes) -> TranscriptionDiarized:
    answer: TranscriptionDiarized = client.audio.transcriptions.create(
        file=("call.wav", call), **DIARIZED
    )
    return answer


def test_segments_have_the_speakers_of_their_time(whole: TranscriptionDiarized) -> None:
    turns = conversation()[1]
    assert {segment.speaker for segment in whole.segments} == {"A", "B"}
    letters = {"austen": "A", "report": "B"}
    seconds = wrong = 0.0
    for segment in whole.segments:
        who = speaker_at(turns, (segment.start + segment.end) / 2)
        seconds += segment.end - segment.start
        wrong += (letters.get(who or "") != segment.speaker) * (segment.end - segment.start)
    assert wrong <= 0.1 * seconds


def test_the_answer_is_as_the_sdk_types_it(whole: TranscriptionDiarized) -> None:
    TranscriptionDiarized.model_validate(whole.model_dump(), strict=True)
    assert whole.task == "transcribe"
    assert [segment.id for segment in whole.segments] == [
        f"seg_{number}" for number in range(len(whole.segments))
    ]
    assert whole.text.split() == " ".join(segment.text for segment in whole.segments).split()


def test_segments_are_streamed(client: OpenAI, call: bytes, whole: TranscriptionDiarized) -> None:
    events = list(
        client.audio.transcriptions.create(file=("call.wav", call), stream=True, **DIARIZED)
    )
    segments = [event for event in events if event.type == "transcript.text.segment"]
    assert [s.model_dump() for s in segments] == [s.model_dump() for s in whole.segments]
    deltas = [event for event in events if event.type == "transcript.text.delta"]
    assert [delta.segment_id for delta in deltas] == [segment.id for segment in segments]
    assert events[-1].type == "transcript.text.done"
    assert events[-1].text == whole.text


def test_a_known_speaker_has_a_name(client: OpenAI, call: bytes) -> None:
    voice = base64.b64encode((READ / "austen-5.flac").read_bytes()).decode()
    answer = client.audio.transcriptions.create(
        file=("call.wav", call),
        known_speaker_names=["reader"],
        known_speaker_references=[f"data:audio/flac;base64,{voice}"],
        **DIARIZED,
    )
    assert {segment.speaker for segment in answer.segments} == {"reader", "A"}


def test_channels_are_speakers_without_a_diarizer(server: Server) -> None:
    samples, turns = conversation()
    samples = samples[: int(turns[1][2] * 16_000)]
    channels = np.zeros((2, len(samples)), np.float32)
    for who, start, end in turns[:2]:
        place = slice(int(start * 16_000), int(end * 16_000))
        channels[int(who == "report"), place] = samples[place]
    file = encode("wav", *channels)
    answer = httpx.post(
        f"{server.url}{URL}",
        files={"file": ("call.wav", file)},
        data={"response_format": "diarized_json", "multichannel": "true", "language": "en"},
        timeout=60,
    ).json()
    assert [s["speaker"] for s in answer["segments"]] == ["A", "B"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "json", "num_speakers": "2"}, "num_speakers"),
        ({"num_speakers": "0"}, "num_speakers"),
        ({"multichannel": "true", "max_speakers": "2"}, "max_speakers"),
        ({"known_speaker_names[]": "jo"}, "known_speaker_names"),
        (
            {"known_speaker_names[]": "jo", "known_speaker_references[]": "https://example.org/a"},
            "known_speaker_references",
        ),
        (
            {"known_speaker_names[]": "jo", "known_speaker_references[]": "data:a;base64,AAAA"},
            "known_speaker_references",
        ),
    ],
)
def test_a_wrong_field_is_named(
    server: Server, call: bytes, fields: dict[str, str], param: str
) -> None:
    answer = httpx.post(
        f"{server.url}{URL}",
        files={"file": ("call.wav", call)},
        data={"response_format": "diarized_json", **fields},
        timeout=60,
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_translations_have_no_speakers(client: OpenAI, call: bytes) -> None:
    with pytest.raises(openai.BadRequestError, match="response_format"):
        client.audio.translations.create(
            model="galley-demo-speech",
            file=("call.wav", call),
            response_format="diarized_json",  # type: ignore[call-overload]
        )


def test_missing_networks_are_no_fault_of_the_caller(call: bytes, tmp_path: Path) -> None:
    with Server(
        "galley-demo-speech", tmp_path / "log", threads=1, speaker_models=str(tmp_path)
    ) as running:
        answer = httpx.post(
            f"{running.url}{URL}",
            files={"file": ("call.wav", call)},
            data={"response_format": "diarized_json"},
            timeout=60,
        )
    assert answer.status_code == 501
    assert "speaker_models" in answer.json()["error"]["message"]
