"""Transcripts by CTranslate2 behind a server, also with a killed engine; and a salt that is refused."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import openai
import pytest

from tests.runtimes.ctranslate2_folders import make_whisper
from tests.runtimes.language_models import CONTEXT, make_gguf
from tests.server.serving import Server, until
from tests.speech import tiny
from tests.speech.recordings import encode, tone
from tests.thorough import long

pytestmark = pytest.mark.xdist_group("text_runtimes")

TRANSCRIPTIONS: Final = "/v1/audio/transcriptions"
STREAMS: Final = 32
SECONDS: Final = 2 * tiny.INPUT_SECONDS + 1
FIELDS: Final = {
    "language": "de",
    "vad": "false",
    "temperature": "0",
    "log_prob_threshold": "-1000",
    "compression_ratio_threshold": "1000",
    "no_speech_threshold": "1",
}
"""Fields with which nothing but the audio decides the text of random weights."""


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("ctranslate2", reason="extra ctranslate2")
    folder = tmp_path_factory.mktemp("whisper")
    path = make_whisper(folder / "tiny")
    with Server(path, folder / "log", engine="ctranslate2", threads=1) as server:
        yield server


def recording(seed: int) -> bytes:
    """Return tones, longer than two of the model's inputs."""
    pitches = np.random.default_rng(seed).uniform(100, 7000, SECONDS)
    return encode("wav", np.concatenate([tone(1, 16_000, hertz=hertz) for hertz in pitches]))


def said(server: Server, number: int) -> dict[str, Any]:
    with server.client() as client:
        answer = client.post(
            TRANSCRIPTIONS,
            files={"file": ("tones.wav", recording(number))},
            data={**FIELDS, "response_format": "verbose_json"},
        )
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return {"text": found["text"], "segments": found["segments"], "usage": found["usage"]}


def test_transcripts_at_once_and_a_killed_engine(whisper: Server) -> None:
    """Each of many is that of its recording alone, even if the engine dies meanwhile."""
    alone = [said(whisper, number) for number in range(4)]
    assert len({one["text"] for one in alone}) == 4
    with ThreadPoolExecutor(STREAMS) as pool:
        answers = pool.map(lambda number: said(whisper, number % 4), range(STREAMS))
        killer = threading.Thread(target=_kill, args=(whisper,))
        killer.start()
        found = list(answers)
        killer.join()
    for number, one in enumerate(found):
        assert one["text"] == alone[number % 4]["text"]
        assert len(one["segments"]) == len(alone[number % 4]["segments"])
    until(lambda: whisper.metrics()["galley_engine_restarts_total"] == 1)


def _kill(server: Server) -> None:
    until(lambda: server.metrics()["galley_requests_running"] > 0)
    server.children()[0].kill()


def test_what_it_does_not_do_is_refused_and_listed(whisper: Server) -> None:
    client = whisper.openai()
    [card] = client.models.list().data
    described = card.model_dump()
    assert described["engine"] == "ctranslate2"
    assert set(described["tasks"]) == {"transcribe", "translate"}
    assert {"seed", "logprobs"} < set(described["unsupported_parameters"])
    with pytest.raises(openai.BadRequestError, match="engine ctranslate2 does not report") as error:
        client.audio.transcriptions.create(
            model="tiny",
            file=("tones.wav", recording(1)),
            response_format="verbose_json",
            timestamp_granularities=["word"],
        )
    assert error.value.param == "timestamp_granularities"
    with pytest.raises(openai.BadRequestError, match="set language"):
        client.audio.transcriptions.create(
            model="tiny", file=("tones.wav", recording(1)), extra_body={"vad": False}
        )


def test_transcribed_seconds_and_batches_are_counted(whisper: Server) -> None:
    seconds = f"galley_audio_seconds_total{{endpoint={TRANSCRIPTIONS}}}"
    before = whisper.metrics()
    said(whisper, 3)
    after = whisper.metrics()
    assert after[seconds] - before.get(seconds, 0.0) == pytest.approx(SECONDS)
    assert after["galley_engine_steps_total"] > before["galley_engine_steps_total"]


@long
def test_a_salt_for_a_common_prefix_cache_is_refused(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    pytest.importorskip("openvino_genai", reason="extra openvino")
    folder = tmp_path_factory.mktemp("salt")
    with (
        Server(
            make_gguf(folder / "tiny.gguf"),
            folder / "log",
            engine="openvino",
            engine_options='{"prefix_caching": true}',
            max_model_len=CONTEXT,
            threads=1,
        ) as server,
        server.client() as client,
    ):
        [card] = client.get("/v1/models").json()["data"]
        assert "cache_salt" in card["unsupported_parameters"]
        request = {"model": "tiny", "prompt": [5, 6], "max_tokens": 2}
        assert client.post("/v1/completions", json=request).status_code == 200
        salted = client.post("/v1/completions", json={**request, "cache_salt": "a"})
        assert salted.status_code == 400
        error = salted.json()["error"]
        assert error["param"] == "cache_salt"
        assert "engine openvino does not support cache_salt" in error["message"]
