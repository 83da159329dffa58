"""A language model and a speech model in one server, used through OpenAI's own client."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import psutil
import pytest
from openai import OpenAI

from galley import TranscribeOptions, Transcriber
from galley.speech.audio import Recording
from tests.server.live_client import TEXT, LiveClient
from tests.server.serving import Server, events, until
from tests.speech import tiny
from tests.speech.recordings import CALL, encode

pytestmark = pytest.mark.xdist_group("server_models")

SPEAK, HEAR = "/v1/completions", "/v1/audio/transcriptions"
TOKENS = 200


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_whisper(tmp_path_factory.mktemp("hearing"))


@pytest.fixture(scope="module")
def pair(model: Path, hearing: Path) -> list[str]:
    """Return the arguments of ``galley serve``."""
    return [f"chat={model}", "chat.kv_cache_tokens=16384", f"speech={hearing}"]


@pytest.fixture(scope="module")
def server(pair: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(pair, tmp_path_factory.mktemp("server") / "log", threads=1) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> OpenAI:
    return server.openai()


@pytest.fixture(scope="module")
def recording() -> bytes:
    return encode("wav", np.concatenate(list(Recording(CALL))))


@pytest.fixture(scope="module")
def transcript(hearing: Path, recording: bytes) -> str:
    """Return the library's transcript of the recording alone."""
    with Transcriber(hearing, threads=1) as transcriber:
        return transcriber.transcribe(recording, TranscribeOptions(language="en")).text()


def nothing() -> None:
    pass


