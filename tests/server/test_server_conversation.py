"""Conversations over ``/v1/realtime``: the openai SDK and a plain client, with three small models."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from galley.cli.main import app
from galley.protocols.openai.realtime.eagerness import DEFAULT_SILENCE_MS
from galley.protocols.openai.realtime.party import SPOKEN
from galley.speech.audio import Recording
from tests.runtimes import voice_files
from tests.server.live_client import LiveClient
from tests.server.serving import Server, until
from tests.speech.recordings import CALL, encode
from tests.tools.checkpoint import make_calling

pytestmark = pytest.mark.xdist_group("server_conversation")

QUERY = "?model=chat"
TIMING = "response.timing"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}},
        "required": ["city"],
    },
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("voice")
    # Most of a second for each character: what is said goes on while the test interrupts it.
    slow = {"sample_rate": 8_000}
    voice = voice_files.voice(folder / "ada.onnx", frames=400, audio=slow)
    make_calling(folder / "tools", max_position_embeddings=4096)
    tools = f"tools={folder / 'tools'}"
    models = ["chat=galley-demo", tools, "ears=galley-demo-speech", f"voice={voice}"]
    models.append("tools.system_prompt=You call functions.")
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(models, log, threads=1, kv_cache_tokens=16384) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[LiveClient]:
    with LiveClient(server, QUERY) as connected:
        connected.until("session.created")
        yield connected


def update(client: LiveClient, **session: Any) -> dict[str, Any]:
    client.send("session.update", session={"type": "realtime", **session})
    updated: dict[str, Any] = client.until("session.updated")["session"]
    return updated


def say(client: LiveClient, text: str, **item: Any) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    message = {"type": "message", "role": "user", "content": content, **item}
    client.send("conversation.item.create", item=message)
    done: dict[str, Any] = client.until("conversation.item.done")["item"]
    return done


def check_shapes(client: LiveClient) -> None:
    """Check every event so far against the SDK's types."""
    kinds: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
    for event in client.events:
        assert kinds.validate_python(event).type == event["type"]


def of_response(client: LiveClient) -> list[str]:
    """Return the types of the events since the last response was created, deltas once."""
    kinds = [event["type"] for event in client.events]
    begun = len(kinds) - 1 - kinds[::-1].index("response.created")
    return list(dict.fromkeys(kinds[begun:]))


def test_a_spoken_conversation_has_instructions_unless_its_model_or_client_has(
    server: Server, client: LiveClient
) -> None:
    [created] = client.of("session.created")
    assert created["session"]["instructions"] == SPOKEN
    assert update(client, instructions="")["instructions"] == ""
    with LiveClient(server, "?model=tools") as other:
        assert other.until("session.created")["session"]["instructions"] == ""


def test_a_text_is_answered_with_text(client: LiveClient) -> None:
    session = update(client, instructions="You help.", output_modalities=["text"])
    assert session["instructions"] == "You help."
    said = say(client, "What is the capital of France?")
    client.send("response.create", response={"metadata": {"turn": "1"}, "max_output_tokens": 40})
    response = client.until("response.done")["response"]
    assert of_response(client) == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    text = "".join(event["delta"] for event in client.of("response.output_text.delta"))
    [item] = response["output"]
    assert item["content"] == [{"type": "output_text", "text": text}]
    assert text
    assert response["metadata"] == {"turn": "1"}
    assert response["status"] in ("completed", "incomplete")
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 10
    [added] = [e for e in client.of("conversation.item.added") if e["item"]["role"] == "assistant"]
    assert added["previous_item_id"] == said["id"]
    check_shapes(client)


