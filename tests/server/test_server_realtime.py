"""Live audio over a real WebSocket, from a plain client and the openai SDK; and what must be refused."""

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter
from websockets.exceptions import ConnectionClosed

from galley import LiveOptions, Transcriber
from galley.speech.audio import Recording
from galley.speech.live_events import Completed
from tests.server.key_files import KeyFile, bearer, key_of
from tests.server.live_client import AT_16_KHZ, TEXT, LiveClient, configure
from tests.server.serving import Server
from tests.speech.recordings import CALL
from tests.thorough import examples

pytestmark = pytest.mark.xdist_group("server_realtime")


@pytest.fixture(scope="module")
def server(hearing: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(hearing, log, threads=1, max_live_streams=3, max_body_bytes=1_000_000) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[LiveClient]:
    with LiveClient(server) as connected:
        connected.until("session.created")
        yield connected


def test_a_calls_turns_are_what_the_library_says(
    client: LiveClient, hearing: Path, call: NDArray[np.float32]
) -> None:
    configure(client, **AT_16_KHZ)
    client.append(call)
    transcripts = [client.until(f"{TEXT}completed")["transcript"] for _ in range(2)]
    heard = np.round(call * 32_767).astype("<i2").astype(np.float32) / np.float32(32_768)
    with Transcriber(hearing, threads=1) as transcriber:
        live = transcriber.live(LiveOptions(language="en"))
        received = [
            event
            for first in range(0, len(call), 4_800)
            for event in live.feed(heard[first : first + 4_800])
        ]
    assert transcripts == [event.text for event in received if isinstance(event, Completed)][:2]
    assert all(transcripts)


def test_events_come_in_openais_order_and_shape(client: LiveClient) -> None:
    configure(client, transcription={"language": "en"})
    client.append(np.concatenate(list(Recording(CALL, sample_rate=24_000)))[: 9 * 24_000])
    last = client.until(f"{TEXT}completed")
    item = last["item_id"]
    event_type: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)
    for event in client.events:
        parsed = event_type.validate_python(event)
        assert parsed.type == event["type"]
    assert len({event["event_id"] for event in client.events}) == len(client.events)
    about = [
        event["type"]
        for event in client.events
        if item in (event.get("item_id"), event.get("item", {}).get("id"))
    ]
    assert [kind for kind in about if kind != f"{TEXT}delta"] == [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        f"{TEXT}completed",
    ]
    deltas = [event["delta"] for event in client.of(f"{TEXT}delta") if event["item_id"] == item]
    assert "".join(deltas) == last["transcript"]
    [started] = client.of("input_audio_buffer.speech_started")[:1]
    [stopped] = client.of("input_audio_buffer.speech_stopped")[:1]
    seconds = (stopped["audio_end_ms"] - started["audio_start_ms"]) / 1000
    assert last["usage"] == {"type": "duration", "seconds": pytest.approx(seconds, abs=0.1)}


@pytest.mark.parametrize(
    ("source", "rate"),
    [({}, 24_000), ({"format": {"type": "audio/pcm", "rate": 8_000}}, 8_000)],
)
def test_audio_is_resampled(source: dict[str, Any], rate: int, client: LiveClient) -> None:
    configure(client, transcription={"language": "en"}, **source)
    client.append(np.concatenate(list(Recording(CALL, sample_rate=rate)))[: 8 * rate])
    started = client.until("input_audio_buffer.speech_started")
    assert started["audio_start_ms"] == pytest.approx(1_750, abs=120)
    client.until(f"{TEXT}completed")


def test_mu_law_bytes_are_transcribed(client: LiveClient, call: NDArray[np.float32]) -> None:
    configure(client, transcription={"language": "en"}, format={"type": "audio/pcmu"})
    narrow = np.concatenate(list(Recording(CALL, sample_rate=8_000)))[: 8 * 8_000]
    squeezed = np.sign(narrow) * np.log1p(255 * np.abs(narrow)) / np.log1p(255)
    code = ~(np.round(np.abs(squeezed) * 127) + 128 * (narrow < 0)).astype(np.uint8)
    client.send("input_audio_buffer.append", audio=base64.b64encode(code.tobytes()).decode())
    started = client.until("input_audio_buffer.speech_started")
    assert started["audio_start_ms"] == pytest.approx(1_750, abs=120)