def said(client: OpenAI, seed: int, *, midway: Callable[[], object] = nothing) -> str:
    """Return a streamed answer of the language model; ``midway`` is called at its first piece.

    Not later: tokens that arrive while the server is busy form one piece, so an answer may have few pieces.
    """
    stream = client.completions.create(
        model="chat",
        prompt=[5 + seed, 6, 7],
        max_tokens=TOKENS,
        seed=seed,
        temperature=1.0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    text = ""
    for chunk in stream:
        text += chunk.choices[0].text
        midway()
        midway = nothing
    return text


def heard(client: OpenAI, recording: bytes, *, midway: Callable[[], object] = nothing) -> str:
    """Return a streamed transcript; ``midway`` is called at its first segment."""
    stream = client.audio.transcriptions.create(
        model="speech", file=("call.wav", recording), language="en", stream=True
    )
    for event in stream:
        if event.type == "transcript.text.done":
            return event.text
        midway()
        midway = nothing
    raise AssertionError("the stream has no end")


def test_both_are_listed_and_ready(server: Server, client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["chat", "speech"]
    assert client.models.retrieve("speech").id == "speech"
    assert httpx.get(f"{server.url}/ready").json() == {"status": "ready"}
    assert "chat and speech are ready after" in server.log


def test_they_answer_at_once_as_they_do_alone(
    client: OpenAI, recording: bytes, transcript: str
) -> None:
    alone = [said(client, seed) for seed in range(4)]
    with ThreadPoolExecutor(8) as pool:
        texts = [pool.submit(said, client, seed) for seed in range(4)]
        transcripts = [pool.submit(heard, client, recording) for _ in range(4)]
        assert [text.result() for text in texts] == alone
        assert [text.result() for text in transcripts] == [transcript] * 4
    assert transcript


def test_each_is_counted_by_its_name(server: Server, client: OpenAI, recording: bytes) -> None:
    chat, speech = server.metrics("chat"), server.metrics("speech")
    said(client, 1)
    text_only = server.metrics("speech")
    assert text_only["galley_engine_steps_total"] == speech["galley_engine_steps_total"]
    heard(client, recording)
    after_chat, after_speech = server.metrics("chat"), server.metrics("speech")
    generated = "galley_generated_tokens_total"
    assert after_chat[generated] - chat[generated] == TOKENS
    assert after_speech[generated] > speech[generated]
    assert after_speech["galley_encoder_rows_total"] > 0
    assert after_chat["galley_encoder_rows_total"] == 0
    assert f"galley_audio_seconds_total{{endpoint={HEAR}}}" in after_speech
    assert not any(name.startswith("galley_audio") for name in after_chat)
    assert sum(name.startswith("galley_startup_phase") for name in after_speech) >= 3


def test_without_a_name_the_only_one_that_can_is_meant(
    server: Server, client: OpenAI, recording: bytes, transcript: str
) -> None:
    fields = {"language": "en"}
    with server.client() as plain:
        answer = plain.post(HEAR, files={"file": ("a.wav", recording)}, data=fields)
        assert answer.json()["text"] == transcript
        both = plain.post("/tokenize", json={"prompt": "hi"})
        chat = plain.post("/tokenize", json={"prompt": "hi", "model": "chat"}).json()
        speech = plain.post("/tokenize", json={"prompt": "hi", "model": "speech"}).json()
        back = plain.post("/detokenize", json={"tokens": speech["tokens"], "model": "speech"})
    assert (both.status_code, both.json()["error"]["param"]) == (400, "model")
    assert "'chat', 'speech'" in both.json()["error"]["message"]
    assert chat["max_model_len"] != speech["max_model_len"]
    assert back.json()["prompt"].strip() == "hi"


def test_unknown_models_and_models_for_other_tasks_are_refused(
    server: Server, client: OpenAI, recording: bytes
) -> None:
    with pytest.raises(openai.NotFoundError, match=r"this server has 'chat', 'speech'"):
        client.completions.create(model="gpt-4o", prompt="hi")
    with pytest.raises(
        openai.BadRequestError, match="'speech' cannot generate; it can score, transcribe"
    ):
        client.completions.create(model="speech", prompt="hi")
    with pytest.raises(
        openai.BadRequestError, match="'speech' cannot generate; it can score, transcribe"
    ):
        client.chat.completions.create(model="speech", messages=[{"role": "user", "content": "hi"}])
    with pytest.raises(
        openai.BadRequestError, match="'chat' cannot transcribe; it can score, generate"
    ):
        client.audio.transcriptions.create(model="chat", file=("a.wav", recording))
    with pytest.raises(openai.BadRequestError, match="'chat' cannot translate; it can score"):
        client.audio.translations.create(model="chat", file=("a.wav", recording))
    with pytest.raises(openai.NotFoundError, match="whisper-1"):
        client.audio.translations.create(model="whisper-1", file=("a.wav", recording))
    with pytest.raises(openai.NotFoundError, match="whisper-1"):
        client.audio.transcriptions.create(model="whisper-1", file=("a.wav", recording))
    missing = httpx.get(f"{server.url}/v1/models/whisper-1")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("named", ["chat", "speech", "nobody", None])
@pytest.mark.parametrize(
    ("path", "body", "task"),
    [
        ("/v1/embeddings", {"input": "a"}, "embed"),
        ("/api/embed", {"input": "a"}, "embed"),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}, "rerank"),
    ],
)
def test_a_routing_error_names_the_requested_model(
    server: Server, path: str, body: dict[str, Any], task: str, named: str | None
) -> None:
    """No model of the server supports the task, so the error cannot single one out."""
    answer = httpx.post(f"{server.url}{path}", json=body | ({"model": named} if named else {}))
    error = answer.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    if named == "nobody":
        assert answer.status_code == 404
        assert "'nobody' does not exist" in message or "model 'nobody'" in message
    else:
        assert answer.status_code == 400
        if named is not None:
            assert f"The model {named!r} cannot {task}; it can" in message
        elif path != "/api/embed":  # whose documentation requires a name
            assert f"No model of this server can {task}; it has 'chat', 'speech'" in message


def test_live_audio_during_a_chat(server: Server, client: OpenAI) -> None:
    samples = np.concatenate(list(Recording(CALL)))[: 9 * 16_000]
    source = {"format": {"type": "audio/pcm", "rate": 16_000}, "transcription": {"language": "en"}}
    session = {"type": "transcription", "audio": {"input": source}}
    alone = said(client, 7)
    transcripts = []
    with ThreadPoolExecutor(1) as pool:
        for beside in (False, True):
            text = pool.submit(said, client, 7) if beside else None
            with LiveClient(server) as live:  # no name is given, so the only speech model is used
                live.until("session.created")
                live.send("session.update", session=session)
                live.append(samples)
                transcripts.append(live.until(f"{TEXT}completed")["transcript"])
            assert text is None or text.result() == alone
    assert transcripts[0] == transcripts[1] != ""