def test_speech_is_answered_with_speech_that_an_interruption_cuts(
    client: LiveClient,
) -> None:
    english = {"input": {"transcription": {"language": "en"}}}
    session = update(client, max_output_tokens=60, audio=english)
    assert session["output_modalities"] == ["audio"]
    call = np.concatenate(list(Recording(CALL, sample_rate=24_000)))[: 9 * 24_000]
    client.append(call)  # a turn, and the silence that ends it
    heard = client.until("conversation.item.input_audio_transcription.completed")
    delta = client.until("response.output_audio.delta")
    assert len(base64.b64decode(delta["delta"])) > 100
    client.append(call)  # the caller speaks again
    client.until("input_audio_buffer.speech_started")
    truncated = client.until("conversation.item.truncated")
    response = client.of("response.done")[0]["response"]
    if response["status"] == "cancelled":  # it was still being made
        assert response["status_details"]["reason"] == "turn_detected"
    kinds = [event["type"] for event in client.events]
    assert "response.output_audio.delta" not in kinds[kinds.index("conversation.item.truncated") :]
    [message] = response["output"]
    assert truncated["item_id"] == delta["item_id"] == message["id"]
    client.send("conversation.item.retrieve", item_id=message["id"])
    kept = client.until("conversation.item.retrieved")["item"]["content"][0]["transcript"]
    whole = message["content"][0]["transcript"]
    assert whole.startswith(kept)
    assert len(kept) < len(whole)
    client.send("conversation.item.retrieve", item_id=heard["item_id"])
    said = client.until("conversation.item.retrieved")["item"]
    assert said["content"] == [{"type": "input_audio", "transcript": heard["transcript"].strip()}]
    check_shapes(client)


def test_the_client_cancels_truncates_and_deletes(client: LiveClient) -> None:
    update(client, audio={"output": {"format": {"type": "audio/pcmu"}, "voice": "ada"}})
    say(client, "Tell me a long story.", id="mine")
    client.send("response.create")
    client.send("response.cancel")
    cancelled = client.until("response.done")["response"]
    assert cancelled["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
    assert cancelled["output"] == []
    client.send("response.create", response={"max_output_tokens": 12})
    done = client.until("response.done")["response"]
    [item] = done["output"]
    text = item["content"][0]["transcript"]
    audio = b"".join(base64.b64decode(e["delta"]) for e in client.of("response.output_audio.delta"))
    seconds = len(audio) / 8_000
    # Two ids for each character, of 400 frames of 8 samples at 8 kHz.
    assert seconds >= len(text) * 0.8
    client.send("conversation.item.truncate", item_id=item["id"], content_index=0, audio_end_ms=0)
    client.until("conversation.item.truncated")
    client.send("conversation.item.retrieve", item_id=item["id"])
    assert client.until("conversation.item.retrieved")["item"]["content"][0]["transcript"] == ""
    client.send("conversation.item.delete", item_id="mine")
    assert client.until("conversation.item.deleted")["item_id"] == "mine"
    assert "no item 'mine'" in client.refused("conversation.item.delete", item_id="mine")["message"]
    check_shapes(client)


def test_functions_are_called_and_their_output_is_answered(server: Server) -> None:
    with LiveClient(server, "?model=tools") as client:
        client.until("session.created")
        call_a_function(client)


def call_a_function(client: LiveClient) -> None:
    tools = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    update(client, output_modalities=["text"], **tools)
    say(client, "How is the weather in Paris?")
    client.send("response.create")
    response = client.until("response.done")["response"]
    assert response["status"] == "completed", response
    [call] = response["output"]
    assert (call["type"], call["name"], call["status"]) == (
        "function_call",
        "get_weather",
        "completed",
    )
    assert isinstance(json.loads(call["arguments"])["city"], str)
    [done] = client.of("response.function_call_arguments.done")
    deltas = client.of("response.function_call_arguments.delta")
    assert "".join(event["delta"] for event in deltas) == done["arguments"] == call["arguments"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    client.send("conversation.item.create", item=output)
    client.until("conversation.item.done")
    client.send("response.create", response={"tool_choice": "none", "max_output_tokens": 20})
    assert client.until("response.done")["response"]["status"] in ("completed", "incomplete")
    check_shapes(client)


@pytest.mark.parametrize(
    ("event", "param", "says"),
    [
        ({"type": "response.cancel"}, "response_id", "no such response"),
        ({"type": "output_audio_buffer.clear"}, "type", "Unknown event type"),
        ({"type": "response.create", "response": {"input": []}}, "response.input", "input"),
        (
            {"type": "response.create", "response": {"tool_choice": "required"}},
            "tools",
            "there are no tools",
        ),
        (
            {"type": "session.update", "session": {"type": "transcription"}},
            "session.type",
            "transcription",
        ),
        (
            {"type": "session.update", "session": {"type": "realtime", "temperature": 1}},
            "session.temperature",
            "temperature",
        ),
        (
            {
                "type": "session.update",
                "session": {"type": "realtime", "audio": {"output": {"voice": "eve"}}},
            },
            "session.audio.output.voice",
            "no voice 'eve'",
        ),
        (
            {
                "type": "session.update",
                "session": {
                    "type": "realtime",
                    "audio": {
                        "input": {"turn_detection": {"type": "semantic_vad", "eagerness": "x"}}
                    },
                },
            },
            "session.audio.input.turn_detection.eagerness",
            "eagerness",
        ),
        (
            {
                "type": "session.update",
                "session": {
                    "type": "realtime",
                    "audio": {
                        "input": {"turn_detection": {"type": "server_vad", "idle_timeout_ms": 1}}
                    },
                },
            },
            "session.audio.input.turn_detection.idle_timeout_ms",
            "5000",
        ),
        (
            {"type": "conversation.item.create", "item": {"type": "function_call", "name": "f"}},
            "item.arguments",
            "arguments is missing",
        ),
        (
            {
                "type": "conversation.item.truncate",
                "item_id": "x",
                "content_index": 0,
                "audio_end_ms": 1,
            },
            "item_id",
            "no item 'x'",
        ),
    ],
)
def test_what_cannot_be_honored_is_refused_by_name(
    client: LiveClient, event: dict[str, Any], param: str | None, says: str
) -> None:
    error = client.refused(event.pop("type"), **event)
    assert says in error["message"]
    if param is not None:
        assert error["param"] == param


def test_the_sdk_holds_a_conversation(server: Server) -> None:
    with server.openai().realtime.connect(model="chat") as connection:
        connection.session.update(
            session={"type": "realtime", "output_modalities": ["text"], "instructions": "Help."}
        )
        connection.conversation.item.create(
            item={
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "Hello!"}],
            }
        )
        connection.response.create(response={"max_output_tokens": 8})
        text = ""
        for event in connection:
            assert event.type != "error", event
            if event.type == "response.output_text.delta":
                text += event.delta
            elif event.type == "response.done":
                assert event.response.output is not None
                [item] = event.response.output
                assert item.type == "message"
                assert item.role == "assistant"
                assert item.content[0].text == text
                break
    assert text