def test_turns_may_be_committed_by_the_client(
    client: LiveClient, call: NDArray[np.float32]
) -> None:
    session = configure(client, turn_detection=None, **AT_16_KHZ)
    assert session["audio"]["input"]["turn_detection"] is None
    empty = client.refused("input_audio_buffer.commit", event_id="mine")
    assert (empty["code"], empty["event_id"]) == ("input_audio_buffer_commit_empty", "mine")
    client.append(call)
    client.send("input_audio_buffer.commit")
    committed = client.until("input_audio_buffer.committed")
    completed = client.until(f"{TEXT}completed")
    assert completed["item_id"] == committed["item_id"]
    assert completed["usage"]["seconds"] == 16.0
    assert not client.of("input_audio_buffer.speech_started")
    client.append(call)
    client.send("input_audio_buffer.clear")
    client.until("input_audio_buffer.cleared")
    assert "0 ms" in client.refused("input_audio_buffer.commit")["message"]


def test_settings_stay_until_they_are_changed(client: LiveClient) -> None:
    turns = {"type": "server_vad", "threshold": 0.6, "silence_duration_ms": 300}
    configure(client, turn_detection=turns, transcription={"language": "en", "prompt": "Kowalska"})
    session = configure(client, turn_detection={"type": "server_vad", "prefix_padding_ms": 100})
    assert session["audio"]["input"] == {
        "format": {"type": "audio/pcm", "rate": 24_000},
        "transcription": {"model": "hearing", "language": "en", "prompt": "Kowalska"},
        "noise_reduction": None,
        "turn_detection": {
            "type": "server_vad",
            "threshold": 0.6,
            "prefix_padding_ms": 100,
            "silence_duration_ms": 300,
        },
    }
    session = configure(client, transcription={"language": None})
    assert session["audio"]["input"]["transcription"]["language"] is None
    assert session["audio"]["input"]["transcription"]["prompt"] == "Kowalska"


@pytest.mark.parametrize("flat", [False, True])
def test_a_session_as_openais_examples_set_it_is_taken(flat: bool, client: LiveClient) -> None:
    """Settings that do not apply here are absent from the reported session."""
    turns = {
        "type": "server_vad",
        "threshold": 0.5,
        "prefix_padding_ms": 300,
        "silence_duration_ms": 500,
        "create_response": True,
        "interrupt_response": False,
    }
    include = ["item.input_audio_transcription.logprobs"]
    transcription = {"language": "en", "prompt": ""}
    if flat:
        client.send(
            "transcription_session.update",
            session={
                "input_audio_format": "pcm16",
                "input_audio_transcription": transcription,
                "turn_detection": turns,
                "input_audio_noise_reduction": {"type": "near_field"},
                "include": include,
            },
        )
        session = client.until("transcription_session.updated")["session"]
        source = {**session, "noise_reduction": session["input_audio_noise_reduction"]}
    else:
        source = {
            "format": {"type": "audio/pcm", "rate": 24_000},
            "transcription": transcription,
            "turn_detection": turns,
            "noise_reduction": {"type": "far_field"},
        }
        update = {"type": "transcription", "audio": {"input": source}, "include": include}
        client.send("session.update", session=update)
        session = client.until("session.updated")["session"]
        source = session["audio"]["input"]
    assert (source["noise_reduction"], session["include"]) == (None, None)
    assert [warning.split()[0] for warning in session["warnings"]] == [
        "noise_reduction",
        "include:",
    ]
    assert source["turn_detection"] == {
        name: turns[name] for name in turns if not name.endswith("response")
    }


def test_the_rate_stays_where_a_format_leaves_it_out(client: LiveClient) -> None:
    def rate(**format: Any) -> int:
        received: int = configure(client, format=format)["audio"]["input"]["format"]["rate"]
        return received

    assert rate(type="audio/pcm", rate=16_000) == 16_000
    assert rate(type="audio/pcm") == 16_000
    assert rate(type="audio/pcmu") == 8_000
    assert rate(type="audio/pcm") == 24_000


def test_messages_may_end_within_a_sample(client: LiveClient, call: NDArray[np.float32]) -> None:
    configure(client, turn_detection=None, **AT_16_KHZ)
    texts = []
    for size in (9_600, 4_801):
        pcm = np.round(call * 32_767).astype("<i2").tobytes()
        for first in range(0, len(pcm), size):
            data = base64.b64encode(pcm[first : first + size]).decode()
            client.send("input_audio_buffer.append", audio=data)
        client.send("input_audio_buffer.commit")
        texts.append(client.until(f"{TEXT}completed"))
    assert {text["usage"]["seconds"] for text in texts} == {16.0}


def test_received_audio_is_final_before_a_silent_client_is_disconnected(
    hearing: Path, tmp_path: Path, call: NDArray[np.float32]
) -> None:
    with (
        Server(hearing, tmp_path / "log", threads=1, live_idle_seconds=1) as server,
        LiveClient(server) as client,
    ):
        configure(client, turn_detection=None, **AT_16_KHZ)
        client.append(call, block=len(call))
        assert client.until(f"{TEXT}completed")["transcript"]
        with pytest.raises(ConnectionClosed) as closed:
            client.until("never")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1000
        assert "nothing received for 1 s" in closed.value.rcvd.reason


