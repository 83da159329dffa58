"""``/v1/audio/speech`` by openai's SDK and by plain HTTP, with tiny voices."""

import base64
import io
import json
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import av
import httpx
import numpy as np
import pytest
from openai import BadRequestError, OpenAI

from galley.tts.encode import FORMATS, MEDIA_TYPES, PCM_RATE, AudioFormat
from tests.runtimes import voice_files
from tests.server.openapi import SPEECH, check_answers
from tests.server.serving import Server, until

pytestmark = pytest.mark.xdist_group("server_speech")

ROUTE = "/v1/audio/speech"
TEXT = "the quick brown fox, it jumps. then it sleeps."
SECONDS = (2 * len(TEXT) + 3) * voice_files.FRAMES_OF_PHONEME * voice_files.HOP / voice_files.RATE


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("voices")
    models = [
        f"one={voice_files.voice(folder / 'one.onnx')}",
        f"two={voice_files.voice(folder / 'two.onnx', speakers=True)}",
    ]
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(models, log, threads=1) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> OpenAI:
    return server.openai()


def post(server: Server, **body: Any) -> httpx.Response:
    wanted = {"model": "one", "input": TEXT, "response_format": "pcm", **body}
    return httpx.post(f"{server.url}{ROUTE}", json=wanted, timeout=60)


@pytest.mark.parametrize("form", FORMATS)
def test_the_sdk_receives_every_format(client: OpenAI, form: AudioFormat) -> None:
    answer = client.audio.speech.create(
        model="one", voice="ada", input=TEXT, response_format=form, speed=0.5
    )
    assert answer.response.headers["content-type"] == MEDIA_TYPES[form]
    if form == "pcm":
        seconds = len(answer.content) / 2 / PCM_RATE
    else:
        with av.open(io.BytesIO(answer.content), "r") as file:
            seconds = sum(f.samples / f.sample_rate for f in file.decode(audio=0))
    # Pieces have a beginning and an end of their own.
    assert 2 * SECONDS <= seconds <= 2 * SECONDS + 0.2


def test_answers_are_as_documented(server: Server) -> None:
    [operation] = SPEECH
    check_answers(server, operation)


def test_voices_are_chosen_by_name(server: Server, client: OpenAI) -> None:
    def said(voice: Any) -> bytes:
        return client.audio.speech.create(
            model="two", voice=voice, input=TEXT, response_format="wav"
        ).content

    assert said("ada") == said("default") == said({"id": "ada"}) != said("bob")
    with wave.open(io.BytesIO(said("bob"))) as file:
        assert file.getframerate() == voice_files.RATE
    cards = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert {card["id"]: card["voices"] for card in cards} == {
        "one": ["ada", "one", "default"],
        "two": ["ada", "bob", "default"],
    }
    assert {tuple(card["tasks"]) for card in cards} == {("speak",)}


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"voice": "eve"}, "voice", "no voice 'eve'; it has ada, one, default"),
        ({"voice": "ada+bob"}, "voice", "mixing voices is not supported"),
        ({"instructions": "whisper"}, "instructions", "instructions are not supported"),
        ({"input": "?!"}, "input", "no word to speak"),
        ({"input": "Ω"}, "input", "no sounds for 'Ω'"),
        ({"input": "a" * 65_537}, "input", "65536"),
        ({"speed": 5}, "speed", "must be"),
        ({"response_format": "ogg"}, "response_format", "ogg"),
        ({"stream_format": "chunks"}, "stream_format", "chunks"),
        ({"model": "none"}, "model", "does not exist"),
        ({"pitch": 2}, "pitch", "pitch"),
    ],
)
def test_what_cannot_be_honored_is_refused_and_named(
    server: Server, body: dict[str, Any], param: str, says: str
) -> None:
    answer = post(server, **body)
    assert answer.status_code == (404 if param == "model" else 400)
    error = answer.json()["error"]
    assert error["param"] == param
    assert says in error["message"]


def test_the_sdk_raises_for_a_refusal(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="no voice 'alloy'"):
        client.audio.speech.create(model="one", voice="alloy", input="hello")


def test_events_have_the_same_audio_and_its_usage(server: Server) -> None:
    whole = post(server).content
    lines = post(server, stream_format="sse").text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    *deltas, done = (json.loads(line.removeprefix("data: ")) for line in lines[:-2])
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(delta["audio"]) for delta in deltas) == whole
    assert len(deltas) > 2
    usage = done["usage"]
    assert done["type"] == "speech.audio.done"
    assert usage["input_tokens"] == len(TEXT) - 1  # the space between the sentences
    assert usage["output_tokens"] == pytest.approx(20 * SECONDS, abs=3)
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_a_client_that_disconnects_ends_the_work(server: Server) -> None:
    long = "and so it goes on. " * 3_000
    body = {"model": "two", "input": long, "response_format": "pcm"}
    with httpx.stream("POST", f"{server.url}{ROUTE}", json=body, timeout=60) as answer:
        next(answer.iter_raw())
    ended = f"galley_finished_sequences_total{{endpoint={ROUTE},finish_reason=cancelled}}"
    until(lambda: server.metrics("two").get(ended) == 1)
    assert post(server, model="two", input="next").status_code == 200


def test_speech_is_measured(server: Server) -> None:
    said = len(post(server, input="measured.").content) / 2 / PCM_RATE
    found = server.metrics("one")

    def value(name: str) -> float:
        return found[f"galley_{name}{{endpoint={ROUTE}}}"]

    answered = value("speech_real_time_factor_count")
    assert value("speech_seconds_total") >= said > 0
    assert value("time_to_first_audio_seconds_count") >= answered >= 1
    assert value("speech_real_time_factor_sum") > 0
    assert f"characters={len('measured.')}" in server.log


def test_many_texts_at_once_are_all_spoken(server: Server) -> None:
    alone = post(server).content
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: post(server).content, range(16)))
    assert set(answers) == {alone}
    assert np.abs(np.frombuffer(alone, "<i2")).max() > 0