def test_the_benchmark_times_each_part_of_a_turn(server: Server, tmp_path: Path) -> None:
    call = np.concatenate(list(Recording(CALL, sample_rate=16_000)))[24_000:72_000]
    said, figures = tmp_path / "said.wav", tmp_path / "figures.json"
    said.write_bytes(encode("wav", call))
    flags = ["--url", server.url, "--model", "chat", "--callers", "2", "--turns", "1"]
    done = CliRunner().invoke(app, ["bench", "voice", str(said), *flags, "--json", str(figures)])
    assert done.exit_code == 0, done.exception
    assert "2 turns of 2 callers, ms" in done.output
    assert "0 of 2 turns were cut off (0.0 %)" in done.output
    turns = json.loads(figures.read_text(encoding="utf-8"))["turns"]
    assert len(turns) == 2
    for turn in turns:
        assert (turn["recording"], turn["cut_offs"]) == (str(said), 0)
        # By the audio's clock, half a second of silence ends a turn; the answer is ready or begins then.
        assert turn["transcript"] <= turn["first words"] <= turn["first audio made"]
        assert turn["endpoint"] > 0.4
        assert turn["silence"] is None  # it is not judged
        assert turn["total"] > 0
    wrong = CliRunner().invoke(app, ["bench", "voice", str(said), *flags[:2], "--model", "none"])
    assert "cannot connect" in str(wrong.exception)