def test_a_session_lasts_as_long_as_audio_arrives(
    hearing: Path, tmp_path: Path, call: NDArray[np.float32]
) -> None:
    """The idle limit is not a length limit; six minutes of audio, mostly silence, are one stream."""
    minutes = np.zeros(6 * 60 * 16_000, np.float32)
    minutes[-len(call) :] = call
    with (
        Server(hearing, tmp_path / "log", threads=1, live_idle_seconds=2) as server,
        LiveClient(server) as client,
    ):
        configure(client, **AT_16_KHZ)
        for first in range(0, len(minutes), 8 * 60 * 16_000 // 16):
            client.append(minutes[first : first + 8 * 60 * 16_000 // 16], block=16_000)
            time.sleep(0.4)  # 12 blocks: more than twice the limit
        started = client.until("input_audio_buffer.speech_started")
        assert started["audio_start_ms"] > 5 * 60_000
        assert client.until(f"{TEXT}completed")["transcript"]


def test_interim_text_can_be_requested(client: LiveClient) -> None:
    wanted = ["item.input_audio_transcription.interim"]
    client.send("session.update", session={"type": "transcription", "include": wanted})
    assert client.until("session.updated")["session"]["include"] == wanted


def test_the_older_dialect_is_spoken_too(server: Server, call: NDArray[np.float32]) -> None:
    with LiveClient(server, **{"OpenAI-Beta": "realtime=v1"}) as client:
        created = client.until("transcription_session.created")["session"]
        assert created["input_audio_format"] == "pcm16"
        client.send(
            "transcription_session.update",
            session={
                "input_audio_format": "g711_alaw",
                "input_audio_transcription": {"model": "hearing", "language": "en"},
                "turn_detection": {"type": "server_vad", "threshold": 0.4},
                "input_audio_noise_reduction": None,
            },
        )
        session = client.until("transcription_session.updated")["session"]
        assert session["input_audio_format"] == "g711_alaw"
        assert session["turn_detection"]["threshold"] == 0.4
        bad = {"turn_detection": {"type": "server_vad", "threshold": 2}}
        error = client.refused("transcription_session.update", session=bad)
        assert error["param"] == "session.turn_detection.threshold"
        client.send("input_audio_buffer.append", audio=base64.b64encode(bytes(8_000)).decode())
        client.send("input_audio_buffer.commit")
        client.until("conversation.item.created")
        assert client.until(f"{TEXT}completed")["transcript"] == ""


def test_the_openai_sdk_is_a_client(server: Server) -> None:
    wide = np.concatenate(list(Recording(CALL, sample_rate=24_000)))[: 9 * 24_000]
    pcm = np.round(wide * 32_767).astype("<i2").tobytes()
    with server.openai().realtime.connect(
        model="hearing", extra_query={"intent": "transcription"}
    ) as connection:
        connection.session.update(
            session={
                "type": "transcription",
                "audio": {
                    "input": {
                        "format": {"type": "audio/pcm", "rate": 24_000},
                        "transcription": {"model": "hearing", "language": "en"},
                        "turn_detection": {"type": "server_vad", "silence_duration_ms": 400},
                    }
                },
            }
        )
        for first in range(0, len(pcm), 9_600):
            audio = base64.b64encode(pcm[first : first + 9_600]).decode()
            connection.input_audio_buffer.append(audio=audio)
        received: dict[str, str] = {}
        for event in connection:
            if event.type == "conversation.item.input_audio_transcription.delta":
                received[event.item_id] = received.get(event.item_id, "") + (event.delta or "")
            elif event.type == "conversation.item.input_audio_transcription.completed":
                assert event.transcript == received[event.item_id]
                break


# Events that must be refused while the connection stays open.

NESTED: list[tuple[dict[str, Any], str]] = [
    ({"type": "transcription", "tools": []}, "session.tools"),
    ({"type": "realtime"}, "session.type"),
    ({}, "session.type"),
    ({"type": "transcription", "include": ["item.logprobs"]}, "session.include[0]"),
    ({"type": "transcription", "audio": {"output": {}}}, "session.audio.output"),
]  # fmt: skip
TURNS: list[tuple[dict[str, Any], str]] = [
    ({"type": "semantic_vad"}, "type"),
    ({"type": "server_vad", "threshold": 1.5}, "threshold"),
    ({"type": "server_vad", "threshold": True}, "threshold"),
    ({"type": "server_vad", "silence_duration_ms": 0}, "silence_duration_ms"),
    ({"type": "server_vad", "prefix_padding_ms": -1}, "prefix_padding_ms"),
    ({"type": "server_vad", "create_response": "no"}, "create_response"),
    ({"type": "server_vad", "eagerness": "low"}, "eagerness"),
]
INPUTS: list[tuple[dict[str, Any], str]] = [
    *(({"turn_detection": turns}, f"turn_detection.{param}") for turns, param in TURNS),
    ({"noise_reduction": {"type": "any_field"}}, "noise_reduction.type"),
    ({"transcription": {"model": "whisper-1"}}, "transcription.model"),
    ({"transcription": {"language": "klingon"}}, "transcription.language"),
    ({"transcription": {"language": "fr"}}, "transcription.language"),
    ({"transcription": {"delay": "low"}}, "transcription.delay"),
    ({"transcription": {"prompt": 7}}, "transcription.prompt"),
    ({"transcription": {"prompt": "x" * 20_000}}, "transcription.prompt"),
    ({"format": {"type": "audio/pcm", "rate": 1}}, "format.rate"),
    ({"format": {"type": "audio/opus"}}, "format.type"),
    ({"format": {"type": "audio/pcmu", "rate": 16_000}}, "format.rate"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("session", "param"),
    [
        *NESTED,
        *(
            ({"type": "transcription", "audio": {"input": source}}, f"session.audio.input.{param}")
            for source, param in INPUTS
        ),
    ],
)
def test_a_setting_that_is_not_honored_is_named(
    session: dict[str, Any], param: str, client: LiveClient
) -> None:
    error = client.refused("session.update", session=session, event_id="e1")
    assert (error["param"], error["event_id"]) == (param, "e1")
    assert error["type"] == "invalid_request_error"


BAD_FRAMES: list[tuple[str | bytes, str | None]] = [
    ("", None),
    ("[]", None),
    ("42", None),
    ("null", None),
    ('{"type":', None),
    ("{" * 3_000, None),
    ('{"type": "input_audio_buffer.clear", "type": "input_audio_buffer.clear"}', "type"),
    ('{"a": NaN}', "a"),
    (b"\x00\x01", None),
    ("{}", "type"),
    ('{"type": 7}', "type"),
    ('{"type": "response.create"}', "type"),
    ('{"type": "input_audio_buffer.append"}', "audio"),
    ('{"type": "input_audio_buffer.append", "audio": 7}', "audio"),
    ('{"type": "input_audio_buffer.append", "audio": "AA=A"}', "audio"),
    ('{"type": "input_audio_buffer.append", "audio": "\\ud800"}', "audio"),
    ('{"type": "input_audio_buffer.append", "audio": "", "speaker": 1}', "speaker"),
    ('{"type": "input_audio_buffer.clear", "event_id": 7}', "event_id"),
    ('{"type": "input_audio_buffer.clear", "item_id": "x"}', "item_id"),
    ('{"type": "session.update"}', "session"),
]


@pytest.mark.parametrize(("frame", "param"), BAD_FRAMES)
def test_a_frame_that_is_no_event_is_refused(
    frame: str | bytes, param: str | None, client: LiveClient
) -> None:
    client.socket.send(frame)
    error = client.error()
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert "/" not in error["message"].replace("/v1", "")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
KINDS = st.sampled_from(
    ["session.update", "transcription_session.update", "input_audio_buffer.append",
     "input_audio_buffer.commit", "conversation.item.create"]
)  # fmt: skip
FIELDS = st.sampled_from(["session", "audio", "event_id", "type", "input", "format", "include"])


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(KINDS, st.dictionaries(FIELDS, JSON, max_size=3))
def test_whatever_comes_the_connection_goes_on(
    client: LiveClient, kind: str, fields: dict[str, Any]
) -> None:
    client.socket.send(json.dumps({**fields, "type": kind}))
    client.send("input_audio_buffer.clear")
    while client.until("error", "input_audio_buffer.cleared")["type"] == "error":
        pass


def test_too_large_a_frame_ends_its_connection_alone(server: Server) -> None:
    with LiveClient(server) as client, LiveClient(server) as other:
        for each in (client, other):
            each.until("session.created")
        client.send("input_audio_buffer.append", audio="A" * 2_000_000)
        with pytest.raises(ConnectionClosed) as closed:
            client.until("nothing")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
        other.send("input_audio_buffer.clear")
        other.until("input_audio_buffer.cleared")


def test_a_removed_key_ends_its_streams(hearing: Path, tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", stays={}, leaves={})
    headers = bearer(key_of("leaves"))
    with (
        Server(hearing, tmp_path / "log", threads=1, api_key_file=keys.path) as server,
        LiveClient(server, **headers) as client,
    ):
        client.until("session.created")
        del keys.tenants["leaves"]
        keys.write()
        time.sleep(1.1)  # how often the file is looked at
        client.send("input_audio_buffer.clear")
        assert client.until("error")["error"]["code"] == "invalid_api_key"
        with pytest.raises(ConnectionClosed) as closed:
            client.until("input_audio_buffer.cleared")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