@pytest.mark.parametrize("victim", ["chat", "speech"])
def test_killing_one_engine_changes_no_answer(
    victim: str, pair: list[str], tmp_path: Path, recording: bytes, transcript: str
) -> None:
    """The engine dies amid both streams: the other model's continues, the victim's is resumed."""
    other = {"chat": "speech", "speech": "chat"}[victim]
    with Server(pair, tmp_path / "log", threads=1) as server:
        client = server.openai()
        alone = [said(client, seed) for seed in range(3)]
        survivor = server.engine(other)
        with ThreadPoolExecutor(6) as pool:
            kill = server.engine(victim).kill
            kills = {victim: kill, other: nothing}
            texts = [pool.submit(said, client, 0, midway=kills["chat"])]
            texts += [pool.submit(said, client, seed) for seed in (1, 2)]
            transcripts = [pool.submit(heard, client, recording, midway=kills["speech"])]
            transcripts += [pool.submit(heard, client, recording) for _ in range(2)]
            assert [text.result() for text in texts] == alone
            assert [text.result() for text in transcripts] == [transcript] * 3
        assert server.engine(other) == survivor
        until(lambda: server.metrics(victim)["galley_engine_restarts_total"] == 1)
        assert server.metrics(other)["galley_engine_restarts_total"] == 0
        until(lambda: httpx.get(f"{server.url}/ready").status_code == 200)


def test_a_signal_drains_both(
    pair: list[str], tmp_path: Path, recording: bytes, transcript: str
) -> None:
    # A busy machine must not close a connection.
    server = Server(pair, tmp_path / "log", threads=1, drain_seconds=600)
    with server, server.client() as plain:
        engines = server.children()
        assert len(engines) == 2
        body = {"model": "chat", "prompt": [5, 6], "max_tokens": 800, "ignore_eos": True}
        form: dict[str, Any] = {
            "files": {"file": ("a.wav", recording)},
            "data": {"language": "en", "stream": "true"},
        }
        with (
            plain.stream("POST", SPEAK, json=body | {"stream": True}) as text,
            plain.stream("POST", HEAR, **form) as speech,
        ):
            spoken, written = events(speech), events(text)
            deltas = [next(spoken)]
            next(written)
            for engine in engines:
                engine.suspend()  # or all might end before the signal arrives
            server.process.send_signal(signal.SIGTERM)
            server.wait_for_log("draining")
            assert httpx.get(f"{server.url}/ready").json() == {"status": "draining"}
            for engine in engines:
                engine.resume()
            received = list(written)
            deltas += spoken
        assert received[-1] == "[DONE]"
        assert json.loads(received[-2])["choices"][0]["finish_reason"] == "length"
        done = json.loads(deltas[-2])
        assert (done["type"], done["text"]) == ("transcript.text.done", transcript)
        assert server.process.wait(30) == 0
        assert psutil.wait_procs(engines, timeout=10)[1] == []


def test_a_killed_server_leaves_no_engine(pair: list[str], tmp_path: Path) -> None:
    with Server(pair, tmp_path / "log", threads=1) as server, server.client() as plain:
        engines = server.children()
        body = {"model": "chat", "prompt": [5], "max_tokens": 5000, "ignore_eos": True}
        with plain.stream("POST", SPEAK, json=body | {"stream": True}) as stream:
            next(events(stream))
            os.kill(server.process.pid, signal.SIGKILL)
            assert psutil.wait_procs(engines, timeout=10)[1] == []


def test_readiness_is_that_of_all(pair: list[str], tmp_path: Path) -> None:
    server = Server(pair, tmp_path / "log", threads=1, take_turns=False)
    with server, server.client() as plain:
        engine = server.engine("speech")
        *_, name, memory = engine.cmdline()  # and no file and place of a core scheduler
        assert (name, memory.isdigit()) == ("speech", True)
        engine.kill()
        until(lambda: plain.get("/ready").json() == {"status": "recovering"})
        assert plain.get("/health").status_code == 200
        body = {"model": "chat", "prompt": [5], "max_tokens": 3}
        assert plain.post(SPEAK, json=body).status_code == 200
        until(lambda: plain.get("/ready").status_code == 200)


def test_one_that_cannot_start_ends_it_and_is_named(model: Path, tmp_path: Path) -> None:
    names: list[Any] = [f"chat={model}", f"speech={tmp_path / 'nowhere'}"]
    with Server(names, tmp_path / "log", wait=False, threads=1) as server:
        assert server.process.wait(60) == 1
    assert "galley: cannot start: speech: " in server.log
    assert "nowhere does not exist" in server.log
    assert "Traceback" not in server.log
