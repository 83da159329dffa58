"""Keys, prompts, answers and recordings must not be logged, whatever the log level."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from websockets.sync.client import connect

from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("server_secrecy")

KEY = "sk-hidden-d41d8cd98f00b204"
PROMPT = "xylophone quagmire"
SECRETS = (KEY, "xylophone", "quagmire")


@pytest.fixture(scope="module")
def server(
    model: Path, hearing: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    models = [f"tiny={model}", f"hearing={hearing}"]
    environ = {"GALLEY_API_KEY": KEY}
    with Server(
        models, log, environ=environ, log_level="debug", kv_cache_tokens=16384, threads=1
    ) as running:
        yield running


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with server.client(headers={"Authorization": f"Bearer {KEY}"}) as client:
        yield client


def test_texts_and_keys_are_in_no_log_and_no_metric(server: Server, http: httpx.Client) -> None:
    chat = {"model": "tiny", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 3}
    plain = {"model": "tiny", "prompt": PROMPT, "max_tokens": 3, "echo": True, "user": PROMPT}
    for path, body, status in (
        ("/v1/chat/completions", chat, 200),
        ("/v1/completions", plain, 200),
        ("/v1/completions", plain | {"stream": True, "echo": False}, 200),
        ("/tokenize", {"model": "tiny", "prompt": PROMPT}, 200),
        ("/v1/completions", plain | {"temperature": PROMPT}, 400),
        ("/v1/completions", {"model": PROMPT, "prompt": PROMPT}, 404),
        (f"/v1/{PROMPT}?key={KEY}", {}, 404),
    ):
        assert http.post(path, json=body).status_code == status, path
    assert http.post("/v1/chat/completions", content=PROMPT.encode()).status_code == 400
    wrong = {"Authorization": f"Bearer {KEY}{PROMPT}"}
    assert httpx.get(f"{server.url}/v1/models", headers=wrong).status_code == 401
    metrics = http.get("/metrics").text
    for secret in SECRETS:
        assert secret not in server.log
        assert secret not in metrics
    assert server.log.count("/v1/completions") >= 3


def test_recordings_and_live_audio_are_in_no_log(server: Server, http: httpx.Client) -> None:
    sound = np.sin(np.arange(16_000) / 7.0) * 1234
    pcm = sound.astype("<i2").tobytes()
    form = {"model": "hearing", "prompt": PROMPT}
    http.post("/v1/audio/transcriptions", data=form, files={"file": (f"{PROMPT}.wav", pcm)})
    url = server.url.replace("http", "ws", 1) + "/v1/realtime?intent=transcription&model=hearing"
    audio = base64.b64encode(pcm).decode()
    with connect(url, additional_headers={"Authorization": f"Bearer {KEY}"}) as socket:
        update = {
            "type": "transcription",
            "audio": {"input": {"transcription": {"prompt": PROMPT}}},
        }
        for event in (
            {"type": "session.update", "session": update},
            {"type": "input_audio_buffer.append", "audio": audio},
            {"type": "input_audio_buffer.commit"},
        ):
            socket.send(json.dumps(event))
        for _ in range(4):
            socket.recv(timeout=30)
    for secret in (*SECRETS, audio[100:130]):
        assert secret not in server.log