def test_a_turn_ends_when_the_model_finds_it_complete(client: LiveClient) -> None:
    turns = {"type": "semantic_vad", "eagerness": "high"}
    english = {"transcription": {"language": "en"}, "turn_detection": turns}
    session = update(client, max_output_tokens=40, audio={"input": english}, include=[TIMING])
    shown = session["audio"]["input"]["turn_detection"]
    assert shown == {**turns, "create_response": True, "interrupt_response": True}
    assert session["include"] == [TIMING]
    call = np.concatenate(list(Recording(CALL, sample_rate=24_000)))[36_000:108_000]
    client.append(call)
    with client.quiet():
        timing = client.until(TIMING)
    transcript, endpoint = timing["transcript_ms"], timing["endpoint_ms"]
    # The model judges the transcript. On a slow machine, it is written after the turn has ended unjudged.
    assert transcript <= endpoint or endpoint >= DEFAULT_SILENCE_MS
    assert max(transcript, endpoint) <= timing["sent_ms"]
    assert timing["first_words_ms"] <= timing["first_audio_ms"] <= timing["sent_ms"]
    assert timing["silence_ms"] < DEFAULT_SILENCE_MS
    [stopped] = client.of("input_audio_buffer.speech_stopped")
    # That silence ends turns which are not judged; this one was found to be complete before.
    assert stopped["audio_end_ms"] - timing["speech_end_ms"] < DEFAULT_SILENCE_MS
    kinds = [event["type"] for event in client.events]
    completed = kinds.index("conversation.item.input_audio_transcription.completed")
    assert "response.created" not in kinds[:completed]  # nothing is sent before the turn is over
    audio = kinds.index("response.output_audio.delta")
    assert completed < audio < kinds.index(TIMING)
    said = client.events[completed]["transcript"].strip()
    client.send("conversation.item.retrieve", item_id=client.events[completed]["item_id"])
    item = client.until("conversation.item.retrieved")["item"]
    assert item["content"][0]["transcript"] == said
    client.send("conversation.item.retrieve", item_id=client.events[audio]["item_id"])
    answer = client.until("conversation.item.retrieved")["item"]
    assert answer["role"] == "assistant"
    own = (TIMING, "session.updated")  # events with our extension, which the SDK does not know
    client.events = [event for event in client.events if event["type"] not in own]
    check_shapes(client)


def answers_of_chat(server: Server) -> float:
    """Return how many sequences the language model has begun and ended for conversations."""
    ended = server.metrics("chat").items()
    kind = "galley_finished_sequences_total"
    return sum(count for name, count in ended if name.startswith(kind) and "realtime" in name)


def charged_for_answers(server: Server) -> float:
    """Return the generated tokens that the tenant is charged, without those of transcripts."""
    heard = server.metrics("ears")["galley_generated_tokens_total"]
    return server.metrics()["galley_tenant_tokens_total{kind=generated,tenant=}"] - heard


def test_what_is_prepared_in_a_pause_is_dropped_when_the_caller_goes_on(
    client: LiveClient, server: Server
) -> None:
    # An answer of an earlier test may have been cut a moment ago.
    until(lambda: server.metrics()["galley_requests_running"] == 0)
    before, charged = answers_of_chat(server), charged_for_answers(server)
    turns = {"type": "server_vad", "silence_duration_ms": 2_000}
    english = {"transcription": {"language": "en"}, "turn_detection": turns}
    update(client, max_output_tokens=20, audio={"input": english})
    call = np.concatenate(list(Recording(CALL, sample_rate=24_000)))[36_000:108_000]
    pause = np.zeros(24_000 * 6 // 10, np.float32)
    for part in (call, pause):
        client.append(part, block=480)
    # The pause is transcribed, and answered, however long that takes: audio alone moves the turn's clock.
    assert until(lambda: answers_of_chat(server) > before)
    client.append(call, block=480)
    with client.quiet():
        client.until("response.output_audio.delta")
    assert len(client.of("input_audio_buffer.committed")) == 1
    assert len(client.of("response.created")) == 1
    usage = client.until("response.done")["response"]["usage"]
    # That of the pause, or more, and the one that was told.
    assert until(lambda: answers_of_chat(server) - before >= 2)
    # The tenant is charged for the latter alone.
    assert charged_for_answers(server) - charged == usage["output_tokens"]


def test_silence_after_an_answer_is_answered(client: LiveClient) -> None:
    turns = {"type": "server_vad", "idle_timeout_ms": 5_000}
    session = update(client, audio={"input": {"turn_detection": turns}}, output_modalities=["text"])
    assert session["audio"]["input"]["turn_detection"]["idle_timeout_ms"] == 5_000
    client.append(np.zeros(24_000, np.float32))
    say(client, "Hello!")
    client.send("response.create", response={"max_output_tokens": 8})
    client.until("response.done")
    triggered = client.until("input_audio_buffer.timeout_triggered")
    assert triggered["audio_start_ms"] == 0
    assert 900 <= triggered["audio_end_ms"] <= 1_000  # the resampler holds some of it back
    committed = client.until("input_audio_buffer.committed")
    assert committed["item_id"] == triggered["item_id"]
    client.until("response.created")
    assert client.until("response.done")["response"]["status"] in ("completed", "incomplete")
    check_shapes(client)


def test_transcription_sessions_are_as_before(server: Server) -> None:
    with LiveClient(server, "?model=ears") as client:
        session = client.until("session.created")["session"]
        assert session["type"] == "transcription"
        assert "Unknown event type" in client.refused("response.create")["message"]
